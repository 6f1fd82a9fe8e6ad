"""The journal's format: one versioned constant, a comment per field, a line per past version.

`python -m stagexec.format` prints docs/journal-format.md from it. A journal is a file of JSON
objects, one a line; each is one event. Integers of time are nanoseconds of the process's monotonic
clock (`_ns`), unless the field says wall.
"""

from __future__ import annotations

import sys

VERSION = 2

HISTORY = {
    1: "the first format",
    2: "a file made again in mid-life repeats the events of its open runs; heartbeats carry wall time and "
    "how long the machine slept; process_end says which signal it was, or that it was a restart; "
    "process_start names the boot of the machine and the start of the process; run_closed may say why an "
    "outcome is unverified; samples and cpu tell what ran in unnamed stretches and how busy the machine was; "
    "the marks weights_read and messages, and the cpu_ns of children; an artifact may be overwritten and "
    "says how it was found; after_run tells of what the host does between two runs, and run_closed by how "
    "much the check of a run's files was held up by that: neither is in the run any more; calls of a node's "
    "class that took long are marked with the node; the loop's own time has parts; a profile's path is "
    "relative to the ledger; mark interrupt_pressed tells code that raised the interrupt from a person; "
    "visits tell a hint",
}

ENDS: dict[str, str] = {
    "exit": "the process ended in good order",
    "restart": "the process was restarted",
    "signal SIGINT": "the process was stopped by Ctrl-C (SIGINT)",
    "signal SIGTERM": "the process was asked to end (SIGTERM)",
    "signal SIGHUP": "the process lost its terminal (SIGHUP)",
    "signal SIGQUIT": "the process was asked to end (SIGQUIT)",
    "exception": "an exception ended the host's main thread",
    "killed": "the process ended without a word: killed, out of memory, crashed, or gone by os._exit",
    "machine": "the machine went down, or was started again, while the process lived",
}
"""Why a process ended. All but the last three are planned: runs left open are lost by process_stopped and
count in no failure rate; else by process_died. The last two are never written: a reader concludes them."""

SIGNAL_FILES = ("SIGTERM", "SIGHUP", "SIGQUIT")
"""Signals that end a process before it can write a line. Each has an empty file beside the journal, with its
name in place of `jsonl`: it is written to (a stack, by Python's faulthandler) as the signal comes."""

COMMON: dict[str, str] = {
    "event_type": "which row of EVENTS this object is",
    "run_id": "UUID of the run, hex with dashes; null on events of the process",
    "condition_id": "SHA-256 of the run's condition manifest, hex; null where there is none yet. Between the "
    "mark provisional_condition and the end of execution a provisional one, whose manifest is null, with its "
    "reason, in what is read back at the end; the one in the event `condition` is final",
    "stage_id": "the stage the event speaks of; null where it speaks of none or of many",
    "ts_mono_ns": "when it happened, monotonic nanoseconds of this process",
    "source": "who saw it: process, queue, loop, seam, verifier, journal, node (the public API)",
}

OPTIONAL: dict[str, str] = {
    "ts_wall": "when it happened for people, nanoseconds since 1970 UTC",
    "node_id": "the host's node id, as text",
    "node_class": "the node's class name",
    "visit": "visit number inside the run, counted from 1",
    "gpu_device": "device index; absent without a device",
    "gpu_stream": "stream handle; absent without a device",
    "artifact": "absolute path of the artifact the event speaks of; of media profile the path in the ledger",
}

