"""The host's worker under supervision: when it dies, its prompt is ended and another worker takes its place.

The host starts one thread that takes prompts from the queue for as long as the process lives. Whatever
escapes there ends it without a word to clients: a pack's wrapper that raises, a console that cannot show an
error, an exit in a node. The queue then fills up for ever. We put our function in the place of main.py's
`prompt_worker` just before the thread is made of it; it calls the host's once and looks at what comes out.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagexec.executor import loop, telling, turn
from stagexec.executor.prompt import executed_fields
from stagexec.executor.queue import QueueView
from stagexec.host.wrap import Refusal
from stagexec.record import live, safe, words, worker
from stagexec.record.guard import guarded
from stagexec.record.safe import log

TARGET = "__main__:prompt_worker"

PAUSES_S = (0.0, 0.1, 0.5, 2.0)
"""Before each new worker, while none of those before it took a prompt. After the last one it is dead."""


def make_supervised(api: Any, original: Any) -> Callable[..., Any]:
    """What takes the place of `prompt_worker(queue, server)`."""
    if not callable(original):
        raise Refusal(f"not callable: {type(original).__name__}")
    supervisor = Supervisor(api)

    @functools.wraps(original)
    def prompt_worker(*args: Any, **kwargs: Any) -> Any:
        supervisor.begins()
        done = False
        try:
            result = original(*args, **kwargs)
            done = True
            return result
        finally:
            if not done:
                supervisor.ended(sys.exc_info()[1], args, kwargs)

    supervisor.target = prompt_worker
    return prompt_worker


def outlook(tree: Path) -> str:
    """What `doctor` says of the seam: main.py does not run there, so nothing can be in place."""
    found = ast.parse((tree / "main.py").read_text(encoding="utf-8")).body
    if any(isinstance(one, ast.FunctionDef) and one.name == "prompt_worker" for one in found):
        return "put in place when main.py starts its worker"
    return "main.py has no such function: a worker that dies is not replaced"


class Supervisor:
    """Ends what a dying worker leaves behind, and starts the next one."""

    target: Callable[..., Any]

    def __init__(self, api: Any) -> None:
        self.api = api
        self._died: worker.Detail | None = None
        """Of which the next worker is to tell that it takes the place."""
        self._taken: Any = None
        self._in_a_row = 0

    @guarded
    def begins(self) -> None:
        """A worker begins on the calling thread."""
        worker.state.begins()
        detail, self._died = self._died, None
        if detail is None:
            return
        worker.state.tell(True)
        detail["restarts"] = worker.state.restarts
        where = detail["exception_type"], detail["at"]
        log.error("stagexec: the worker died of %s at %s; another has taken its place.", *where)
        live.journal_event(None, "mark", source="process", name="worker_restarted", detail=detail)

    @guarded
    def ended(self, error: BaseException | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The worker on the calling thread dies of `error`, which goes on its way after this."""
        if error is None or sys.is_finalizing():
            return
        queue, server = [*args, *kwargs.values(), None, None][:2]
        detail = detail_of(error)
        worker.state.ends(detail)
        self._end_prompts(queue, server, error)
        pause = self._pause(queue)
        self._died = detail
        if pause is not None and self._start(pause, args, kwargs):
            return
        self._died = None
        worker.state.tell(False)
        log.error(
            "stagexec: THE WORKER IS DEAD (%s at %s) and no other could take its place: prompts that wait "
            "will not be executed. Restart ComfyUI.",
            safe.named(error),
            detail["at"],
        )
        live.journal_event(None, "mark", source="process", name="worker_died", detail=detail)
        live.lose_waiting("worker_died")

    def _pause(self, queue: Any) -> float | None:
        """How long to wait before the next worker; None when there is to be none."""
        taken = safe.ask(None, lambda: queue.task_counter)
        self._in_a_row = self._in_a_row + 1 if taken == self._taken else 0
        self._taken = taken
        return PAUSES_S[self._in_a_row] if self._in_a_row < len(PAUSES_S) else None

    def _start(self, pause_s: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        time.sleep(pause_s)
        daemon = threading.current_thread().daemon
        following = threading.Thread(target=self.target, args=args, kwargs=kwargs, daemon=daemon)
        return safe.attempt("starting another worker", following.start)

    @guarded
    def _end_prompts(self, queue: Any, server: Any, error: BaseException) -> None:
        """Give an end to what this thread was executing: in the ledger, in the queue, and for its client."""
        run, last = live.current_for_thread(), turn.over()
        error = safe.behind_log(error)
        loop.escaped_error(self.api, run, error, "worker_escape")
        left = items_left(queue)
        for item_id, item in left:
            Leftover(self.api, queue, server, item_id, item).end(error, run, last)
        if not left and last is not None:  # filed, but its client may not have been told yet
            client_id = getattr(server, "client_id", None)
            telling.send(server, "executing", {"node": None, "prompt_id": last.prompt_id}, client_id)
        if run is not None and not run.executed:
            live.finish(run, executed_fields(run, None, {}), {})


def detail_of(error: BaseException) -> worker.Detail:
    """What the ledger keeps of a worker's end."""
    text = live.message_of(error)
    return {
        "exception_type": safe.ask(safe.kind_of(error), words.class_name, type(error)),
        "at": safe.place_of(error),
        "message": text and safe.escaped(text, "utf-8"),
        "restarts": worker.state.restarts,
    }


def items_left(queue: Any) -> list[tuple[Any, Any]]:
    """(item id, item) of what the queue takes for running and no other thread that lives executes."""

    def look() -> list[tuple[Any, Any]]:
        with queue.mutex:
            return list(queue.currently_running.items())

    here = threading.get_ident()
    others = {
        one.prompt_id
        for thread, one in list(live.running.items())
        if thread != here and one.worker.is_alive()
    }
    nothing: list[tuple[Any, Any]] = []
    return [one for one in safe.ask(nothing, look) if str(one[1][1]) not in others]


class Leftover:
    """One item of the queue that its worker did not file."""

    def __init__(self, api: Any, queue: Any, server: Any, item_id: Any, item: Any) -> None:
        self.api = api
        self.queue = queue
        self.server = server
        self.item_id = item_id
        self.item = item
        self.prompt_id = str(item[1])

    @guarded
    def end(self, error: BaseException, run: Any, last: turn.Turn | None) -> None:
        """Tell the client of the error, file the item as the host files a failed one, tell of the end."""
        client_id = safe.ask(None, lambda: self.item[3].get("client_id"))
        executor = last.executor() if last is not None and last.prompt_id == self.prompt_id else None
        history = getattr(executor, "history_result", None) or {} if last and last.returned else {}
        messages = [one for one in getattr(executor, "status_messages", ()) if self._is_of_it(one)]
        told = telling.told_of_error(messages, self.item[1])
        if told is None:
            told = telling.ERRORS[0], self._message(error, run)
            messages.append(told)
            telling.send(self.server, *told, client_id)
        elif any(function == "handle_execution_error" for _, function in safe.way_of(error)):
            telling.send(self.server, *told, client_id)  # a wrapper has kept it from the client
        self._file(history, messages)
        safe.attempt("the end of a prompt", setattr, self.server, "last_node_id", None)
        telling.send(self.server, "executing", {"node": None, "prompt_id": self.item[1]}, client_id)

    def _is_of_it(self, message: Any) -> bool:
        return safe.ask(False, lambda: message[1]["prompt_id"] == self.item[1])

    def _message(self, error: BaseException, run: Any) -> dict[str, Any]:
        prompt = self.item[2]
        node_id = safe.ask("", loop.place_of, error, prompt, self.item[4], run)
        details = telling.error_details(self.api, error, node_id)
        return {
            **telling.error_message(details, self.item[1], prompt),
            "timestamp": time.time_ns() // 1_000_000,
        }

    def _file(self, history: dict[str, Any], messages: list[Any]) -> None:
        """By the queue's own `task_done`; past a pack's wrapper where that is what raises."""
        queue = self.queue
        status = type(queue).ExecutionStatus(status_str="error", completed=False, messages=messages)
        more: dict[str, Any] = {}
        if self.api.facts["sensitive_queue_item"]:
            more["process_item"] = without_secrets
        ways: list[Callable[..., Any]] = [queue.task_done]
        if isinstance(queue, QueueView):
            ways.append(functools.partial(QueueView.task_done, queue))
        for task_done in ways:
            if self.item_id in queue.currently_running:
                safe.attempt("filing a prompt", task_done, self.item_id, history, status=status, **more)
        if queue.currently_running.pop(self.item_id, None) is not None:
            safe.attempt("telling the clients of the queue", self.server.queue_updated)


def without_secrets(item: Any) -> Any:
    """A queue item as the host puts it into the history: without its sixth element, which holds keys."""
    return item[:5] + item[6:]
