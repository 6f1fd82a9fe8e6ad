"""Of the shape of diffusers."""
