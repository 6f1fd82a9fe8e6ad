"""The comparison itself: it takes out what must differ, and fails on anything else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transparency.normal import Normaliser
from tests.transparency.twins import fail_on_difference

PLAIN = Normaliser({"/srv/a": "<base>"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"timestamp": 1}, {"timestamp": 2}),
        ({"f": "/srv/a/x.png"}, {"f": "<base>/x.png"}),
        ({"f": "ComfyUI_temp_abcde_00001_.png"}, {"f": "ComfyUI_temp_zyxwv_00001_.png"}),
        ({"v": "<T object at 0x7f0012345678>"}, {"v": "<T object at 0x7f0087654321>"}),
        ({"traceback": ['  File "/h/execution.py", line 5, in execute\n']}, {"traceback": []}),
    ],
)
def test_what_must_differ_is_no_difference(one: Any, other: Any) -> None:
    fail_on_difference("one", [("seen", PLAIN(one))], "other", [("seen", PLAIN(other))])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"timestamp": 1}, {"timestamp": None}),
        ({"number": 1}, {"number": 1.0}),
        ({"ok": True}, {"ok": 1}),
        ([1, 2], [2, 1]),
        (b"\x89PNG", b"\x89PNH"),
        ({"traceback": ['  File "/h/nodes.py", line 5, in run\n']}, {"traceback": []}),
        ({"f": "ComfyUI_temp_abcde_00001_.png"}, {"f": "ComfyUI_temp_abcde_00002_.png"}),
    ],
)
def test_anything_else_is_a_difference(one: Any, other: Any) -> None:
    with pytest.raises(pytest.fail.Exception):
        fail_on_difference("one", [("seen", PLAIN(one))], "other", [("seen", PLAIN(other))])


def test_a_message_too_many_is_a_difference() -> None:
    message: Any = ("message executed", {"node": "1"})
    with pytest.raises(pytest.fail.Exception):
        fail_on_difference("one", [message], "other", [message, message])
