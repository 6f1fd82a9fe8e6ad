"""A small synchronous client of the host's HTTP and websocket interface."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
import urllib.parse
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgspec

WAIT_SECONDS = 300.0
CONNECT_SECONDS = 20.0

Message = dict[str, Any]
"""{"type", "data"} as the host sent it; a binary message is {"type": "binary", "data": bytes}."""


class _Head(msgspec.Struct):
    type: str = ""


class Unreachable(Exception):
    """Nothing answered, or the connection broke."""


class Refused(Exception):
    """The server answered with an HTTP error: `status`, and `body` as JSON where it is JSON, else text."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status
        self.body = body


def http_raw(url: str, method: str, path: str, body: Any = None, seconds: float = 60.0) -> tuple[int, bytes]:
    """One request; status and body. Raises Unreachable. Asks no proxy: the server is on this machine."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=seconds)
    payload = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as problem:
        raise Unreachable(f"{method} {url}{path}: {problem!r}") from problem
    finally:
        connection.close()


def http_json(url: str, method: str, path: str, body: Any = None, seconds: float = 60.0) -> Any:
    """One request whose answer is JSON (None when empty). Raises Unreachable, or Refused on an HTTP error."""
    status, content = http_raw(url, method, path, body, seconds)
    try:
        answer = json.loads(content) if content else None
    except ValueError:
        answer = content.decode(errors="replace")
    if status >= 400:
        raise Refused(status, answer)
    return answer


class Listener:
    """Collects every message of one websocket, in order, in a thread with a loop of its own.

    Texts are kept as they came until they are asked for: a prompt of 200 nodes sends 6 MB of progress states,
    and what it costs to read those is not to stand in the time of the server that is measured.
    """

    def __init__(self, url: str, client_id: str) -> None:
        self._url = f"{url}/ws?clientId={client_id}"
        self.received: list[Message | str] = []
        self.arrived: list[float] = []
        """When each message came, by time.perf_counter, s."""
        self.changed = threading.Condition()
        self.ended: BaseException | str | None = None
        self._opened = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="stagexec-listener", daemon=True)
        self._thread.start()
        if not self._opened.wait(CONNECT_SECONDS) or self.ended is not None:
            raise Unreachable(f"no websocket at {self._url}: {self.ended or 'no answer in time'}")

    @property
    def messages(self) -> list[Message]:
        """Every message so far."""
        return self.between(0, len(self.received))

    def between(self, first: int, end: int) -> list[Message]:
        """The messages from `first` up to before `end`."""
        with self.changed:
            for at in range(first, end):
                self.received[at] = _read(self.received[at])
            return self.received[first:end]  # type: ignore[return-value]

    def close(self) -> None:
        """Close the connection and end the thread."""
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join(CONNECT_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._listen())
        except asyncio.CancelledError:
            self._end("closed by the client")
        except Exception as problem:  # noqa: BLE001 - kept, and raised in the thread that waits
            self._end(problem)
        else:
            self._end("closed by the server")

    def _end(self, why: BaseException | str) -> None:
        with self.changed:
            self.ended = why
            self.changed.notify_all()
        self._opened.set()

    async def _listen(self) -> None:
        import aiohttp

        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(self._url, max_msg_size=0) as socket,
        ):
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._add(message.data)
                elif message.type is aiohttp.WSMsgType.BINARY:
                    self._add({"type": "binary", "data": bytes(message.data)})

    def _add(self, message: Message | str) -> None:
        with self.changed:
            self.received.append(message)
            self.arrived.append(time.perf_counter())
            self.changed.notify_all()
        self._opened.set()  # the host greets with a status: from now on it knows the client id


class Client:
    """Submits prompts and waits for them. With a websocket unless `connect` is false."""

    def __init__(self, url: str, client_id: str | None = None, connect: bool = True) -> None:
        self.url = url
        self.client_id = client_id or uuid.uuid4().hex
        self.listener = Listener(url, self.client_id) if connect else None
        self._first_message: dict[str, int] = {}

    # --- prompts ---

    def submit(
        self,
        prompt: Mapping[str, Any],
        extra_data: Mapping[str, Any] | None = None,
        client_id: str | None = None,
        front: bool = False,
        **more: Any,
    ) -> str:
        """Queue a prompt in API form; its prompt id. Raises Refused when it does not validate.

        `client_id` defaults to this client's when it is connected; `more` goes into the request as it is
        (`prompt_id`, `partial_execution_targets`, `number`).
        """
        body: dict[str, Any] = {"prompt": prompt, **more}
        if client_id is not None or self.listener is not None:
            body["client_id"] = client_id or self.client_id
        if extra_data is not None:
            body["extra_data"] = dict(extra_data)
        if front:
            body["front"] = True
        seen = len(self.listener.received) if self.listener else 0
        prompt_id = str(self.post("/prompt", body)["prompt_id"])
        self._first_message[prompt_id] = seen
        return prompt_id

    def wait(self, prompt_id: str, seconds: float = WAIT_SECONDS) -> list[Message]:
        """The messages from the submission to `executing {node: null}` of this prompt, all of them, in order.

        Raises TimeoutError after `seconds`, Unreachable when the connection breaks.
        """
        first, end = self._wait_end(prompt_id, seconds)
        return self._listening().between(first, end)

    def wait_moment(self, prompt_id: str, seconds: float = WAIT_SECONDS) -> float:
        """Wait in the same way; when the last of them came, by time.perf_counter, s."""
        return self._listening().arrived[self._wait_end(prompt_id, seconds)[1] - 1]

    def _wait_end(self, prompt_id: str, seconds: float) -> tuple[int, int]:
        listener = self._listening()
        position = first = self._first_message.get(prompt_id, 0)
        end = time.monotonic() + seconds
        with listener.changed:
            while True:
                while position < len(listener.received):
                    position += 1
                    if _is_end(listener.received[position - 1], prompt_id):
                        return first, position
                self._wait_more(listener, prompt_id, end)

    def wait_for(self, kind: str, prompt_id: str, seconds: float = WAIT_SECONDS, **data: Any) -> Message:
        """The first message of type `kind` of this prompt whose data has the given items."""
        listener = self._listening()
        wanted = {"prompt_id": prompt_id, **data}
        position = self._first_message.get(prompt_id, 0)
        end = time.monotonic() + seconds
        with listener.changed:
            while True:
                while position < len(listener.received):
                    position += 1
                    if _kind(listener.received[position - 1]) != kind:
                        continue
                    (message,) = listener.between(position - 1, position)
                    if wanted.items() <= message["data"].items():
                        return message
                self._wait_more(listener, prompt_id, end)

    def run(self, prompt: Mapping[str, Any], seconds: float = WAIT_SECONDS, **submit: Any) -> dict[str, Any]:
        """Submit, wait, and give the prompt's history entry."""
        prompt_id = self.submit(prompt, **submit)
        if self.listener is not None:
            self.wait(prompt_id, seconds)
        return self.wait_history(prompt_id, seconds)

    def wait_history(self, prompt_id: str, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """The prompt's history entry, asked for until it is there; TimeoutError after `seconds`."""
        end = time.monotonic() + seconds
        while (entry := self.history(prompt_id)) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"prompt {prompt_id} is not in history after {seconds:.0f} s")
            time.sleep(0.05)
        return entry

    # --- the rest of the interface ---

    def history(self, prompt_id: str) -> dict[str, Any] | None:
        """The prompt's history entry, or None."""
        entries: dict[str, dict[str, Any]] = self.get(f"/history/{prompt_id}")
        return entries.get(prompt_id)

    def queue(self) -> dict[str, Any]:
        """{"queue_running": […], "queue_pending": […]}."""
        answer: dict[str, Any] = self.get("/queue")
        return answer

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Cancel what runs now, or only that prompt where the host can tell."""
        self.post("/interrupt", {"prompt_id": prompt_id} if prompt_id else {})

    def delete(self, prompt_id: str) -> None:
        """Take a waiting prompt out of the queue."""
        self.post("/queue", {"delete": [prompt_id]})

    def free(self, unload_models: bool = True, free_memory: bool = True) -> None:
        """Ask the host to unload models and to drop its caches."""
        self.post("/free", {"unload_models": unload_models, "free_memory": free_memory})

    def image(self, entry: Mapping[str, str]) -> bytes:
        """The bytes of one file that history names ({filename, subfolder, type})."""
        query = urllib.parse.urlencode({key: entry[key] for key in ("filename", "subfolder", "type")})
        status, content = http_raw(self.url, "GET", f"/view?{query}")
        if status != 200:
            raise Refused(status, content.decode(errors="replace"))
        return content

    def get(self, path: str) -> Any:
        """GET, JSON."""
        return http_json(self.url, "GET", path)

    def post(self, path: str, body: Any) -> Any:
        """POST, JSON both ways."""
        return http_json(self.url, "POST", path, body)

    def close(self) -> None:
        """End the websocket."""
        if self.listener is not None:
            self.listener.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- waiting ---

    def _listening(self) -> Listener:
        if self.listener is None:
            raise Unreachable("this client has no websocket")
        return self.listener

    def _wait_more(self, listener: Listener, prompt_id: str, end: float) -> None:
        if listener.ended is not None:
            raise Unreachable(f"the websocket ended while prompt {prompt_id} ran: {listener.ended}")
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"prompt {prompt_id} has not come so far in time")
        listener.changed.wait(left)


def _read(message: Message | str) -> Message:
    return json.loads(message) if isinstance(message, str) else message


def _kind(message: Message | str) -> str:
    if isinstance(message, str):
        try:
            return msgspec.json.decode(message, type=_Head).type
        except msgspec.DecodeError:  # half a character, which the host's JSON can hold
            return str(_read(message)["type"])
    return str(message["type"])


def _is_end(message: Message | str, prompt_id: str) -> bool:
    if _kind(message) != "executing":
        return False
    data = _read(message)["data"]
    return data.get("node") is None and data.get("prompt_id") == prompt_id
