"""Wraps execution.execute on the module and reads its arguments by position, as node profilers do."""

import functools

import execution
from aiohttp import web
from server import PromptServer

seen = []


def wrap(original):
    @functools.wraps(original)
    async def execute(*args, **kwargs):
        server, dynprompt, caches, node_id, extra_data, executed, prompt_id = args[:7]
        class_type = dynprompt.get_node(node_id)["class_type"]
        before = sorted(executed)
        result = await original(*args, **kwargs)
        facts = [server is PromptServer.instance, hasattr(caches, "outputs"), sorted(extra_data) != []]
        seen.append(
            [prompt_id, node_id, class_type, len(args), sorted(kwargs), before, facts, result[0].name]
        )
        return result

    return execute


execution.execute = wrap(execution.execute)


@PromptServer.instance.routes.get("/neighbour/visit_wrapper")
async def tell(request):
    told = list(seen)
    seen.clear()
    return web.json_response(told)


NODE_CLASS_MAPPINGS = {}
