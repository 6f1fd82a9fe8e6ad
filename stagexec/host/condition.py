"""The condition of each run: what was really in use, gathered off the run's path and named by its hash.

At acceptance only the prompt's hash is taken. When execution ends, the models that the run used are read
off (well under a millisecond); all the rest happens on a thread of its own, which files `identity` and, when
every content hash is known, `condition`.

A run that takes longer has a provisional condition meanwhile, so that one which is lost has one at all: a
manifest like any other, null with its reason in whatever is read back only at the end.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stagexec.executor import wire
from stagexec.host import machine, node_stage, packs, prompt_fields, used_models
from stagexec.host.content_hash import Hashes
from stagexec.record import condition, fingerprint, live
from stagexec.record.guard import guarded, note
from stagexec.record.run import Run
from stagexec.record.safe import log

REMEMBERED = 256
"""So many prompts, and sets of model files, are remembered with the models they used."""

AT_EXIT_S = 2.0
"""At the end of the process, wait this long for conditions that are nearly known."""

PROVISIONAL_S = 1.0
"""A run in execution for so long, and up to twice as long, gets a provisional condition. Short ones do not:
the work would be theirs."""

MOST_NODES = 5000
"""Nor do larger graphs: looking through one takes time from the run."""

QUICK_NODES = 100
"""A condition of more nodes takes milliseconds to make, and is begun only when the client knows of
the run's end: both need the interpreter, and a person waits for the one."""

TOLD_S = 0.05
"""So long, at most."""

NOT_ENDED = "not read back: the run had not ended"
NOT_USED = "no model was used in this run, nor by this prompt before"
PLAIN = "the weights are not quantised"
NOT_COMPILED = "no model is compiled"
NO_FILE = "no such file in the prompt"


class Accepted(msgspec.Struct, gc=False):
    """What is kept of a prompt until its run has ended."""

    prompt: Any
    extra_data: Any
    outputs: list[str]
    prompt_hash: str
    seeds: list[Any]


class Used(msgspec.Struct):
    """What was read off when execution ended."""

    models: dict[str, dict[str, Any]]
    attention: list[str]
    timing: str
    preview: str | None
    cached: bool
    ended: bool = True
    """False where the run is still in execution: what it uses is not known yet."""


