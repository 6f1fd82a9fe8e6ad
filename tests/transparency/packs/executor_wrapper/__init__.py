"""Wraps methods of execution.PromptExecutor on the class: the constructor, both executes, reset, errors."""

import execution
from aiohttp import web
from server import PromptServer

seen = []
CLASS = execution.PromptExecutor
original_init = CLASS.__init__
original_execute = CLASS.execute
original_execute_async = CLASS.execute_async
original_reset = CLASS.reset
original_error = CLASS.handle_execution_error


def init(self, *args, **kwargs):
    original_init(self, *args, **kwargs)
    seen.append(["__init__", len(args), sorted(kwargs), hasattr(self, "caches")])
    watch_caches(self)


def watch_caches(executor):
    """Replace clean_unused on each cache of this executor, as the official benchmark pack does."""
    for name in ("outputs", "objects"):
        cache = getattr(executor.caches, name)
        original = cache.clean_unused

        def clean(*args, name=name, original=original, **kwargs):
            seen.append(["clean_unused", name])
            return original(*args, **kwargs)

        cache.clean_unused = clean


def execute(self, prompt, prompt_id, *args, **kwargs):
    seen.append(["execute", prompt_id, len(args), sorted(kwargs)])
    result = original_execute(self, prompt, prompt_id, *args, **kwargs)
    names = [name for name, _ in self.status_messages]
    seen.append(["executed", prompt_id, self.success, names, sorted(self.history_result["outputs"])])
    return result


async def execute_async(self, prompt, prompt_id, *args, **kwargs):
    seen.append(["execute_async", prompt_id, len(args), sorted(kwargs)])
    try:
        return await original_execute_async(self, prompt, prompt_id, *args, **kwargs)
    finally:
        seen.append(["executed_async", prompt_id, self.success])


def reset(self):
    original_reset(self)
    seen.append(["reset", self.success, len(self.status_messages)])


def handle_execution_error(self, prompt_id, prompt, current_outputs, executed, error, ex):
    seen.append(["error", prompt_id, sorted(prompt), sorted(executed), sorted(error), type(ex).__name__])
    return original_error(self, prompt_id, prompt, current_outputs, executed, error, ex)


CLASS.__init__ = init
CLASS.execute = execute
CLASS.execute_async = execute_async
CLASS.reset = reset
CLASS.handle_execution_error = handle_execution_error


@PromptServer.instance.routes.get("/neighbour/executor_wrapper")
async def tell(request):
    told = list(seen)
    seen.clear()
    return web.json_response(told)


NODE_CLASS_MAPPINGS = {}
