"""A node that puts its own workflow back into the queue while it runs, as batch nodes for long videos do."""
# ruff: noqa: N802 (the host asks for these names)

import uuid

from server import PromptServer


class Requeue:
    """Runs `left` times more, each a prompt of its own."""

    CATEGORY = "stagexec test"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        number = ("INT", {"default": 0, "min": 0, "max": 100})
        return {"required": {"image": ("IMAGE",), "left": number}, "hidden": {"unique_id": "UNIQUE_ID"}}

    def run(self, image, left, unique_id):
        server = PromptServer.instance
        queue = server.prompt_queue
        assert len(queue.currently_running) == 1
        (item,) = queue.currently_running.values()
        _, prompt_id, prompt, extra_data, outputs, sensitive = item
        if left > 0:
            node = prompt[unique_id]
            again = {**prompt, unique_id: {**node, "inputs": {**node["inputs"], "left": left - 1}}}
            number = -server.number
            server.number += 1
            next_id = str(uuid.uuid5(uuid.UUID(prompt_id), "again"))
            queue.put((number, next_id, again, extra_data, outputs, sensitive))
        return (image,)


NODE_CLASS_MAPPINGS = {"Requeue": Requeue}
