"""A prompt's end by an error outside every node: told to client and history as the host tells of a node's."""

from __future__ import annotations

from typing import Any

from stagexec.record import safe

ERRORS = ("execution_error", "execution_interrupted")
"""Messages that tell a client of a prompt's end by an error."""


def told_of_error(messages: Any, prompt_id: Any) -> tuple[str, dict[str, Any]] | None:
    """The one of ERRORS among these `(event, data)` that is about this prompt."""

    def look() -> tuple[str, dict[str, Any]] | None:
        for event, data in messages:
            if event in ERRORS and data.get("prompt_id") == prompt_id:
                return event, data
        return None

    return safe.ask(None, look)


def error_details(api: Any, error: BaseException, node_id: str) -> dict[str, Any]:
    """An error outside every node, as the host describes a node's."""
    kind = safe.ask(safe.kind_of(error), api.execution.full_type_name, type(error))
    return {
        "node_id": node_id,
        "exception_message": f"{safe.repr_of(error)}\n",
        "exception_type": kind,
        "traceback": safe.frames_of(error.__traceback__),
        "current_inputs": {},
    }


def error_message(details: dict[str, Any], prompt_id: str, prompt: Any) -> dict[str, Any]:
    """The data of `execution_error`, where the host itself does not make it."""
    node_type = safe.ask(None, lambda: prompt[details["node_id"]]["class_type"])
    return {"prompt_id": prompt_id, **details, "node_type": node_type, "executed": [], "current_outputs": []}


def send(server: Any, event: str, data: dict[str, Any], client_id: Any) -> None:
    """A message to a client by the server's own `send_sync`; past a pack's wrapper where that one raises."""
    if client_id is None or safe.attempt("a message", server.send_sync, event, data, client_id):
        return
    message = (event, data, client_id)
    safe.attempt("a message", lambda: server.loop.call_soon_threadsafe(server.messages.put_nowait, message))