class Conditions:
    """Makes the condition of each run. What the process holds fixed is looked up once."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.idle = threading.Event()
        self.idle.set()
        self._accepted: weakref.WeakKeyDictionary[Run, Accepted] = weakref.WeakKeyDictionary()
        self._looks: weakref.WeakKeyDictionary[Run, int] = weakref.WeakKeyDictionary()
        self._queue: queue.SimpleQueue[tuple[Run, Accepted, Used] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._fixed: tuple[dict[str, Any], dict[str, str]] | None = None
        self._lock_hash: str | None = None
        self._hashes: Hashes | None = None
        self._of_prompt: OrderedDict[Any, prompt_fields.PromptFields] = OrderedDict()
        self._models: OrderedDict[str, Used] = OrderedDict()
        self._stored: set[str] = set()

    # ---- on the host's own threads ---------------------------------------------------------------

    def of(
        self, prompt: dict[str, Any], extra_data: dict[str, Any], outputs: list[str]
    ) -> tuple[str | None, dict[str, Any]]:
        """(None, {prompt_hash, seeds}) of a prompt that is being accepted: its condition is not known yet."""
        prompt_hash, seeds = condition.api_prompt_hash(prompt)
        return None, {"prompt_hash": prompt_hash, "seeds": seeds}

    @guarded
    def keep(self, run: Run, prompt: Any, extra_data: Any, outputs: list[str], known: dict[str, Any]) -> None:
        """Remember what `run` was asked for. The prompt itself is kept: the host writes into it."""
        told = Accepted(prompt, extra_data, outputs, known["prompt_hash"], known["seeds"])
        self._accepted[run] = told
        self._queue.put(None)  # our thread looks after it from now on

    def start(self) -> None:
        """Begin to make conditions, once delivery has been set up."""
        close = live.after_execution

        def after_execution(run: Run, history: dict[str, Any]) -> None:
            self.executed(run)
            if close is not None:
                close(run, history)

        live.after_execution = after_execution
        threading.Thread(target=self._loop, name="stagexec-condition", daemon=True).start()
        atexit.register(self.idle.wait, AT_EXIT_S)

    @guarded
    def executed(self, run: Run) -> None:
        """Execution has ended: read off what was used. On the worker's thread, so it only reads."""
        with self._lock:
            told = self._accepted.pop(run, None)
            run.condition_id = None  # what follows is of its final condition, or of none yet
        if told is None:
            return
        used = Used(
            models=used_models.read(run),
            attention=sorted(run.attention),
            timing=str(getattr(run, "timing", None) or live.timing),
            preview=machine.preview_mode(),
            cached=bool(run.cached),
        )
        with self._lock:
            self._waiting += 1
            self.idle.clear()
        self._queue.put((run, told, used))

    # ---- on our own thread -----------------------------------------------------------------------

    def _loop(self) -> None:
        looked = time.monotonic()
        while True:
            try:
                item = self._queue.get(timeout=PROVISIONAL_S if self._accepted else None)
            except queue.Empty:
                item = None
            if item is not None:
                self._finish_fenced(*item)
            if time.monotonic() - looked >= PROVISIONAL_S:
                looked = time.monotonic()
                self.look()

    def _finish_fenced(self, run: Run, told: Accepted, used: Used) -> None:
        if len(told.prompt) > QUICK_NODES:
            wire.told.wait(TOLD_S)
        try:
            self.finish(run, told, used)
        except Exception as error:  # noqa: BLE001 (the fence of this thread; the run stays without)
            note("Conditions.finish", error)
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self.idle.set()

    @guarded
    def look(self) -> None:
        """Give each run in execution that was so at the last look a provisional condition, once."""
        for run in list(live.running.values()):
            self._looks[run] = looks = self._looks.get(run, 0) + 1
            told = self._accepted.get(run)
            if looks == 2 and told is not None and len(told.prompt) <= MOST_NODES:
                self._provide(run, told)

    def _provide(self, run: Run, told: Accepted) -> None:
        used = Used({}, [], str(run.timing), machine.preview_mode(), cached=False, ended=False)
        whole = self.manifest(told, used)
        found = self._store(whole)
        with self._lock:
            if run not in self._accepted:  # it has ended meanwhile
                return
            run.condition_id = found
            detail = {"missing": sorted(whole.reasons)}
            live.journal_event(run, "mark", source="process", name="provisional_condition", detail=detail)

    def finish(self, run: Run, told: Accepted, used: Used) -> str:
        """File the run's `identity` and its `condition`; the condition's id."""
        self._file_identity(run, told)
        whole = self.manifest(told, used)
        run.condition_id = found = self._store(whole)
        live.journal_event(run, "condition", source="process", missing=sorted(whole.reasons))
        return found

    def _store(self, whole: condition.Manifest) -> str:
        found = condition.condition_id(whole)
        if found not in self._stored and live.journal is not None:
            self._stored.add(found)
            live.journal.put_condition(whole)
        return found

    def _file_identity(self, run: Run, told: Accepted) -> None:
        digests = fingerprint.fields_of(told.prompt)
        live.journal_event(run, "identity", source="process", **digests, packs=self._packs(told.prompt))

    def _packs(self, prompt: dict[str, Any]) -> dict[str, str]:
        classes = self.api.nodes.NODE_CLASS_MAPPINGS
        found = {}
        for name in {str(node.get("class_type")) for node in prompt.values()}:
            place = str(getattr(classes.get(name), "RELATIVE_PYTHON_MODULE", ""))
            if place.startswith("custom_nodes."):
                found[name] = place.partition(".")[2]
        return found

    def manifest(self, told: Accepted, used: Used) -> condition.Manifest:
        """Every field, from the process, the prompt, the files and what was read off."""
        if self._fixed is None:
            self._fixed = machine.fixed(self.api)
        fields, reasons = dict(self._fixed[0]), dict(self._fixed[1])
        workflow, reason = condition.workflow_hash(told.extra_data, told.seeds)
        fields["workflow_hash"] = workflow
        reasons["workflow_hash"] = reason or ""
        fields["api_prompt_hash"] = told.prompt_hash
        fields["selected_outputs"] = sorted(told.outputs)
        fields["custom_nodes_hash"] = self._custom_nodes() if used.ended else self._lock_hash
        reasons["custom_nodes_hash"] = NOT_ENDED
        fields["timing_mode"], fields["preview_mode"] = used.timing, used.preview
        reasons["preview_mode"] = "the host does not tell"
        asked = self._asked(told)
        fields.update(asked.fields)
        reasons.update(asked.reasons)
        self._read_back(told, used, asked, fields, reasons)
        self._content(asked, used, fields, reasons)
        self._delivery(asked, used, fields, reasons)
        return condition.manifest(fields, reasons)

    def _asked(self, told: Accepted) -> prompt_fields.PromptFields:
        key = (told.prompt_hash, tuple(told.outputs))
        known = self._of_prompt.get(key)
        if known is None:
            classes = self.api.nodes.NODE_CLASS_MAPPINGS

            def stage_of(name: str) -> str:
                return str(self.api.stage_of(name, classes.get(name))[0])

            asked: list[node_stage.Asked] = []  # one for all of its nodes

            def stage_at(nodes: Mapping[str, Mapping[str, Any]], node_id: str) -> str:
                if not asked:
                    asked.append(node_stage.Asked(nodes))
                name = str(nodes[node_id].get("class_type"))
                visited = self.api.node_stages.of_visit(name, classes.get(name), asked[0], node_id, classes)
                return str(visited.stage)

            known = self._of_prompt[key] = prompt_fields.read(
                told.prompt, told.outputs, stage_of, getattr(self.api, "choices", None), stage_at
            )
            _bound(self._of_prompt)
        return known

    def _custom_nodes(self) -> str:
        if self._lock_hash is None:
            self._lock_hash, packs_found = packs.lock()
            self._store_lock(self._lock_hash, packs_found)
        return self._lock_hash

    def _store_lock(self, name: str, found: dict[str, Any]) -> None:
        if live.journal is None:
            return
        path = live.journal.folder / "locks" / f"{name}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(condition.canonical(found))
        except OSError as error:
            log.warning("stagexec: the custom-node lock cannot be written: %s", error)

    def _read_back(
        self,
        told: Accepted,
        used: Used,
        asked: prompt_fields.PromptFields,
        fields: dict[str, Any],
        reasons: dict[str, str],
    ) -> None:
        """What the models were. A run that had them from the cache is told by what its prompt used before."""
        if not used.ended:
            unknown = ("precision", "quantization", "compile_mode", "attention_backend")
            reasons.update(dict.fromkeys(unknown, NOT_ENDED))
            return
        loaders = fingerprint.digest(asked.loaders)
        before = self._models.get(told.prompt_hash)
        if before is None and used.cached:
            before = self._models.get(loaders)
        models = {**(before.models if before else {}), **used.models}
        attention = sorted({*(before.attention if before else ()), *used.attention})
        for key in (told.prompt_hash, loaders):
            self._models[key] = msgspec.structs.replace(used, models=models, attention=attention)
            self._models.move_to_end(key)
        _bound(self._models)
        if not models:
            reasons.update(dict.fromkeys(("precision", "quantization", "compile_mode"), NOT_USED))
        else:
            fields["precision"] = {
                name: f"{one['weights']} weights, {one['compute']} compute" for name, one in models.items()
            }
            fields["quantization"] = _those(models, "quantization")
            fields["compile_mode"] = _those(models, "compile")
            reasons.update(quantization=PLAIN, compile_mode=NOT_COMPILED)
        configured = live.attention_facts.get("configured")
        fields["attention_backend"] = attention or ([configured] if configured and models else None)
        reasons["attention_backend"] = NOT_USED

    def _content(
        self, asked: prompt_fields.PromptFields, used: Used, fields: dict[str, Any], reasons: dict[str, str]
    ) -> None:
        """Hashes of the model files, in the order of work. None is computed while the run is in execution."""
        found: dict[str, list[Any]] = {}
        lost, unread = set(asked.lost), set[str]()
        for one in asked.files:
            try:
                known = self._hash_file().of(one.path, compute=used.ended)
            except OSError:
                lost.add(one.field)
                continue
            if known is None:
                unread.add(one.field)
                continue
            content = [known.sha256, *one.strengths] if one.strengths else known.sha256
            found.setdefault(one.field, []).append(content)
        for field in ("model_hash", "vae_hash", "text_encoder_hash", "lora_hashes"):
            values = found.get(field, [])
            single = len(values) == 1 and field != "lora_hashes"
            whole = field not in lost | unread
            fields[field] = (values[0] if single else values or None) if whole else None
            why = NOT_ENDED if field in unread else NO_FILE
            reasons[field] = prompt_fields.NOT_FOUND if field in lost else why

    def _hash_file(self) -> Hashes:
        if self._hashes is None:
            folder = live.journal.folder if live.journal is not None else Path()
            self._hashes = Hashes(folder, lambda: live.run is not None)
        return self._hashes

    def _delivery(
        self, asked: prompt_fields.PromptFields, used: Used, fields: dict[str, Any], reasons: dict[str, str]
    ) -> None:
        names = ("ffmpeg_version", "ffmpeg_build")
        if asked.encodes and not used.ended:
            reasons.update(dict.fromkeys(names, NOT_ENDED))
        elif asked.encodes:
            version, build, reason = (
                machine.encoder_program() if asked.by_program else machine.encoder_library()
            )
            fields.update(zip(names, (version, build), strict=True))
            reasons.update(dict.fromkeys(names, reason or ""))
        else:
            reasons.update(dict.fromkeys(names, prompt_fields.NO_ENCODER))
        committed = "temporary file, synced, verified, renamed"
        fields["delivery_semantics"] = committed if asked.delivers else "written by the node, then verified"


def _those(models: dict[str, dict[str, Any]], name: str) -> dict[str, str] | None:
    return {model: one[name] for model, one in models.items() if one[name] is not None} or None


def _bound(known: OrderedDict[Any, Any]) -> None:
    while len(known) > REMEMBERED:
        known.popitem(last=False)
