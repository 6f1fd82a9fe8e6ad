"""Builds its own PromptExecutor subclass and executes prompts on threads of its own, past the queue."""

import asyncio

import execution
from aiohttp import web
from server import PromptServer


class QuietServer:
    """What an executor needs of a server; keeps what is sent."""

    def __init__(self):
        self.client_id = None
        self.last_node_id = None
        self.last_prompt_id = None
        self.sockets_metadata = {}
        self.sent = []

    def send_sync(self, event, data, sid=None):
        self.sent.append([str(event), data if isinstance(data, dict) else str(type(data)), sid])

    def queue_updated(self):
        pass


class OwnExecutor(execution.PromptExecutor):
    """A subclass with a method of its own on the way."""

    def add_message(self, event, data, broadcast):
        super().add_message(event, {**data, "own": True}, broadcast)


kept = {}


def run(prompt, prompt_id, client_id):
    """Validate and execute; called on a thread."""
    valid, error, outputs, _ = asyncio.run(execution.validate_prompt(prompt_id, prompt, None))
    if not valid:
        return {"error": error}
    if "executor" not in kept:
        caches = {"lru": 0, "ram": 0, "ram_inactive": 0}
        kept["executor"] = OwnExecutor(
            QuietServer(), cache_type=execution.CacheType.CLASSIC, cache_args=caches
        )
    executor = kept["executor"]
    executor.server.sent.clear()
    extra = {"client_id": client_id} if client_id else {}
    executor.execute(prompt, prompt_id, extra, outputs)
    return {
        "success": executor.success,
        "history": executor.history_result,
        "messages": executor.status_messages,
        "sent": executor.server.sent,
    }


@PromptServer.instance.routes.post("/neighbour/own_executor")
async def execute(request):
    body = await request.json()
    loop = asyncio.get_running_loop()
    told = await loop.run_in_executor(None, run, body["prompt"], body["prompt_id"], body.get("client_id"))
    return web.json_response(told)


NODE_CLASS_MAPPINGS = {}
