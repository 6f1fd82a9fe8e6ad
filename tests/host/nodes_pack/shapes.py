"""Nodes whose types make a kind of class of packs."""

import time

from .kinds import CATEGORY, SECONDS, required


class StxDetailer:
    """Takes what a detailer takes, and sleeps instead of looking for faces: nothing in it is a seam."""

    CATEGORY = CATEGORY
    INPUT_TYPES = classmethod(
        lambda cls: required(
            image="IMAGE",
            model="MODEL",
            steps=("INT", {"default": 1}),
            sampler_name=(["euler"],),
            scheduler=(["normal"],),
            seconds=SECONDS,
        )
    )
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "detail"

    def detail(self, image, seconds, **_):
        time.sleep(seconds)
        return (image,)


class StxControlNet:
    """A ControlNet for a strength of 0, with which it is not looked at."""

    CATEGORY = CATEGORY
    INPUT_TYPES = classmethod(lambda cls: required())
    RETURN_TYPES = ("CONTROL_NET",)
    FUNCTION = "make"

    def make(self):
        return ("no ControlNet",)


NODES = {"StxDetailer": StxDetailer, "StxControlNet": StxControlNet}
