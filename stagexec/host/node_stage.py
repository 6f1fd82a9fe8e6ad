"""Which stage a node class stands for, and which a visit of it is in: by the tables, else by its types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from stagexec.host import node_place
from stagexec.host.node_rules import CLOSES_LOOP, PIXELS, SAMPLER_SETUP, VALUES, Shape, by_type
from stagexec.host.tables import NodeRow
from stagexec.record import safe
from stagexec.record.guard import guarded

Answer = tuple[str, str | None, str]

MATCHED = "COMFY_MATCHTYPE_V3"
"""A socket that has the type of what is linked to another."""


class Visited(NamedTuple):
    """The stage of a visit outside the seams in it. `hint`: the likely one, where it is `node_other`."""

    stage: str
    part: str | None
    origin: str
    hint: str | None = None


class Asked:
    """A prompt as it was asked for, before anything has grown, in the shape of the host's graph."""

    def __init__(self, prompt: Mapping[str, Mapping[str, Any]]) -> None:
        self.original_prompt = {
            node_id: {
                "class_type": node.get("class_type"),
                "inputs": node["inputs"] if isinstance(node.get("inputs"), Mapping) else {},
            }
            for node_id, node in prompt.items()
        }


class Judged(NamedTuple):
    """What is known of a class."""

    stage: str
    """The stage it stands for, whether it does nothing else or not."""
    part: str | None
    origin: str
    visited: Visited
    """What a visit of it is in where its place in the graph does not matter, or is not known."""
    by_place: bool
    """Postprocessing behind a decoder, and preparation before a sampler."""
    node: node_place.Kind
    """What its place in the graph says of others."""


class NodeStages:
    """Answers for node classes, asked once per class object; `table` comes from `tables.load().nodes`."""

    def __init__(self, table: Mapping[str, NodeRow]) -> None:
        self.table = table
        self._known: dict[tuple[str, int], tuple[Any, Judged]] = {}
        self._places: WeakKeyDictionary[Any, node_place.Places] = WeakKeyDictionary()
        self.choices: dict[str, Mapping[str, frozenset[str]]] = {}
        """Class name -> what it lists for its inputs, of classes that were asked for their types."""

    def stage_of(self, class_name: str, class_def: Any) -> Answer:
        """(stage, part, origin) that a node class stands for; origin is `table`, `type` or `none`.

        Never raises: a class whose types cannot be had is `node_other`, origin `none`.
        """
        return self.judged(class_name, class_def)[:3]

    def judged(self, class_name: str, class_def: Any) -> Judged:
        """All that is known of a node class."""
        key = (class_name, id(class_def))
        known = self._known.get(key)
        if known is None:
            # The class is kept, so that its id stays its own.
            known = self._known[key] = (class_def, self._ask(class_name, class_def))
        return known[1]

    def of_visit(
        self, class_name: str, class_def: Any, dynprompt: Any, node_id: str, classes: Mapping[str, Any]
    ) -> Visited:
        """The stage of a visit: of its class, and for pixels in and out by its place in the graph.

        Never raises: what cannot be told is `node_other`, origin `none`.

        `dynprompt`: the host's graph of the prompt in execution. `classes`: the host's class table.
        """
        visited = self._visited(class_name, class_def, dynprompt, node_id, classes)
        return visited or Visited("node_other", class_name, "none")

    @guarded
    def _visited(
        self, class_name: str, class_def: Any, dynprompt: Any, node_id: str, classes: Mapping[str, Any]
    ) -> Visited:
        judged = self.judged(class_name, class_def)
        if not judged.by_place:
            return judged.visited
        place = self._place(dynprompt, node_id, classes) or node_place.UNKNOWN
        if place is node_place.DECODED:
            return Visited(judged.stage, judged.part, judged.origin)
        if place is node_place.CONTROL:
            return Visited("conditioning", "control", judged.origin)
        if place is node_place.PREPARES:
            return judged.visited._replace(hint="conditioning")
        return judged.visited

    @guarded
    def _place(self, dynprompt: Any, node_id: str, classes: Mapping[str, Any]) -> str | None:
        places = self._places.get(dynprompt)
        if places is None:

            def kind_of(class_name: str) -> node_place.Kind:
                return self.judged(class_name, classes.get(class_name)).node

            places = self._places[dynprompt] = node_place.Places(dynprompt, kind_of)
        return places.of(node_id)

    def _ask(self, class_name: str, class_def: Any) -> Judged:
        shape = shape_of(class_name, class_def)
        if shape is not None:
            self.choices[class_name] = shape.choices
        row = self.table.get(class_name)
        if row is not None:
            sure, origin = row.hint is None, "table"
            stage, part = (row.stage, row.part) if row.hint is None else (row.hint, None)
        else:
            found = by_type(shape) if shape is not None else None
            stage, part, sure = found if found is not None else ("node_other", class_name, True)
            origin = "type" if found is not None else "none"
        return judge(class_name, (stage, part, origin), sure, shape)


