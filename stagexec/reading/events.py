"""The journal's events as typed structs; a test holds them to the fields that format.py lists."""

from __future__ import annotations

from typing import Any, get_args

import msgspec


class Event(msgspec.Struct, tag_field="event_type", kw_only=True, gc=False):
    """What every event carries; times are nanoseconds of the writing process's monotonic clock."""

    ts_mono_ns: int
    run_id: str | None = None
    condition_id: str | None = None
    stage_id: str | None = None
    source: str | None = None
    ts_wall: int | None = None
    node_id: str | None = None
    node_class: str | None = None
    visit: int | None = None
    gpu_device: int | None = None
    gpu_stream: int | None = None
    artifact: str | None = None


class Open(msgspec.Struct, array_like=True, gc=False):
    """The segment that was open when a `segments` event was written."""

    stage: str
    part: str | None
    start_ns: int
    visit: int | None = None
    seam: str | None = None
    node_id: str | None = None
    node_class: str | None = None


class OpenRow(msgspec.Struct, kw_only=True, gc=False):
    """The open segment of one run, as a heartbeat tells it."""

    run_id: str
    stage: str
    start_ns: int
    part: str | None = None
    visit: int | None = None
    seam: str | None = None
    node_id: str | None = None
    node_class: str | None = None


class ErrorInfo(msgspec.Struct, kw_only=True, gc=False):
    """Where and how a run failed; `cause` only where the loop tells it."""

    cause: str | None = None
    stage: str | None = None
    visit: int | None = None
    node_id: str | None = None
    node_class: str | None = None
    list_index: int | None = None
    exception_type: str | None = None
    message: str | None = None


class ProcessStart(Event, tag="process_start"):
    """The head of a process's journal; `ts_wall` with `ts_mono_ns` is its anchor pair."""

    format_version: int = 0
    pid: int | None = None
    hostname: str | None = None
    stagexec_version: str | None = None
    python: str | None = None
    platform: str | None = None
    host_path: str | None = None
    argv: list[str] = []
    timing: str | None = None
    executor_asked: str | None = None
    boot_id: str | None = None


class HostFacts(Event, tag="host_facts"):
    """What was found out about the host."""

    host_version: str | None = None
    facts: dict[str, Any] = {}
    executor: str | None = None
    executor_reason: str | None = None


class Seams(Event, tag="seams"):
    """Every row of the seam tables with its state."""

    seams: list[dict[str, Any]] = []


class Heartbeat(Event, tag="heartbeat"):
    """A sign of life: what is open in each open run."""

    open: list[OpenRow] = []


class RunAccepted(Event, tag="run_accepted"):
    """A prompt entered the queue; `links[i]` are positions in `nodes` that node i takes inputs from."""

    prompt_id: str | None = None
    number: float | None = None
    direct: bool = False
    validate_ns: int | None = None
    selected_outputs: list[str] = []
    nodes: list[str] = []
    classes: list[str | None] = []
    links: list[list[int]] = []
    output_nodes: list[str] = []
    seeds: list[Any] = []
    prompt_hash: str | None = None
    number_of_nodes: int | None = None
    until: str | None = None
    left_out: list[str] = []


class RunStarted(Event, tag="run_started"):
    """Execution began."""

    startup_class: str | None = None
    timing: str | None = None
    device: str | None = None
    device_reason: str | None = None
    unseen: list[str] = []


class Cached(Event, tag="cached"):
    """The nodes that were cached when execution began."""

    nodes: list[str] = []


class GraphGrowth(Event, tag="graph_growth"):
    """A node expanded into others; `links[i]` are ids of nodes that node i takes inputs from."""

    parent: str | None = None
    nodes: list[str] = []
    classes: list[str | None] = []
    links: list[list[str]] = []
    output_nodes: list[str] = []
    results: list[str] = []


class Segments(Event, tag="segments"):
    """Columns of closed segments in order of time, and what was open after them."""

    stage: list[str] = []
    part: list[str | None] = []
    start_ns: list[int] = []
    end_ns: list[int] = []
    visit: list[int | None] = []  # type: ignore[assignment]
    seam: list[str | None] = []
    open: Open | None = None


class Visits(Event, tag="visits", kw_only=True):
    """Columns of ended visits. The event's own `visit`, `node_id`, `node_class` are columns here."""

    visit: list[int] = []  # type: ignore[assignment]
    node_id: list[str] = []  # type: ignore[assignment]
    node_class: list[str | None] = []  # type: ignore[assignment]
    kind: list[str] = []
    list_index: list[int | None] = []
    calls: list[int | None] = []
    parent: list[str | None] = []
    start_ns: list[int] = []
    end_ns: list[int] = []
    stage: list[str | None] = []
    origin: list[str | None] = []
    ui: list[bool | None] = []


