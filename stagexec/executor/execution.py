"""The two coroutines of our loop that packs see in the stack, by the host's names, in a file of its name.

Arguments, local names and what they call are the host's: packs walk up the stack to `execute` or
`execute_async` and read `prompt_id`, `unique_id`, `extra_data`, `execution_list` there. What is done, and in
which order, is decided in visit.py and prompt.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagexec.executor import lane
from stagexec.executor.prompt import Prompt, finish_direct
from stagexec.executor.queue import begin
from stagexec.executor.steps import Await, to_await
from stagexec.executor.visit import Visit


def make_execute(api: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Our replacement of the host's `execution.execute`, a coroutine function of the same arguments."""

    async def execute(
        server: Any,
        dynprompt: Any,
        caches: Any,
        current_item: str,
        extra_data: Any,
        executed: Any,
        prompt_id: str,
        execution_list: Any,
        pending_subgraph_results: Any,
        pending_async_nodes: Any,
        ui_outputs: Any,
    ) -> Any:
        node = dynprompt.get_node(current_item)
        visit = Visit(
            api,
            lane.current(),
            node,
            lane.Given(
                server,
                dynprompt,
                caches,
                current_item,
                extra_data,
                executed,
                prompt_id,
                execution_list,
                pending_subgraph_results,
                pending_async_nodes,
                ui_outputs,
            ),
        )
        # What follows here is read by packs alone.
        unique_id = current_item
        real_node_id = dynprompt.get_real_node_id(unique_id)  # noqa: F841
        display_node_id = dynprompt.get_display_node_id(unique_id)  # noqa: F841
        parent_node_id = dynprompt.get_parent_node_id(unique_id)  # noqa: F841
        inputs, class_type = node["inputs"], node["class_type"]  # noqa: F841
        send, value = visit.send, None
        while True:
            try:
                step = send(value)
            except StopIteration as done:
                value = None  # an error in a local of a frame in its own traceback would be garbage
                return done.value
            class_def, input_data_all, obj = visit.class_def, visit.inputs, visit.node_object  # noqa: F841
            try:
                value = step()
                if type(step) is Await and to_await(value):
                    value = await value
                send = visit.send
            except BaseException as error:  # noqa: BLE001 (the visit has the host's `except` clauses)
                send, value = visit.throw, error

    execute.__wrapped__ = original  # type: ignore[attr-defined]
    execute.__qualname__, execute.__module__ = "execute", original.__module__
    return execute


async def execute_async(
    self: Any,
    prompt: Any,
    prompt_id: str,
    extra_data: Any = {},  # noqa: B006 (the host's own signature)
    execute_outputs: Any = [],  # noqa: B006
) -> None:
    """Execute a prompt on the calling event loop: a method of our executor."""
    playing = lane.claim(self, lambda: begin(self, prompt, prompt_id, extra_data, execute_outputs))
    done = False
    try:
        work = Prompt(playing, prompt, prompt_id, extra_data, execute_outputs)
        executed, ui_node_outputs = work.executed, work.ui_outputs  # noqa: F841 (read by packs, as below)
        pending_subgraph_results, pending_async_nodes = work.expanding, work.awaiting  # noqa: F841
        send, value = work.send, None
        while not done:
            try:
                step = send(value)
            except StopIteration:
                value, done = None, True
                continue
            dynamic_prompt, execution_list, node_id = work.dynprompt, work.nodes, work.node_id  # noqa: F841
            try:
                value = step()
                if type(step) is Await and to_await(value):
                    value = await value
                send = work.send
            except BaseException as error:  # noqa: BLE001 (nothing catches it there)
                send, value = work.throw, error
    finally:
        playing.leave()
        if playing.direct:
            finish_direct(self, playing.run, filed=done)
