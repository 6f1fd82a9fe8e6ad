"""The journal's events as typed structs; a test holds them to the fields that format.py lists."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec

Mono = Annotated[int, msgspec.Meta(ge=-(2**60), le=2**60)]
"""Nanoseconds of a monotonic clock, or of a duration: 36 years either way. What lies beyond is damage."""

Wall = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""Nanoseconds since 1970, until 2116."""

Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Any other integer: what databases and other programs can hold."""

NO_TIME = -(2**61)
"""`ts_mono_ns` of an event whose own time could not be read: no clock gives it."""


class Event(msgspec.Struct, tag_field="event_type", kw_only=True, gc=False):
    """What every event carries; times are nanoseconds of the writing process's monotonic clock."""

    ts_mono_ns: Mono
    run_id: str | None = None
    condition_id: str | None = None
    stage_id: str | None = None
    source: str | None = None
    ts_wall: Wall | None = None
    node_id: str | None = None
    node_class: str | None = None
    visit: Whole | None = None
    gpu_device: Whole | None = None
    gpu_stream: Whole | None = None
    artifact: str | None = None


class Open(msgspec.Struct, array_like=True, gc=False):
    """The segment that was open when a `segments` event was written."""

    stage: str
    part: str | None
    start_ns: Mono
    visit: Whole | None = None
    seam: str | None = None
    node_id: str | None = None
    node_class: str | None = None


class OpenRow(msgspec.Struct, kw_only=True, gc=False):
    """The open segment of one run, as a heartbeat tells it."""

    run_id: str
    stage: str
    start_ns: Mono
    part: str | None = None
    visit: Whole | None = None
    seam: str | None = None
    node_id: str | None = None
    node_class: str | None = None


class ErrorInfo(msgspec.Struct, kw_only=True, gc=False):
    """Where and how a run failed; `cause` only where the loop tells it."""

    cause: str | None = None
    stage: str | None = None
    visit: Whole | None = None
    node_id: str | None = None
    node_class: str | None = None
    list_index: Whole | None = None
    exception_type: str | None = None
    message: str | None = None


class ProcessStart(Event, tag="process_start"):
    """The head of a process's journal; `ts_wall` with `ts_mono_ns` is its anchor pair."""

    format_version: Whole = 0
    pid: Whole | None = None
    hostname: str | None = None
    stagexec_version: str | None = None
    python: str | None = None
    platform: str | None = None
    host_path: str | None = None
    argv: list[str] = []
    timing: str | None = None
    executor_asked: str | None = None
    pid_started: str | None = None

    @property
    def boot_id(self) -> str | None:
        """What names the boot of the machine in which the process began; None where not known."""
        return self.pid_started.split(":")[0] if self.pid_started else None


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
    slept_ns: Whole | None = None


class RunAccepted(Event, tag="run_accepted"):
    """A prompt entered the queue; `links[i]` are positions in `nodes` that node i takes inputs from."""

    prompt_id: str | None = None
    number: float | None = None
    direct: bool = False
    validate_ns: Mono | None = None
    selected_outputs: list[str] = []
    nodes: list[str] = []
    classes: list[str | None] = []
    links: list[list[Whole]] = []
    output_nodes: list[str] = []
    seeds: list[Any] = []
    prompt_hash: str | None = None
    number_of_nodes: Whole | None = None
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
    start_ns: list[Mono] = []
    end_ns: list[Mono] = []
    visit: list[Whole | None] = []  # type: ignore[assignment]
    seam: list[str | None] = []
    open: Open | None = None


class Visits(Event, tag="visits", kw_only=True):
    """Columns of ended visits. The event's own `visit`, `node_id`, `node_class` are columns here."""

    visit: list[Whole] = []  # type: ignore[assignment]
    node_id: list[str] = []  # type: ignore[assignment]
    node_class: list[str | None] = []  # type: ignore[assignment]
    kind: list[str] = []
    list_index: list[Whole | None] = []
    calls: list[Whole | None] = []
    parent: list[str | None] = []
    start_ns: list[Mono] = []
    end_ns: list[Mono] = []
    stage: list[str | None] = []
    origin: list[str | None] = []
    ui: list[bool | None] = []
    hint: list[str | None] = []


class Spans(Event, tag="spans", kw_only=True):
    """Columns of intervals on other lanes than the main one."""

    lane: list[str] = []
    stage: list[str | None] = []
    name: list[str | None] = []
    visit: list[Whole | None] = []  # type: ignore[assignment]
    start_ns: list[Mono] = []
    end_ns: list[Mono] = []
    detail: list[Any] = []


