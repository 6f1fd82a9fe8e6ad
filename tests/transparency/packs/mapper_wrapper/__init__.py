"""Wraps what assembles a node's inputs and calls it; one by a plain function that returns the coroutine."""

import execution
from aiohttp import web
from server import PromptServer

seen = []
original_inputs = execution.get_input_data
original_outputs = execution.get_output_data
original_map = execution._async_map_node_over_list


def get_input_data(inputs, class_def, unique_id, *args, **kwargs):
    result = original_inputs(inputs, class_def, unique_id, *args, **kwargs)
    seen.append(
        ["inputs", unique_id, class_def.__name__, len(args), sorted(kwargs), len(result), sorted(result[0])]
    )
    return result


async def get_output_data(prompt_id, unique_id, obj, *args, **kwargs):
    seen.append(["outputs", prompt_id, unique_id, type(obj).__name__, len(args), sorted(kwargs)])
    return await original_outputs(prompt_id, unique_id, obj, *args, **kwargs)


def _async_map_node_over_list(prompt_id, unique_id, obj, input_data_all, func, *args, **kwargs):
    seen.append(["map", prompt_id, unique_id, func, sorted(input_data_all), len(args), sorted(kwargs)])
    return original_map(prompt_id, unique_id, obj, input_data_all, func, *args, **kwargs)


execution.get_input_data = get_input_data
execution.get_output_data = get_output_data
execution._async_map_node_over_list = _async_map_node_over_list


@PromptServer.instance.routes.get("/neighbour/mapper_wrapper")
async def tell(request):
    told = list(seen)
    seen.clear()
    return web.json_response(told)


NODE_CLASS_MAPPINGS = {}
