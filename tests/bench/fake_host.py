"""A stand-in for the host's server: enough of its interface to try the lab and its client on."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys

from aiohttp import WSMsgType, web


class Fake:
    """Answers prompts by a script: the prompt's own `messages`, then the end of the run."""

    def __init__(self) -> None:
        self.sockets: dict[str, web.WebSocketResponse] = {}
        self.count = 0
        self.history: dict[str, dict[str, object]] = {}

    async def websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets[request.query["clientId"]] = socket
        await socket.send_json({"type": "status", "data": {"sid": request.query["clientId"]}})
        async for message in socket:
            if message.type is WSMsgType.ERROR:
                break
        return socket

    async def prompt(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body["prompt"]:
            return web.json_response({"error": {"type": "no_prompt"}}, status=400)
        self.count += 1
        prompt_id = f"prompt-{self.count}"
        self.running = asyncio.create_task(self.run(body, prompt_id))
        return web.json_response({"prompt_id": prompt_id, "number": self.count})

    async def run(self, body: dict[str, object], prompt_id: str) -> None:
        socket = self.sockets[str(body["client_id"])]
        if body["prompt"] == "die":
            os._exit(3)
        if body["prompt"] == "hang":
            return
        await socket.send_json({"type": "executing", "data": {"node": "1", "prompt_id": prompt_id}})
        await socket.send_bytes(b"preview")
        await socket.send_json({"type": "executing", "data": {"node": None, "prompt_id": "another"}})
        self.history[prompt_id] = {"outputs": {}, "asked": body}
        await socket.send_json({"type": "executing", "data": {"node": None, "prompt_id": prompt_id}})

    async def entry(self, request: web.Request) -> web.Response:
        prompt_id = request.match_info["id"]
        return web.json_response({prompt_id: self.history[prompt_id]} if prompt_id in self.history else {})


def main() -> None:
    """Serve on --port; every other argument is printed and ignored."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    chosen, others = parser.parse_known_args()
    print(
        json.dumps({"others": others, "cwd": os.getcwd(), "hashseed": os.environ.get("PYTHONHASHSEED")}),
        flush=True,
    )
    if "--fail" in others:
        sys.exit("no such model")
    fake = Fake()
    app = web.Application()
    app.router.add_get("/ws", fake.websocket)
    app.router.add_post("/prompt", fake.prompt)
    app.router.add_get("/history/{id}", fake.entry)
    app.router.add_get("/system_stats", lambda request: web.json_response({}))
    web.run_app(app, host="127.0.0.1", port=chosen.port, print=None)


if __name__ == "__main__":
    main()