class Spans(Event, tag="spans", kw_only=True):
    """Columns of intervals on other lanes than the main one."""

    lane: list[str] = []
    stage: list[str | None] = []
    name: list[str | None] = []
    visit: list[int | None] = []  # type: ignore[assignment]
    start_ns: list[int] = []
    end_ns: list[int] = []
    detail: list[Any] = []


class Device(Event, tag="device", kw_only=True):
    """Columns of stage switches as the device saw them; `device_ns[i]` is from switch i to the next."""

    start_ns: list[int] = []
    device: list[int | None] = []
    stream: list[int | None] = []
    device_ns: list[int | None] = []
    reason: list[str | None] = []
    fault: str | None = None


class DeviceSpans(Event, tag="device_spans", kw_only=True):
    """Columns of the use of other streams, relative to the event of the segment that starts at `start_ns`."""

    start_ns: list[int] = []
    device: list[int | None] = []
    stream: list[int | None] = []
    offset_ns: list[int | None] = []
    length_ns: list[int | None] = []
    copies: list[int] = []


class Memory(Event, tag="memory", kw_only=True):
    """Columns of memory readings at stage switches, bytes."""

    at_ns: list[int] = []
    device: list[int | None] = []
    allocated_bytes: list[int | None] = []
    reserved_bytes: list[int | None] = []
    dynamic_bytes: list[int | None] = []
    rss_bytes: list[int | None] = []


class NvmlFacts(Event, tag="nvml_facts"):
    """The devices that NVML samples, or why there are none."""

    period_ns: int | None = None
    reason: str | None = None
    devices: list[dict[str, Any]] = []


class NvmlSample(Event, tag="nvml_sample"):
    """One reading of one device."""

    uuid: str | None = None
    used_bytes: int | None = None
    process_bytes: int | None = None
    power_mw: int | None = None
    energy_mj: int | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None


class Mark(Event, tag="mark"):
    """Something happened at an instant; `detail` depends on the name."""

    name: str = ""
    detail: Any = None


class Artifact(Event, tag="artifact"):
    """A file that the run promised, as the verifier found it; `artifact` is its path."""

    bytes: int | None = None
    sha256: str | None = None
    state: str = "unverified"
    reason: str | None = None
    media: str | None = None
    orphan: bool = False
    cached: bool = False
    ready_mono_ns: int | None = None
    first_bad: str | None = None


class RunExecuted(Event, tag="run_executed"):
    """Execution ended; the verifier has yet to close the run."""

    host_status: str | None = None
    executed: ErrorInfo | None = None
    blocked: list[dict[str, Any]] = []
    outputs: dict[str, Any] = {}
    cancel_ns: int | None = None
    stopped_ns: int | None = None
    memory: dict[str, Any] | None = None


class RunClosed(Event, tag="run_closed"):
    """The run is over: its outcome, and the bounds that its segments must fill exactly."""

    outcome: str | None = None
    cause: str | None = None
    error: ErrorInfo | None = None
    segment_count: int | None = None
    accepted_ns: int | None = None
    finished_ns: int | None = None
    cancel_ns: int | None = None
    stopped_ns: int | None = None
    reason: str | None = None


class Identity(Event, tag="identity"):
    """Digests of what each node of the submitted graph computes, and the packs its classes come from."""

    nodes: list[str] = []
    constants: list[str] = []
    links: list[str] = []
    is_changed: dict[str, str] = {}
    packs: dict[str, str] = {}


class Condition(Event, tag="condition"):
    """The run's condition is known: `condition_id` names its manifest."""

    missing: list[str] = []


class LostEvents(Event, tag="lost_events"):
    """Events that could not be written while the journal could not."""

    count: int = 0
    reason: str | None = None


class ProcessEnd(Event, tag="process_end"):
    """The process ended and could still say why."""

    reason: str | None = None
    exception_type: str | None = None


AnyEvent = (
    ProcessStart
    | HostFacts
    | Seams
    | Heartbeat
    | RunAccepted
    | RunStarted
    | Cached
    | GraphGrowth
    | Segments
    | Visits
    | Spans
    | Device
    | DeviceSpans
    | Memory
    | NvmlFacts
    | NvmlSample
    | Mark
    | Artifact
    | RunExecuted
    | RunClosed
    | Identity
    | Condition
    | LostEvents
    | ProcessEnd
)

KINDS: tuple[type[Event], ...] = get_args(AnyEvent)
