"""The seam engine on a pretend host: order of patches, states, exactly one call, undo."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading

import pytest
import wrapt

from stagexec.host.probes import PROBES, Probe
from stagexec.host.seams import SeamRefused, Seams
from stagexec.host.tables import SeamRow, Tables

HOST = """
    import functools
    calls = []

    def work(x, extra=2):
        calls.append(x)
        if isinstance(x, BaseException):
            raise x
        return x * extra

    async def wait(x):
        calls.append(x)
        return x

    def frames():
        yield 1

    number = 3

    class Model:
        def run(self, x):
            return work(x)

        @staticmethod
        def loose(x):
            return work(x)

        @classmethod
        def of(cls, x):
            return cls, work(x)

    class Sub(Model):
        pass
"""


def state(seams: Seams, seam: str) -> tuple[str | None, str | None]:
    found = next(one for one in seams.verify() if one["seam"] == seam)
    return found["state"], found["reason"]


# ---- install ---------------------------------------------------------------------------------------


def test_a_seam_is_installed_when_its_module_is_imported_and_not_before(
    host_module, load, seams, row
) -> None:
    name = host_module(HOST)
    ours = seams(row("work", f"{name}:work"))
    assert state(ours, "work") == ("absent", "its module has not been imported")
    load(name)
    assert state(ours, "work") == ("installed", None)


def test_a_module_that_was_imported_earlier_is_patched_at_once(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    load(name)
    assert state(seams(row("work", f"{name}:work")), "work")[0] == "installed"


def test_a_from_import_after_the_defining_module_gets_the_wrapper(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    user = host_module(f"from {name} import work\ndef use(): return work(4)")
    seams(row("work", f"{name}:work"))
    assert load(user).use() == 8
    assert run.entered == [("sampling", None, "work")]


def test_the_first_spelling_that_exists_wins(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    ours = seams(row("work", [f"{name}:old_name", f"{name}:work", f"{name}:Model.run"]))
    load(name)
    assert ours.states()[0]["target"] == f"{name}:work"
    assert not isinstance(vars(load(name).Model)["run"], wrapt.FunctionWrapper)


def test_a_missing_attribute_is_absent(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    ours = seams(row("gone", f"{name}:Model.gone"))
    load(name)
    assert state(ours, "gone") == ("absent", "that module has no such attribute")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("number", "not callable: int"),
        ("Model", "a class"),
        ("frames", "a generator function"),
        ("Sub.run", "inherited from"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_with_a_reason(
    host_module, load, seams, row, target, reason
) -> None:
    name = host_module(HOST)
    ours = seams(row("odd", f"{name}:{target}"))
    load(name)
    found, why = state(ours, "odd")
    assert found == "refused"
    assert reason in why


def test_strict_makes_a_refusal_end_the_process_past_every_except_exception(
    host_module, load, seams, row
) -> None:
    name = host_module(HOST)
    seams(row("odd", f"{name}:number"), strict=True)
    user = host_module(f"try:\n    import {name}\nexcept Exception:\n    pass")
    with pytest.raises(SeamRefused, match=r"seam odd .* was refused: not callable"):
        load(user)


def test_a_second_install_is_refused(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work"))
    load(name)
    second = seams(row("again", f"{name}:work"))
    assert state(second, "again") == ("refused", "already patched by stagexec, as seam work")


def test_after_undo_the_same_place_can_be_installed_again(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work")).undo()
    module = load(name)
    assert not hasattr(module.work, "__wrapped__")
    assert state(seams(row("again", f"{name}:work")), "again")[0] == "installed"
    module.work(1)
    assert run.entered == [("sampling", None, "again")]


def test_a_file_target_is_found_by_the_end_of_its_path(host_module, load, seams, row, run, tmp_path) -> None:
    name = host_module(HOST)
    module = load(name)
    ours = seams(row("pack", f"{tmp_path.name}/{name}.py:Model.run"))
    assert state(ours, "pack")[0] == "absent"
    ours.install_late()
    assert state(ours, "pack")[0] == "installed"
    assert module.Model().run(5) == 10
    assert len(run.entered) == 1


# ---- calls -----------------------------------------------------------------------------------------


def test_outside_a_run_the_call_passes_through(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work"))
    module = load(name)
    assert module.work(3, extra=5) == 15
    assert module.calls == [3]


@pytest.mark.parametrize("kind", ["run", "loose", "of"])
def test_methods_static_methods_and_class_methods_stay_what_they_are(
    host_module, load, seams, row, run, kind
) -> None:
    name = host_module(HOST)
    seams(row("method", f"{name}:Model.{kind}"))
    module = load(name)
    expected = (module.Model, 6) if kind == "of" else 6
    assert getattr(module.Model(), kind)(3) == expected
    if kind != "run":
        assert getattr(module.Model, kind)(3) == expected
        assert getattr(module.Sub, kind)(3) == ((module.Sub, 6) if kind == "of" else 6)
    assert run.stack == []
    assert run.entered[0] == ("sampling", None, "method")


def test_the_signature_and_name_of_the_host_stay_visible(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work"))
    work = load(name).work
    assert str(inspect.signature(work)) == "(x, extra=2)"
    assert (work.__name__, work.__module__) == ("work", name)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_passes_and_the_host_was_called_once(host_module, load, seams, row, run, error) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work"))
    module = load(name)
    with pytest.raises(type(error)):
        module.work(error)
    assert module.calls == [error]
    assert run.stack == []
    assert run.failures == [(error, "sampling")]


def test_a_call_inside_an_except_block_is_no_failure(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work"))
    module = load(name)
    try:
        raise ValueError("earlier")
    except ValueError:
        module.work(1)
    assert run.failures == []


def test_a_call_on_another_thread_is_a_span_of_that_thread(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work", part="step"))
    module = load(name)
    thread = threading.Thread(target=module.work, args=(2,), name="offload")
    thread.start()
    thread.join()
    assert run.entered == []
    assert run.spans == [("thread:offload", "work", 0, 1, "sampling", None, {"part": "step"})]


def test_a_row_can_leave_other_threads_alone(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work", threads=False))
    module = load(name)
    thread = threading.Thread(target=module.work, args=(2,))
    thread.start()
    thread.join()
    assert (module.calls, run.spans, run.entered) == ([2], [], [])


def test_a_row_stays_out_inside_a_seam_that_has_the_time(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("inner", f"{name}:work", not_inside=("outer",)), row("outer", f"{name}:Model.run"))
    module = load(name)
    module.Model().run(1)
    module.work(1)
    assert [one[2] for one in run.entered] == ["outer", "inner"]


def test_a_row_stays_out_while_a_stage_is_open_that_it_is_part_of(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("inner", f"{name}:work", not_while=("encode_mux",)))
    module = load(name)
    run.enter("encode_mux")
    module.work(1)
    run.leave(0)
    module.work(1)
    assert [one[2] for one in run.entered] == [None, "inner"]


def test_what_is_written_while_that_stage_is_open_is_told_all_the_same(
    host_module, load, seams, row, run, monkeypatch
) -> None:
    name = host_module(HOST)
    told = []
    probe = Probe(needs=("x",), before=lambda _run, arguments: told.append(arguments["x"]))
    monkeypatch.setitem(PROBES, "told", probe)
    seams(row("inner", f"{name}:work", not_while=("encode_mux",), probe="told"))
    module = load(name)
    run.enter("encode_mux")
    assert module.work(1) == module.work(x=1)
    run.leave(0)
    module.work(2)
    assert (told, module.calls) == ([1, 1, 2], [1, 1, 2])
    assert [one[2] for one in run.entered] == [None, "inner"]


def test_a_row_can_be_limited_to_the_inside_of_a_seam(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("inner", f"{name}:work", inside=("outer",)), row("outer", f"{name}:Model.run"))
    module = load(name)
    module.work(1)
    module.Model().run(1)
    assert [one[2] for one in run.entered] == ["outer", "inner"]


def test_the_part_can_be_the_class_of_the_node_in_execution(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("up", f"{name}:work", stage="postprocess", part="<node class>"))
    load(name).work(1)
    assert run.entered == [("postprocess", "SomeNode", "up")]


# ---- coroutines ------------------------------------------------------------------------------------


def test_a_coroutine_function_stays_one_and_its_awaiting_is_timed(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("wait", f"{name}:wait"))
    module = load(name)
    assert inspect.iscoroutinefunction(module.wait)

    async def main() -> None:
        run.task = asyncio.current_task()
        pending = module.wait(5)
        assert run.entered == [], "making the coroutine is not running it"
        assert await pending == 5

    asyncio.run(main())
    assert run.entered == [("sampling", None, "wait")]
    assert run.stack == []


def test_a_coroutine_in_another_task_is_a_span(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("wait", f"{name}:wait"))
    module = load(name)

    async def main() -> None:
        run.task = asyncio.current_task()
        await asyncio.gather(module.wait(1), module.wait(2))

    asyncio.run(main())
    assert run.entered == []
    assert [one[:2] for one in run.spans] == [("task:unknown", "wait")] * 2


# ---- neighbours ------------------------------------------------------------------------------------


def pack_wraps(module) -> None:
    """What packs do: keep the old one in a closure, without functools.wraps."""
    before = module.work

    def theirs(x, extra=2):
        return before(x, extra) + 1

    module.work = theirs


def test_a_pack_that_wraps_ours_later_keeps_it_alive(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    ours = seams(row("work", f"{name}:work"))
    module = load(name)
    pack_wraps(module)
    assert module.work(2) == 5
    assert len(run.entered) == 1
    found, reason = state(ours, "work")
    assert found == "installed"
    assert "theirs" in reason


def test_a_pack_that_was_there_first_is_wrapped_by_ours(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    module = load(name)
    pack_wraps(module)
    theirs = module.work
    ours = seams(row("work", f"{name}:work"))
    assert module.work(2) == 5
    assert module.calls == [2]
    assert len(run.entered) == 1
    ours.undo()
    assert module.work is theirs


def test_a_pack_that_keeps_ours_in_a_global_is_followed(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    ours = seams(row("run", f"{name}:Model.run"))
    pack = host_module(
        f"""
        import {name} as host
        original = host.Model.__dict__["run"]
        def theirs(self, x):
            return original(self, x)
        host.Model.run = theirs
        """
    )
    load(pack)
    assert state(ours, "run")[0] == "installed"


def test_wraps_and_partial_are_followed_too(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    ours = seams(row("work", f"{name}:work"))
    module = load(name)
    inner = module.work
    module.work = functools.wraps(inner)(functools.partial(inner, extra=3))
    assert state(ours, "work")[0] == "installed"


def test_a_pack_that_puts_the_original_back_makes_the_seam_lost(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    ours = seams(row("work", f"{name}:work"))
    module = load(name)
    module.work = module.work.__wrapped__
    assert state(ours, "work") == ("lost", "the original was put back")


def test_a_pack_that_replaces_ours_makes_the_seam_lost_and_is_named(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    ours = seams(row("work", f"{name}:work"))
    load(name).work = len
    found, reason = state(ours, "work")
    assert found == "lost"
    assert "builtins:len" in reason


# ---- undo ------------------------------------------------------------------------------------------


def test_undo_puts_back_exactly_what_stood_there(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    ours = seams(row("a", f"{name}:work"), row("b", f"{name}:Model.loose"), row("c", f"{name}:Model.of"))
    module = load(name)
    ours.undo()
    assert inspect.isfunction(module.work)
    assert type(vars(module.Model)["loose"]) is staticmethod
    assert type(vars(module.Model)["of"]) is classmethod
    assert {one["reason"] for one in ours.states()} == {"undone"}


def test_undo_silences_the_wrapper_that_others_took_by_from_import(
    host_module, load, seams, row, run
) -> None:
    name = host_module(HOST)
    user = host_module(f"from {name} import work\ndef use(): return work(4)")
    ours = seams(row("work", f"{name}:work"))
    module = load(user)
    ours.undo()
    assert module.use() == 8
    assert run.entered == []


def test_undo_under_a_pack_leaves_the_pack_and_goes_inert(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    ours = seams(row("work", f"{name}:work"))
    module = load(name)
    pack_wraps(module)
    theirs = module.work
    (after,) = ours.undo()
    assert module.work is theirs
    assert (after["state"], "inert" in after["reason"]) == ("lost", True)
    assert module.work(2) == 5
    assert run.entered == []


def test_a_module_imported_after_undo_is_not_touched(host_module, load, seams, row) -> None:
    name = host_module(HOST)
    seams(row("work", f"{name}:work")).undo()
    assert inspect.isfunction(load(name).work)


# ---- replace ---------------------------------------------------------------------------------------


def replacing(seam: str, target: str) -> SeamRow:
    return SeamRow(id=seam, target=(target,), kind="replace", why="a test", hosts="the test")


def test_a_replacement_gets_the_module_and_the_original(host_module, load, seams) -> None:
    name = host_module(HOST)
    ours = seams(replacing("model", f"{name}:Model"), model=lambda module, old: type("Ours", (old,), {}))
    module = load(name)
    assert module.Model.__name__ == "Ours"
    assert issubclass(module.Model, module.Sub.__mro__[1])
    assert state(ours, "model") == ("installed", None)
    ours.undo()
    assert module.Model is module.Sub.__mro__[1]


def test_a_pack_that_subclasses_a_replacement_does_not_lose_it(host_module, load, seams) -> None:
    name = host_module(HOST)
    ours = seams(replacing("model", f"{name}:Model"), model=lambda module, old: type("Ours", (old,), {}))
    module = load(name)
    module.Model = type("Theirs", (module.Model,), {})
    assert state(ours, "model")[0] == "installed"


def test_a_replacement_nobody_gave_is_absent(host_module, load, seams) -> None:
    name = host_module(HOST)
    ours = seams(replacing("model", f"{name}:Model"))
    load(name)
    assert state(ours, "model") == ("absent", "nothing takes its place in this process")


def test_a_factory_that_fails_is_a_refusal_and_the_import_lives_on(host_module, load, seams) -> None:
    name = host_module(HOST)

    def broken(module, old):
        raise TypeError("no such base")

    ours = seams(replacing("model", f"{name}:Model"), model=broken)
    assert load(name).Model.__name__ == "Model"
    assert state(ours, "model") == ("refused", "TypeError: no such base")


def test_states_name_every_row_of_the_tables() -> None:
    row = SeamRow(
        id="x", target=("nowhere:f",), kind="stage", stage="sampling", why="a test", hosts="the test"
    )
    assert Seams(Tables(seams={"x": row})).states() == [
        {"seam": "x", "target": "nowhere:f", "state": "absent", "reason": "its module has not been imported"}
    ]
