"""A prompt handler that edits prompts; wrappers of load_models_gpu and soft_empty_cache; peaks reset."""

import comfy.model_management as management
import torch
from aiohttp import web
from server import PromptServer

seen = []
original_load = management.load_models_gpu
original_empty = management.soft_empty_cache


def on_prompt(data):
    for node in data.get("prompt", {}).values():
        inputs = node.get("inputs", {})
        if inputs.get("text") == "handler, fill me in":
            inputs["text"] = "filled in"
        if inputs.get("filename_prefix") == "refuse":
            raise ValueError("meddler: this handler failed")
    seen.append(["prompt", sorted(data)])
    return data


def load_models_gpu(models, *args, **kwargs):
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seen.append(["load", [type(each.model).__name__ for each in models], len(args), sorted(kwargs)])
    return original_load(models, *args, **kwargs)


def soft_empty_cache(*args, **kwargs):
    seen.append(["empty"])
    return original_empty(*args, **kwargs)


PromptServer.instance.add_on_prompt_handler(on_prompt)
management.load_models_gpu = load_models_gpu
management.soft_empty_cache = soft_empty_cache


@PromptServer.instance.routes.get("/neighbour/meddler")
async def tell(request):
    told = [each for each in seen if each != ["empty"]]  # the host collects garbage by a clock
    seen.clear()
    return web.json_response(told)


NODE_CLASS_MAPPINGS = {}