class Samples(Event, tag="samples", kw_only=True):
    """Columns of what ran in visits of which a good part had no name."""

    visit: list[Whole] = []  # type: ignore[assignment]
    name: list[str | None] = []
    count: list[Whole] = []
    ns: list[Mono] = []


class Cpu(Event, tag="cpu", kw_only=True):
    """Columns of readings of CPU time, each since the process or the machine began."""

    at_ns: list[Mono] = []
    own_ns: list[Mono] = []
    busy_ns: list[Whole | None] = []
    cores: list[Whole | None] = []


class Device(Event, tag="device", kw_only=True):
    """Columns of stage switches as the device saw them; `device_ns[i]` is from switch i to the next."""

    start_ns: list[Mono] = []
    device: list[Whole | None] = []
    stream: list[Whole | None] = []
    device_ns: list[Mono | None] = []
    reason: list[str | None] = []
    fault: str | None = None


class DeviceSpans(Event, tag="device_spans", kw_only=True):
    """Columns of the use of other streams, relative to the event of the segment that starts at `start_ns`."""

    start_ns: list[Mono] = []
    device: list[Whole | None] = []
    stream: list[Whole | None] = []
    offset_ns: list[Mono | None] = []
    length_ns: list[Mono | None] = []
    copies: list[Whole] = []


class Memory(Event, tag="memory", kw_only=True):
    """Columns of memory readings at stage switches, bytes."""

    at_ns: list[Mono] = []
    device: list[Whole | None] = []
    allocated_bytes: list[Whole | None] = []
    reserved_bytes: list[Whole | None] = []
    dynamic_bytes: list[Whole | None] = []
    rss_bytes: list[Whole | None] = []


class NvmlFacts(Event, tag="nvml_facts"):
    """The devices that NVML samples, or why there are none."""

    period_ns: Mono | None = None
    reason: str | None = None
    devices: list[dict[str, Any]] = []


class NvmlSample(Event, tag="nvml_sample"):
    """One reading of one device."""

    uuid: str | None = None
    used_bytes: Whole | None = None
    process_bytes: Whole | None = None
    power_mw: Whole | None = None
    energy_mj: Whole | None = None
    temperature_c: Whole | None = None
    sm_clock_mhz: Whole | None = None
    memory_clock_mhz: Whole | None = None


class Mark(Event, tag="mark"):
    """Something happened at an instant; `detail` depends on the name."""

    name: str = ""
    detail: Any = None


class Artifact(Event, tag="artifact"):
    """A file that the run promised, as the verifier found it; `artifact` is its path."""

    bytes: Whole | None = None
    sha256: str | None = None
    state: str = "unverified"
    reason: str | None = None
    media: str | None = None
    frames: Whole | None = None
    orphan: bool = False
    cached: bool = False
    ready_mono_ns: Mono | None = None
    first_bad: str | None = None
    via: str | None = None


class RunExecuted(Event, tag="run_executed"):
    """Execution ended; the verifier has yet to close the run."""

    host_status: str | None = None
    executed: ErrorInfo | None = None
    blocked: list[dict[str, Any]] = []
    outputs: dict[str, Any] = {}
    cancel_ns: Mono | None = None
    stopped_ns: Mono | None = None
    memory: dict[str, Any] | None = None


class RunClosed(Event, tag="run_closed"):
    """The run is over: its outcome, and the bounds that its segments must fill exactly."""

    outcome: str | None = None
    cause: str | None = None
    error: ErrorInfo | None = None
    segment_count: Whole | None = None
    accepted_ns: Mono | None = None
    finished_ns: Mono | None = None
    cancel_ns: Mono | None = None
    stopped_ns: Mono | None = None
    reason: str | None = None
    held_ns: Mono | None = None


class AfterRun(Event, tag="after_run"):
    """Work between two runs, in neither; `delayed` are [run id, ns] of those that waited for it."""

    after: str | None = None
    what: str | None = None
    start_ns: Mono = 0
    end_ns: Mono = 0
    delayed: list[Any] = []


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

    count: Whole = 0
    reason: str | None = None


class OutsideSpan(Event, tag="outside_span"):
    """Work of another program for a run; `stage_id` is its stage."""

    start_wall_ns: Wall = 0
    length_ns: Mono = 0
    part: str | None = None
    program: str | None = None
    exit_code: Whole | None = None
    hostname: str | None = None


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
    | Samples
    | Cpu
    | Device
    | DeviceSpans
    | Memory
    | NvmlFacts
    | NvmlSample
    | Mark
    | Artifact
    | RunExecuted
    | RunClosed
    | AfterRun
    | Identity
    | Condition
    | LostEvents
    | OutsideSpan
    | ProcessEnd
)

KINDS: tuple[type[Event], ...] = get_args(AnyEvent)
