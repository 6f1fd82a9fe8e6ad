"""One server as a client sees it: everything it says is kept, in order, ready to be compared."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagexec.bench.client import Listener, http_raw
from stagexec.bench.lab import Server
from tests.transparency.normal import OWN_MESSAGES, Normaliser

QUIET_SECONDS = 0.3
"""No message for so long means that a prompt's last one has come."""
WAIT_SECONDS = 120.0


class FlaggedListener(Listener):
    """A listener that announces client features first, as the web interface does."""

    flags: Mapping[str, Any] = {"supports_preview_metadata": True}

    async def _listen(self) -> None:
        import aiohttp

        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(self._url, max_msg_size=0) as socket,
        ):
            await socket.send_str(json.dumps({"type": "feature_flags", "data": dict(self.flags)}))
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._add(json.loads(message.data))
                elif message.type is aiohttp.WSMsgType.BINARY:
                    self._add({"type": "binary", "data": bytes(message.data)})


class Observer:
    """Drives one server through a scene. `seen` is what is compared: (what was asked, what came) in order.

    `name` gives the scene its prompt ids, its colour and its file prefix: nothing it makes is in the cache.
    `listen`: None for no websocket, else the kind of listener.
    """

    def __init__(self, server: Server, name: str, listen: type[Listener] | None = Listener) -> None:
        self.server = server
        self.name = name
        self.color = zlib.crc32(name.encode()) & 0xFFFFFF
        self.prefix = f"scene/{self.color:06x}"
        self.client_id = self._uuid("client").hex
        self.listener = listen(server.url, self.client_id) if listen else None
        self.seen: list[tuple[str, Any]] = []
        self.prompt_ids: list[str] = []
        self._plain = Normaliser(
            {
                str(server.base.resolve()): "<base>",
                str(server.base): "<base>",
                str(server.launch.comfyui): "<host>",
            }
        )

        self._temporary_before = self._temporary()

    # --- prompts ---

    def submit(self, prompt: Any, **body: Any) -> str:
        """POST /prompt under the next of the scene's own ids; keeps the answer and gives the id."""
        prompt_id = str(self._uuid(f"prompt {len(self.prompt_ids)}"))
        self.prompt_ids.append(prompt_id)
        self.offer({"prompt": prompt, "prompt_id": prompt_id, **body})
        return prompt_id

    def offer(self, body: dict[str, Any]) -> None:
        """POST /prompt with `body` and this client's id; keeps status and answer."""
        if self.listener is not None:
            body = {"client_id": self.client_id, **body}
        self.post("/prompt", body)

    def run(self, prompt: Any, **body: Any) -> str:
        """Submit, wait for the end, and look at everything the server then tells of it."""
        prompt_id = self.submit(prompt, **body)
        self.finish(prompt_id)
        return prompt_id

    def finish(self, prompt_id: str) -> None:
        """Wait for a prompt's end and look at everything the server then tells of it."""
        self.wait(prompt_id)
        self.look(prompt_id)

    def wait(self, prompt_id: str) -> None:
        """Wait for a prompt's end: another may run by then, so look only after the last."""
        if self.listener is not None:
            self.until("executing", prompt_id, node=None)
        else:
            self._until_history(prompt_id)

    def look(self, prompt_id: str) -> None:
        """Keep history, job, queue and queue length as they are now."""
        self.get(f"/history/{prompt_id}")
        self.get(f"/api/jobs/{prompt_id}")
        self.get("/queue")
        self.get("/prompt")

    # --- the rest of the interface ---

    def get(self, path: str) -> Any:
        """GET; keeps status and answer, gives the answer."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """POST; keeps status and answer, gives the answer."""
        return self._ask("POST", path, body)

    def jobs(self) -> None:
        """Keep the list of jobs, those of this scene, newest first."""
        status, content = http_raw(self.server.url, "GET", "/api/jobs")
        jobs = [job for job in json.loads(content)["jobs"] if job["id"] in self.prompt_ids]
        # Jobs made in the same millisecond have no order of their own.
        self._keep("jobs", {"status": status, "jobs": sorted(jobs, key=lambda job: str(job["id"]))})

    # --- messages ---

    def until(self, kind: str, prompt_id: str, **data: Any) -> None:
        """Wait for a message of type `kind` of this prompt whose data has the given items."""
        assert self.listener is not None, "this scene needs a websocket"
        wanted = {"prompt_id": prompt_id, **data}
        end, position = time.monotonic() + WAIT_SECONDS, 0
        listener = self.listener
        with listener.changed:
            while True:
                while position < len(listener.received):
                    (message,) = listener.between(position, position + 1)
                    position += 1
                    if message["type"] == kind and wanted.items() <= message["data"].items():
                        return
                left = end - time.monotonic()
                assert left > 0, f"{self.server.launch.launcher}: no {kind} {data} in scene {self.name}"
                assert listener.ended is None, f"the websocket ended: {listener.ended}"
                listener.changed.wait(left)

    def close(self) -> None:
        """Keep all messages, and all files of the scene; end the websocket."""
        if self.listener is not None:
            self._settle(self.listener)
            sent = [each for each in self.listener.messages if not str(each["type"]).startswith(OWN_MESSAGES)]
            for message in sent:
                self._keep(f"message {message['type']}", message["data"])
            self.listener.close()
        self.files()

    def files(self) -> None:
        """Keep every file of the scene's prefix, and every new temporary file, byte for byte."""
        found = sorted(self.server.output.glob(f"{self.prefix}*"))
        self._keep("output files", [self._file(each) for each in found])
        # The random part of a temporary name would be the order: sort by what is left of it, and by content.
        rows = [self._plain(self._file(each)) for each in self._temporary() - self._temporary_before]
        self.seen.append(("temporary files", sorted(rows, key=str)))

    # --- inside ---

    def _uuid(self, what: str) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{self.name}/{what}")

    def _keep(self, what: str, value: Any) -> None:
        self.seen.append((what, self._plain(value)))

    def _ask(self, method: str, path: str, body: Any) -> Any:
        status, content = http_raw(self.server.url, method, path, body)
        try:
            answer = json.loads(content) if content else None
        except ValueError:
            answer = content.decode(errors="replace")
        self._keep(f"{method} {path}", {"status": status, "answer": answer})
        return answer

    def _until_history(self, prompt_id: str) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while http_raw(self.server.url, "GET", f"/history/{prompt_id}")[1].strip() == b"{}":
            assert time.monotonic() < end, f"no history of {prompt_id} in scene {self.name}"
            time.sleep(0.02)

    def _settle(self, listener: Listener) -> None:
        with listener.changed:
            while listener.changed.wait(QUIET_SECONDS):
                pass

    def _temporary(self) -> set[Path]:
        return {each for each in (self.server.base / "temp").rglob("*") if each.is_file()}

    def _file(self, path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        row: dict[str, Any] = {"name": path.name, "content": content}
        if path.suffix == ".png":
            from PIL import Image

            with Image.open(path) as image:  # says which half differs when the bytes do
                row.update(text=dict(getattr(image, "text", {})), pixels=image.tobytes())
        return row
