"""The only folder that imports ComfyUI: where it is, what it is, where we attach."""