EVENTS: dict[str, dict[str, str]] = {
    "process_start": {
        "format_version": "VERSION of the writer. A file made again in mid-life, because it was removed, cut "
        "or replaced, begins with this event, host_facts and seams again, at their old times; then come all "
        "events of the runs that are still open, from their run_accepted on. Within one journal a second "
        "run_accepted of a run takes the place of all that was written of it before",
        "pid": "process id",
        "pid_started": "when the process began, as text boot_id:pid namespace:start ticks (Linux: "
        "/proc/sys/kernel/random/boot_id, inode of /proc/self/ns/pid, field 22 of /proc/<pid>/stat), so that "
        "a pid that was given out again is not taken for it; null where the system does not say",
        "hostname": "machine name",
        "stagexec_version": "version of this package",
        "python": "Python version",
        "platform": "operating system and machine, as text",
        "host_path": "folder of the host tree; null when unknown",
        "argv": "the host's own arguments, a list of text: options, numbers, the host's own choices, and a "
        "digest of any other value",
        "timing": "timing mode: baseline, events or profile",
        "executor_asked": "native or host, as asked; null when nothing was asked",
    },
    "host_facts": {
        "host_version": "the host's version text; null when unknown",
        "facts": "named facts found by inspection, name -> true/false/text",
        "executor": "native or host: the loop that runs prompts in this process",
        "executor_reason": "why that one, as text",
    },
    "seams": {
        "seams": "list of {seam, target, state, reason}: every row of the seam tables and its state now",
    },
    "heartbeat": {
        "open": "list of {run_id, stage, part, start_ns, visit, seam, node_id, node_class}: "
        "the open segment of each run that has started, at ts_mono_ns; at most 1 s after the last event. "
        "A run that only waits in the queue is open in queue_wait and not listed. Its ts_wall is read from "
        "the wall clock, as that of run_accepted and run_closed is: a pair with ts_mono_ns that holds until "
        "the next",
        "slept_ns": "how long the machine has been suspended since it was started (CLOCK_BOOTTIME minus "
        "CLOCK_MONOTONIC); null where the system does not say",
    },
    "run_accepted": {
        "prompt_id": "the host's prompt id",
        "number": "the host's queue number",
        "direct": "true when the run did not come through the host's queue",
        "validate_ns": "duration of the host's validation before acceptance; null when not seen",
        "selected_outputs": "list of node ids asked for",
        "nodes": "list of node ids of the submitted graph",
        "classes": "list of class names, one for each of nodes",
        "links": "list, one for each of nodes, of the positions in nodes that it takes inputs from",
        "output_nodes": "list of node ids whose class is an output node",
        "seeds": "list of [node id, input name, value] left out of the condition; a digest "
        "for an unusual name",
        "prompt_hash": "SHA-256 of the canonical API prompt without seeds",
        "number_of_nodes": "nodes in the submitted graph",
        "until": "where the run was asked to stop: native, postprocess, encode or commit; null without a "
        "stop point. selected_outputs are then the nodes that were asked for in place of those left out",
        "left_out": "list of node ids that lie beyond the stop point",
    },
    "run_started": {
        "startup_class": "process_cold (first run of the process) or warm; a reader derives the five startup "
        "classes from the other events",
        "timing": "timing mode of this run: that of the process, or profile where one run was armed for it",
        "device": "kind of device whose events time this run: cuda, xpu, mps; null where none do",
        "device_reason": "why there is no device time; null where there is",
        "unseen": "list of text: what the device events of this run cannot see",
    },
    "cached": {
        "nodes": "list of node ids that were cached when execution started",
    },
    "graph_growth": {
        "parent": "node id that expanded",
        "nodes": "list of new node ids",
        "classes": "list of class names, one for each of nodes",
        "links": "list, one for each of nodes, of node ids it takes inputs from",
        "output_nodes": "new node ids whose class is an output node",
        "results": "list of node ids that the parent takes its own outputs from",
    },
    "segments": {
        "stage": "list of stages, one a segment, in order of time",
        "part": "list of parts or null",
        "start_ns": "list of starts",
        "end_ns": "list of ends; each equals the next start",
        "visit": "list of visit numbers or null",
        "seam": "list of ids of the seam that opened the segment, or null: the loop itself. child:<program> "
        "where the main lane waits for a program that is no encoder. gc: Python collected the whole heap by "
        "itself, on the run's thread. Of an executed run also stagexec.late: a file was waited for that was "
        "still being written after its node had returned; in older journals also gc, for the host's "
        "collection after a prompt, and stagexec.waiting: nothing was waited for but a thread of stagexec's "
        "that checks files",
        "open": "[stage, part, start_ns, visit, seam, node_id, node_class]: what was open when this was "
        "written; null when the run is closed, and in the rare line that was written in mid-switch",
    },
    "visits": {
        "visit": "list of visit numbers",
        "node_id": "list of node ids",
        "node_class": "list of class names",
        "kind": "list of executed, cached, blocked, failed or pending",
        "list_index": "list of the position in a mapped input list where the visit ended; null if not mapped",
        "calls": "list of how many times the node's function was called",
        "parent": "list of the ids of the nodes that expanded into this one; null for nodes of the prompt",
        "start_ns": "list of starts",
        "end_ns": "list of ends",
        "stage": "list of the stages the node's class stands for",
        "origin": "list of table, type or none: where that stage comes from",
        "ui": "list of true/false: the visit announced an output of its own",
        "hint": "list of the stage that the class's work most likely is, where its stage is node_other "
        "because that is not certain; else null. Journals from before it have no such column",
    },
    "spans": {
        "lane": "list of lane names: task:<node id>, thread:<name, or a digest of one that a person chose>, "
        "child:<program>",
        "stage": "list of stages or null",
        "name": "list of seam ids or span names",
        "visit": "list of visit numbers or null",
        "start_ns": "list of starts",
        "end_ns": "list of ends",
        "detail": "list of small objects or null. Of a child: pid, exit_code (null when it was still running "
        "or never ran), exit_seen (pidfd: when it happened; wait: when the node looked; spawn: it never "
        "ran), cpu_ns (CPU time of it and of what it waited for itself; null where not known), role (encode, "
        "decode, analyse, query, other), part, template (SHA-256 of the command without paths "
        "and texts), stderr (its last lines, of which only "
        "the program's own words are kept), and where it told them frames, speed, "
        "bytes; of one that failed also phase: spawn, open, encode or close",
    },
    "samples": {
        "visit": "list of visit numbers, of visits of which 0.2 s or more had no name: no seam was open",
        "name": "list of what ran there, as a thread beside the runs saw some times a second: "
        "module.function of the innermost call, ← and that of the innermost function of a node pack; null "
        "for all further ones",
        "count": "list of how often it was seen",
        "ns": "list of the time that these looks stand for: each one for that since the one before",
    },
    "cpu": {
        "at_ns": "list of times, some 0.2 s apart while the run executes",
        "own_ns": "list of the CPU time that this process and its children have had since it began",
        "busy_ns": "list of the CPU time that all programs of the machine have had; null where not known",
        "cores": "list of the number of CPUs; null where not known",
    },
    "device": {
        "start_ns": "list, one entry a stage switch in order of time, of the starts (host's clock) of the "
        "segments that begin there; the segments before the first have no device time",
        "device": "list of device indexes or null",
        "stream": "list of stream handles or null",
        "device_ns": "list of the device's time from this switch's event to the next one's, idle time of the "
        "stream included; null where it is not known",
        "reason": "list of null, or why device_ns is: graph_capture, device_changed, stream_changed, fault, "
        "not_complete, too_many, last (nothing follows)",
        "fault": "the device's error, as text; null",
    },
    "device_spans": {
        "start_ns": "list of the starts (host's clock) of the segments that the spans lie in",
        "device": "list of device indexes",
        "stream": "list of stream handles: streams that weights were copied on, beside the computing one",
        "offset_ns": "list of the device's time from the segment's event to before the first copy; or null",
        "length_ns": "list of the device's time from there to after the last copy; null where not known",
        "copies": "list of how often the stream was handed out in that segment",
    },
    "memory": {
        "at_ns": "list of times (host's clock): stage switches, at most one in 5 ms",
        "device": "list of device indexes or null",
        "allocated_bytes": "list: in use by torch's allocator on that device; null where it has none",
        "reserved_bytes": "list: held by torch's allocator; null where it has none",
        "dynamic_bytes": "list: held by the host's dynamic VRAM; null where it has none",
        "rss_bytes": "list: resident memory of the process; null where not known",
    },
    "nvml_facts": {
        "period_ns": "time between two samples while runs execute; null when there are none",
        "reason": "why there are none; null",
        "devices": "list of {uuid, name, driver, memory_bytes, power_limit_mw, clocks_policy}; a figure that "
        "the driver does not give is null",
    },
    "nvml_sample": {
        "uuid": "the device, as nvml_facts names it",
        "used_bytes": "memory in use on the device, by any process; null where not given, as all below",
        "process_bytes": "memory of this process on the device",
        "power_mw": "power drawn, milliwatts",
        "energy_mj": "total energy since the driver was loaded, millijoules",
        "temperature_c": "degrees Celsius",
        "sm_clock_mhz": "clock of the multiprocessors",
        "memory_clock_mhz": "clock of the memory",
    },
    "mark": {
        "name": "cancel_requested (a person asked), interrupt_pressed (code of this process did), blocked, "
        "model_load, tiled_retry, cache_defeated, attention, compiled, "
        "worker_restarted (the thread that executes prompts died and another took its place: "
        "{exception_type, at, message, restarts}), worker_died (the same, and none did; in a run: it was "
        "accepted after that), "
        "beside (another run was in execution at the same time, on another thread: device time, memory and "
        "NVML samples of each hold the other's share too), unrecorded_run (in older journals: a run of a "
        "pack's own beside this one, which was not recorded), dynamic_vram, oom_seen, warmup, "
        "profile_problem, provisional_condition (in a run of more than a second or two; missing: as of the "
        "event `condition`), fault, child_failed, child_recovered, encoding, encoded, delivered, "
        "weights_read, left_over, messages, restart_begun (the process has started its successor), asked (a "
        "call that took long), is_changed_brought, left_on_loop, …",
        "detail": "small object, depends on name; never prompt text unless asked for. interrupt_pressed: "
        "{door}: visit (a node, on a thread or in a context of its visit), own_request (an HTTP request from "
        "this process), server (the server's thread, outside of requests), thread (any other). child_failed: "
        "program and the detail of the child's span. child_recovered: {pid, by_pid}, a later child really "
        "made the same output (by_pid null: PyAV did, in this process). encoding: {frames, fps} of an "
        "animated picture. encoded: {container, frames, bytes, streams "
        "(type, codec, packets, width, height, pixel_format, fps, sample_rate, channels), opened_mono_ns, "
        "packet_write_ns (sum over the packets, inside the part encode), whole (closed with no error)} of a "
        "container that PyAV wrote. delivered: {bytes, sha256, state, reason, remote (was it copied or "
        "uploaded), parts_ns (part -> sum)}. weights_read: {file (a digest of its name), bytes, pages (how "
        "many of its pages were looked at before the read), cold_pages (of those, not in the page cache), "
        "io_bytes (what the process had read from storage meanwhile), ns (time of the read)}, nulls where "
        "the system does not say. left_over: {bytes, removed}, a temporary file of a process that "
        "was killed. messages: {messages, reached, sockets, whole}, binary messages that an output node "
        "sent, how many of them went to a connected client, the most sockets that one went to, and whether "
        "the node ran to its end. asked: {what, ns, when}, of the event's node: IS_CHANGED, VALIDATE_INPUTS, "
        "INPUT_TYPES, check_lazy_status (V3 names: fingerprint_inputs, validate_inputs) or on_prompt (a "
        "pack's handler, its name in `handler`) took so long, in validation (beside the run) or in the run; "
        "what took less than 5 ms is not told. is_changed_brought: {nodes} whose answer to IS_CHANGED came "
        "with the prompt, so that it was not asked. left_on_loop: {what (task or thread), name (of the "
        "coroutine or function)} of the event's node, which had not awaited it when the last node was done",
    },
    "artifact": {
        "artifact": "absolute path; of media profile the path in the ledger, with slashes (absolute in older "
        "journals)",
        "bytes": "size; null when the file is not there",
        "sha256": "hex of the content; null when not hashed",
        "state": "verified, unverified, missing, corrupt, nonfinite or overwritten: there is a file of that "
        "name, and another node, run or program has written it since",
        "reason": "why it is not verified; null when it is",
        "media": "image, video, audio, other, or profile: written by stagexec itself",
        "frames": "pictures that the file holds: of an image its frames, of a video the packets of its first "
        "picture stream; null where that is not known, and in older journals",
        "orphan": "true when no history entry names the file: left over by a visit that failed",
        "cached": "true when the file comes from an earlier run of this process",
        "ready_mono_ns": "when the node that promised it had finished, or its cache hit was announced",
        "first_bad": "node id of the first node whose output was not finite; null when not known",
        "via": "how the file was found: history (an entry names it, or a pattern that it matches), node (it "
        "named the file itself), written (it was seen to write it), saver (it asked the host where to write, "
        "and there the file lies), folder (new in the output folder since the node began), cache (an earlier "
        "run had found it so); null in older journals",
    },
    "run_executed": {
        "host_status": "success or error, as the host filed it; null when the host never filed it",
        "executed": "null, or the error: {cause, stage, visit, node_id, node_class, list_index, "
        "exception_type, message}",
        "blocked": "list of {visit, node_id, node_class, message}: visits that a blocker stopped; with "
        "cached: true where it did so in the run that made the cache entry",
        "outputs": "history's output node ids -> number of entries",
        "cancel_ns": "when a person asked to cancel; null",
        "stopped_ns": "when the last visit ended",
        "memory": "{name: bytes} at the end of execution: rss_bytes; of torch's allocator allocated_bytes, "
        "reserved_bytes and allocator_peak_bytes (since the process began, or since it was reset); of the "
        "whole device device_used_bytes and device_total_bytes; dynamic_bytes of the host's dynamic VRAM",
    },
    "run_closed": {
        "outcome": "one of the outcomes",
        "cause": "one of the causes; null for success",
        "error": "null or {stage, visit, node_id, node_class, list_index, exception_type, message}",
        "segment_count": "how many segments were written for the run",
        "accepted_ns": "start of the first segment",
        "finished_ns": "end of the last segment: when the last of its files was checked; of a run without "
        "files when the host had filed it",
        "cancel_ns": "when a person asked to cancel; null",
        "stopped_ns": "when execution stopped; null when it never started",
        "reason": "why the run's files could not be checked to the end, as text; null",
        "held_ns": "how long its files were not being checked because the whole heap was collected, or a "
        "thread of stagexec's was not there yet: in no segment, so the run's end is told that much earlier "
        "than it was seen; null where it was not executed",
    },
    "after_run": {
        "after": "id of the run after which this was done; null where none was before, and where a profile "
        "begins. It is an event of the process: the work is in no run",
        "what": "collection (of the whole heap), host_cleanup (what else the host's worker does between two "
        "prompts: emptying caches, unloading, registering files) or profile (stagexec's own recording of a "
        "profiled run begins or ends). What took less than 5 ms is not told",
        "start_ns": "when it began",
        "end_ns": "when it ended",
        "delayed": "list of [run id, ns]: prompts that waited in the queue meanwhile, at most 20, and how "
        "long of it",
    },
    "identity": {
        "nodes": "node ids of the submitted graph; filed off the run's path, so it may follow run_closed",
        "constants": "list, one for each of nodes: a short digest of its class and constant inputs, seeds "
        "included. Equal digests mean equal constants; no value can be read from one",
        "links": "list, one for each of nodes: a short digest of which outputs it takes inputs from",
        "is_changed": "{node id: short digest of its answer to the host's question if it changed}; nodes "
        "that were not asked are absent, an answer that can never equal itself is nan",
        "packs": "{class name: custom-node pack} of the graph's classes that are not the host's own",
    },
    "condition": {
        "missing": "list of the manifest's fields that are null; the manifest says why. The event's own "
        "condition_id names the manifest. It comes last, when all content hashes are known: it may "
        "follow run_closed",
    },
    "lost_events": {
        "count": "how many events could not be written since the last that could",
        "reason": "the operating system's error, as text",
    },
    "outside_span": {
        "start_wall_ns": "when the work began, nanoseconds since 1970 UTC. Work of another program for a "
        "run, as `stagexec span` timed it: one line in a file of its own, beside the journals, "
        "`<ledger>/spans/YYYY-MM-DD/<host>-<pid>-<start>.jsonl`. ts_mono_ns is of the process that timed it; "
        "a reader places it on the run's own clock by the wall anchors of the run's journal. It is in no "
        "segment and no sum of the run",
        "length_ns": "how long it took, on the monotonic clock of the process that timed it",
        "part": "the part of stage_id, or null",
        "program": "the file name of the program, without its folder. No argument is kept",
        "exit_code": "its exit code; of one that a signal ended the negative number",
        "hostname": "the machine that it ran on",
    },
    "process_end": {
        "reason": "exit, restart, signal SIGINT or exception: see ENDS in format.py. Of a process that a "
        "signal ended at once there is no process_end: a file beside the journal, with the signal's name as "
        "its suffix, is not empty then. Nothing follows this event, unless a restart failed",
        "exception_type": "class of the exception that ended the host's main thread; null",
    },
}

