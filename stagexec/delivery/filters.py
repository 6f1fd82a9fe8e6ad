"""Which filters of ffmpeg a workflow may ask for: those that open no file, socket or program.

ComfyUI has no log-in, and filters such as `metadata` and `movie` write and read any file of the
machine. The person who starts the server can allow more by name, or all with `*`.
"""

from __future__ import annotations

import os
import re

from stagexec.delivery.errors import EncodeFailed

FILTERS_VARIABLE = "STAGEXEC_FILTERS"
"""Environment variable with the names of further filters, separated by `;`; `*` is all."""

_WORDS = """
    alphaextract alphamerge atadenoise avgblur blend bm3d boxblur bwdif cas chromakey colorbalance
    colorchannelmixer colorcontrast colorcorrect colorhold colorize colorkey colorlevels colormatrix
    colorspace colortemperature convolution copy crop deband decimate deflicker dejudder despill
    dilation drawbox drawgrid edgedetect epx eq erosion estdif exposure extractplanes fade fieldorder
    fillborders format fps framerate framestep gblur geq gradfun greyedge hflip histeq hqdn3d hqx hstack
    hue hwdownload hwmap hwupload interlace kerndeint lenscorrection limiter loop lumakey lut lutrgb
    lutyuv mergeplanes minterpolate monochrome mpdecimate negate nlmeans noise normalize null overlay
    owdenoise pad palettegen perspective pixelize premultiply prewitt random reverse rotate sab scale
    scale_cuda scale_qsv scale_vaapi select setdar setfield setparams setpts setrange setsar settb shear
    shuffleframes shuffleplanes smartblur sobel split swapuv sws_flags tblend thumbnail tile tinterlace
    tonemap tpad transpose trim unpremultiply unsharp untile vaguedenoiser vflip vibrance vignette
    vstack w3fdif xbr xstack yadif zoompan zscale
"""

HARMLESS = frozenset(_WORDS.split())
"""Their options name no file. `sws_flags` is no filter: a graph may begin with it."""

OPTION_FROM_FILE = re.compile(r"[=:]/")
"""`option` with a slash before its name is read from a file, by ffmpeg 7 and newer."""


def check(graph: str) -> None:
    """Raise EncodeFailed when `graph` asks for a filter that is not allowed."""
    named = {word.strip() for word in os.environ.get(FILTERS_VARIABLE, "").split(";")}
    if "*" in named:
        return
    refused = sorted(names(graph) - HARMLESS - named)
    if refused:
        raise EncodeFailed(
            "input",
            f"the filter {refused[0]} is not allowed, because it may open files: the person who starts "
            f"the server lists such filters in ${FILTERS_VARIABLE}",
        )
    if OPTION_FROM_FILE.search(re.sub(r"[\\'\s]", "", graph)):
        raise EncodeFailed("input", "a filter's option may not be read from a file")


def names(graph: str) -> set[str]:
    """All that ffmpeg could take for a filter's name: whatever follows `,`, `;` or `]`, quoted or not.

    A word of an expression is among them when it stands alone between commas.
    """
    found = set()
    for piece in re.finditer(r"[^,;\[\]]+", graph):
        around = graph[piece.start() - 1 : piece.start()] + graph[piece.end() : piece.end() + 1]
        name = re.sub(r"[\\'\s]", "", piece[0].partition("=")[0]).partition("@")[0]
        if around != "[]" and re.fullmatch(r"[A-Za-z]\w*", name):
            found.add(name)
    return found
