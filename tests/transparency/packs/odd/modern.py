"""A node of the host's newer kind, whose class is never instantiated: lazy, hidden, async, with ui."""

from comfy_api.latest import io, ui


class OddModern(io.ComfyNode):
    """Needs `second` only; shows its hidden unique id."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="OddModern",
            category="stagexec test",
            inputs=[
                io.Image.Input("first", lazy=True),
                io.Image.Input("second", lazy=True),
                io.Int.Input("label", default=0),
            ],
            outputs=[io.Image.Output()],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def check_lazy_status(cls, second=None, **_):
        return ["second"] if second is None else []

    @classmethod
    def fingerprint_inputs(cls, label, **_):
        return f"label {label}"

    @classmethod
    async def execute(cls, first=None, second=None, label=0):
        return io.NodeOutput(second, ui=ui.PreviewText(f"node {cls.hidden.unique_id}, label {label}"))


NODES = {"OddModern": OddModern}
