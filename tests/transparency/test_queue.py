"""Cancels, deletions, order, freeing of memory: the queue behaves alike and says the same."""

from __future__ import annotations

import time

from tests.host import graphs as g
from tests.transparency.observe import Observer
from tests.transparency.twins import Twins, messages

BUSY = 1.2
"""Seconds that a node sleeps while the scene talks to the server."""
CALLED = 0.2
"""Seconds after which an announced node has been called: a cancel before the call ends elsewhere."""


def busy(at: Observer, seconds: float = BUSY, prefix: str = "") -> str:
    """Submit a prompt and return once its node sleeps."""
    prompt_id = at.submit(g.slow(seconds, at.prefix + prefix, at.color))
    at.until("executing", prompt_id, node="2")
    time.sleep(CALLED)
    return prompt_id


def test_a_cancel_inside_a_node_ends_alike(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        running = busy(at)
        at.post("/interrupt", {})
        at.finish(running)
        at.run(g.slow(0.05, at.prefix, at.color))

    seen = twins.same("cancel", scene)
    assert len(messages(seen, "execution_interrupted")) == 1


def test_a_cancel_by_id_hits_only_the_prompt_that_runs(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        running = busy(at)
        at.post("/interrupt", {"prompt_id": "00000000-0000-4000-8000-000000000000"})
        at.post("/interrupt", {"prompt_id": running})
        at.finish(running)

    seen = twins.same("cancel by id", scene)
    assert len(messages(seen, "execution_interrupted")) == 1


def test_jobs_are_cancelled_alike_running_waiting_and_done(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        running = busy(at)
        waiting = at.submit(g.invert_save(at.prefix, at.color))
        last = at.submit(g.invert_save(f"{at.prefix}last", at.color))
        at.post(f"/api/jobs/{waiting}/cancel", {})
        at.post(f"/api/jobs/{running}/cancel", {})
        at.wait(last)
        at.look(running)
        at.look(last)
        at.post(f"/api/jobs/{running}/cancel", {})
        at.post("/api/jobs/cancel", {"job_ids": [last, waiting]})
        at.look(waiting)
        at.jobs()

    seen = twins.same("cancel jobs", scene)
    assert len(messages(seen, "execution_interrupted")) == 1


def test_an_async_node_is_cancelled_alike(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        running = at.submit(g.async_sleeps(2, BUSY, at.color))
        at.until("executing", running, node="3")
        time.sleep(CALLED)
        at.post("/interrupt", {})
        at.finish(running)

    seen = twins.same("cancel async", scene)
    assert len(messages(seen, "execution_interrupted")) == 1


def test_a_cancel_of_nothing_changes_nothing(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        at.post("/interrupt", {})
        at.run(g.invert_save(at.prefix, at.color))

    seen = twins.same("cancel nothing", scene)
    assert messages(seen, "execution_success")


def test_waiting_prompts_are_shown_deleted_and_wiped_alike(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        running = busy(at)
        waiting = [at.submit(g.invert_save(f"{at.prefix}{each}", at.color)) for each in range(4)]
        for prompt_id in (running, waiting[0]):
            at.look(prompt_id)
        at.jobs()
        at.post("/queue", {"delete": [waiting[1]]})
        at.get("/queue")
        at.post("/queue", {"clear": True})
        at.get("/queue")
        late = at.submit(g.invert_save(f"{at.prefix}late", at.color))
        at.wait(late)
        at.look(running)
        at.look(late)
        at.jobs()

    seen = twins.same("delete", scene)
    assert len(messages(seen, "execution_success")) == 2


def test_prompts_run_in_the_same_order(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        running = busy(at)
        plain = [at.submit(g.invert_save(f"{at.prefix}{each}", at.color)) for each in range(2)]
        front = at.submit(g.invert_save(f"{at.prefix}front", at.color), front=True)
        at.get("/queue")
        at.wait(plain[-1])
        for prompt_id in (running, front, *plain):
            at.look(prompt_id)

    seen = twins.same("order", scene)
    assert len(messages(seen, "execution_success")) == 4


def test_history_is_deleted_and_cleared_alike(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        first, second = (at.run(g.invert_save(at.prefix, at.color)) for _ in range(2))
        at.post("/history", {"delete": [first]})
        at.look(first)
        at.look(second)
        at.get("/history?max_items=1")
        at.post("/history", {"clear": True})
        at.get("/history")

    seen = twins.same("history", scene)
    assert len(messages(seen, "execution_success")) == 2


def test_freeing_memory_drops_the_cache_alike(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        prompt = g.models(1, at.prefix, at.color)
        at.run(prompt)
        at.run(prompt)
        for flags in ({"unload_models": True}, {"free_memory": True}):
            at.post("/free", flags)
            time.sleep(CALLED)  # the worker wakes up for it; a prompt that comes first is executed first
            at.run(prompt)

    seen = twins.same("free", scene)
    assert [bool(each["nodes"]) for each in messages(seen, "execution_cached")] == [False, True, True, False]