def judge(class_name: str, answer: Answer, sure: bool, shape: Shape | None) -> Judged:
    """Put together what is known of a class whose stage is `answer`."""
    stage, part, origin = answer
    by_place = sure and stage == "postprocess"
    hint = stage if stage != "node_other" and (by_place or not sure) else None
    visited = Visited("node_other", class_name, origin, hint) if hint else Visited(stage, part, origin)
    return Judged(stage, part, origin, visited, by_place, kind_of(stage, shape))


def kind_of(stage: str, shape: Shape | None) -> node_place.Kind:
    """What a class of this stage and shape does to the graph around it."""
    if shape is None:
        return node_place.NOTHING_KNOWN
    setup = bool(shape.works) and shape.works <= SAMPLER_SETUP
    makes = stage in ("sampling", "vae_decode") and not setup
    return node_place.Kind(
        makes=makes,
        carries=tuple(not set(kind.split(",")) <= PLAIN for kind in shape.outputs),
        pixels=tuple(not HANDED.isdisjoint(kind.split(",")) for kind in shape.outputs),
        works_on=shape.takes(*PIXELS) and shape.gives(*PIXELS) and stage in ("postprocess", "node_other"),
        controls=not makes and shape.takes("CONTROL_NET", "MODEL_PATCH") and _takes_pictures_in(shape),
        conditions=stage == "conditioning",
        shows=shape.is_output and stage == "native_materialize",
        closes_loop=shape.takes(CLOSES_LOOP),
    )


def _takes_pictures_in(shape: Shape) -> bool:
    return shape.takes("IMAGE") and not shape.gives(*PIXELS)


HANDED = PIXELS | {"*", MATCHED}
PLAIN = VALUES - {"*", "MASK", MATCHED, "COMFY_AUTOGROW_V3", "COMFY_DYNAMICCOMBO_V3", "LIST", "ARRAY"}
"""What holds no pixels and no latents."""


@guarded
def shape_of(class_name: str, class_def: Any) -> Shape | None:
    """The shape of a V1 or V3 node class, from INPUT_TYPES() (called once) and RETURN_TYPES."""
    # A question of our own, beside the host's: the node's own fault is the host's to report, if it matters.
    groups = safe.ask(None, _input_types, class_def) or {}
    return shape_from(
        class_name,
        groups,
        getattr(class_def, "RETURN_TYPES", None) or (),
        is_output=bool(getattr(class_def, "OUTPUT_NODE", False)),
        is_remote=bool(getattr(class_def, "API_NODE", False)),
    )


def shape_from(class_name: str, groups: Any, outputs: Any, *, is_output: bool, is_remote: bool) -> Shape:
    """The shape of a class from its inputs as INPUT_TYPES() or /object_info give them, and its outputs."""
    inputs: dict[str, str] = {}
    choices: dict[str, frozenset[str]] = {}
    matched: set[str] = set()
    for group in ("required", "optional"):
        for name, spec in dict(groups.get(group) or {}).items():
            inputs[name] = _type_name(spec[0] if isinstance(spec, (tuple, list)) and spec else spec)
            if inputs[name] == MATCHED:
                inputs[name] = _allowed(spec)
                matched.add(inputs[name])
            elif inputs[name] == "COMBO":
                choices[name] = _choices(spec)
    given = tuple(_type_name(one) for one in outputs)
    if len(matched) == 1:  # with two such templates it is not known which one the output follows
        given = tuple(next(iter(matched)) if one == MATCHED else one for one in given)
    return Shape(class_name, inputs, given, is_output, is_remote, choices)


def _allowed(spec: Any) -> str:
    """The types that a matching input can have, with commas between them."""
    options = spec[1] if isinstance(spec, (tuple, list)) and len(spec) > 1 else None
    template = options.get("template") if isinstance(options, dict) else None
    allowed = template.get("allowed_types") if isinstance(template, dict) else None
    return allowed if isinstance(allowed, str) and allowed != "*" else MATCHED


def _choices(spec: Any) -> frozenset[str]:
    """The texts that a choice lists: as a list in place of its type, or as an option beside it."""
    kind, options = (*spec, None, None)[:2] if isinstance(spec, (tuple, list)) else (spec, None)
    listed = (
        kind
        if isinstance(kind, (tuple, list))
        else options.get("options")
        if isinstance(options, dict)
        else ()
    )
    known = listed if isinstance(listed, (tuple, list)) else ()
    return frozenset(one for one in known if isinstance(one, str))


def _input_types(class_def: Any) -> Any:
    return class_def.INPUT_TYPES()


def _type_name(kind: Any) -> str:
    return str(kind) if isinstance(kind, str) else "COMBO"
