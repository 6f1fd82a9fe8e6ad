"""The launcher's words for the ledger."""

from __future__ import annotations

import pytest

from stagexec import main


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("postgresql://me:s3/cr@t@db.local/comfy", "postgresql://***@db.local/comfy"),
        ("--comfy-api-base=https://token@api.local", "--comfy-api-base=https://***@api.local"),
        ("https://api.local/v1", "https://api.local/v1"),
        ("--listen", "--listen"),
        ("me@home", "me@home"),
    ],
)
def test_an_argument_is_kept_without_the_user_and_password_in_it(word: str, kept: str) -> None:
    assert main.without_password(word) == kept