SEGMENT_COLUMNS = tuple(name for name in EVENTS["segments"] if name != "open")
VISIT_COLUMNS = tuple(EVENTS["visits"])
SPAN_COLUMNS = tuple(EVENTS["spans"])
SAMPLE_COLUMNS = tuple(EVENTS["samples"])
CPU_COLUMNS = tuple(EVENTS["cpu"])
DEVICE_COLUMNS = tuple(name for name in EVENTS["device"] if name != "fault")
DEVICE_SPAN_COLUMNS = tuple(EVENTS["device_spans"])
MEMORY_COLUMNS = tuple(EVENTS["memory"])
"""Fields of one length, in the order in which writers keep a row and readers take one."""

LATE_COLUMNS = frozenset({"hint"})
"""Those that came later: a journal without such a column is whole, and each row has null in it."""


def document() -> str:
    """The format as Markdown, made from the constants above."""
    lines = ["# The journal's format", "", f"Version {VERSION}. Made by `python -m stagexec.format`.", ""]
    lines += ["One JSON object a line, append-only; a torn last line is normal.", ""]
    lines += ["## Versions", ""] + [f"* {number}: {text}" for number, text in sorted(HISTORY.items())]
    for title, fields in (("Fields of every event", COMMON), ("Fields where they apply", OPTIONAL)):
        lines += ["", f"## {title}", "", "| field | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in fields.items()]
    for event, fields in EVENTS.items():
        lines += ["", f"## `{event}`", "", "| field | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in fields.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(document().encode())
