"""Seams beside packs that copy, keep and restore what they find, and modules that wait to be loaded."""

from __future__ import annotations

import copy
import functools
import importlib.util
import pickle
import sys
import types

import pytest

from stagexec.host.seams import Seams
from stagexec.host.tables import SeamRow

HOST = """
    def work(x):
        return x * 2

    class Model:
        def __init__(self):
            self.name = "a"

        def run(self, x):
            return work(x)

        def load(self, models, memory=0):
            return list(models)

        @staticmethod
        def loose(x):
            return work(x)

        @classmethod
        def of(cls, x):
            return cls.__name__, work(x)
"""


def state(seams: Seams, seam: str) -> tuple[str | None, str | None]:
    found = next(one for one in seams.verify() if one["seam"] == seam)
    return found["state"], found["reason"]


def test_a_pack_that_wraps_a_method_taken_off_its_class_keeps_ours_alive(
    host_module, load, seams, row, run
) -> None:
    name = host_module(HOST)
    ours = seams(row("run", f"{name}:Model.run"))
    model = load(name).Model
    taken = model.run

    def theirs(self, x):
        return taken(self, x) + 1

    model.run = theirs
    assert model().run(2) == 5
    assert run.entered == [("sampling", None, "run")]
    found, reason = state(ours, "run")
    assert (found, "theirs" in reason) == ("installed", True)


def test_a_pack_that_puts_a_method_back_puts_ours_back(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    ours = seams(row("run", f"{name}:Model.run"))
    model = load(name).Model
    taken = model.run
    model.run = lambda self, x: 0
    assert state(ours, "run")[0] == "lost"
    model.run = taken
    assert model().run(2) == 4
    assert run.entered == [("sampling", None, "run")]
    assert state(ours, "run") == ("installed", None)
    ours.undo()
    assert type(vars(model)["run"]) is types.FunctionType


def test_a_method_bound_over_no_python_function_is_looked_at_without_a_fault(
    host_module, load, seams, row
) -> None:
    name = host_module(HOST)
    ours = seams(row("work", f"{name}:work"))
    load(name).work = types.MethodType(len, "abc")
    assert state(ours, "work")[0] == "lost"


def test_a_factory_that_leaves_the_hosts_own_in_place_says_so(host_module, load, seams) -> None:
    name = host_module(HOST)
    kept = SeamRow(id="work", target=(f"{name}:work",), kind="replace", why="a test", hosts="the test")
    ours = seams(kept, work=lambda module, old: old)
    load(name)
    assert state(ours, "work") == ("absent", "the host's own stays in its place in this process")


def test_looking_for_node_packs_loads_no_module_that_waits_to_be_loaded(
    host_module, seams, row, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = host_module("raise ImportError('something it needs is missing')")
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "stagexec_test_odd", object())
    ours = seams(row("pack", "some_pack/nodes.py:encode"))
    ours.install_late()
    assert ours.states()[0]["state"] == "absent"


# ---- copies ----------------------------------------------------------------------------------------


def wrapped(host_module, load, seams, row) -> types.ModuleType:
    name = host_module(HOST)
    places = ("work", "Model.run", "Model.loose", "Model.of")
    seams(*(row(f"seam{at}", f"{name}:{place}") for at, place in enumerate(places)))
    return load(name)


def test_a_wrapped_function_is_copied_and_pickled_as_a_function_is(host_module, load, seams, row) -> None:
    host = wrapped(host_module, load, seams, row)
    assert copy.copy(host.work) is host.work
    assert copy.deepcopy({"options": [host.work]})["options"][0] is host.work
    assert pickle.loads(pickle.dumps(host.work)) is host.work
    assert pickle.loads(pickle.dumps(functools.partial(host.work, 4)))() == 8


def test_a_wrapped_method_is_copied_and_pickled_with_its_object(host_module, load, seams, row, run) -> None:
    host = wrapped(host_module, load, seams, row)
    model = host.Model()
    for twin in (copy.deepcopy(model.run), pickle.loads(pickle.dumps(model.run))):
        assert twin.__self__ is not model
        assert twin.__self__.name == "a"
        assert twin(4) == 8
    assert copy.copy(model.run).__self__ is model
    assert len(run.entered) == 4  # `run` and `work` inside it, twice
    host.Model.kept = {"run": host.Model.run}
    assert copy.deepcopy(host.Model.kept)["run"](model, 4) == 8


@pytest.mark.parametrize(("name", "args"), [("loose", (4,)), ("of", (4,)), ("run", (None, 4))])
def test_what_is_taken_off_the_class_is_pickled_by_its_name(
    host_module, load, seams, row, name, args
) -> None:
    host = wrapped(host_module, load, seams, row)
    taken = getattr(host.Model, name)
    assert pickle.loads(pickle.dumps(taken))(*args) == taken(*args)


def test_a_probe_on_a_method_finds_its_argument_behind_the_instance(
    host_module, load, seams, row, run
) -> None:
    name = host_module(HOST)
    seams(row("load", f"{name}:Model.load", kind="probe", stage=None, probe="model_load"))
    assert load(name).Model().load(["a", "b"], 7) == ["a", "b"]
    assert [(mark, detail["count"]) for mark, detail in run.marks] == [("model_load", 2)]
