"""What may be shown of an address, a command line, or another library's words."""

from __future__ import annotations

import urllib.error

import pytest

from stagexec import addresses

SECRET = "s3cr3t-w0rd"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("postgresql://me:s3/cr@t@db.local/comfy", "postgresql://***@db.local/comfy"),
        ("--comfy-api-base=https://token@api.local", "--comfy-api-base=https://***@api.local"),
        ("https://api.local/v1", "https://api.local/v1"),
        ("https://api.local/v1?a=1&b=2#c", "https://api.local/v1?***"),
        ("--listen", "--listen"),
        ("me@home", "me@home"),
        ("is it there? no: a=b", "is it there? no: a=b"),
        ("C:\\Users\\me\\a b.png", "C:\\Users\\me\\a b.png"),
    ],
)
def test_an_address_is_shown_without_user_password_and_query(text: str, kept: str) -> None:
    assert addresses.shown(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        f"http://me:{SECRET}@host:4318/v1/traces",
        f"socks5h://me:{SECRET}@proxy:1080",
        f"s3://KEY:{SECRET}@bucket/folder",
        f"HTTPConnectionPool(host='h', port=9): Max retries exceeded with url: /v1/traces?token={SECRET} (…)",
        f"GET /hook?{SECRET} refused",
        f"https://h/?sig={SECRET}&se=2",
        f"Authorization: Basic {SECRET}==",
        f"{{'authorization': 'Bearer {SECRET}'}}",
        f"x-api-key={SECRET},x-other=1",
        f"Header format invalid: api-key={SECRET}",
        f"cookie: {SECRET}",
        f"--hf-token={SECRET}",
        f"password={SECRET}",
        f"database_password: '{SECRET}'",
    ],
)
def test_nothing_that_opens_a_door_is_left_in_a_text(text: str) -> None:
    assert SECRET not in addresses.shown(text)


def test_the_word_after_an_option_of_a_secrets_name_is_hidden() -> None:
    words = [
        "--port",
        "8188",
        "--api-key",
        SECRET,
        "--database-url",
        f"postgresql://me:{SECRET}@h/c",
        "--auth",
    ]
    assert addresses.shown_words([*words, "--cpu"]) == [
        "--port", "8188", "--api-key", "***", "--database-url", "postgresql://***@h/c", "--auth", "--cpu",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        (f"https://hooks.local/services/T0/B0/{SECRET}", "https://hooks.local"),
        (f"http://me:{SECRET}@[::1]:9/x", "http://[::1]:9"),
        (f"http://h:{SECRET}/", "an address that cannot be read"),
        (SECRET, "an address that cannot be read"),
    ],
)
def test_of_a_hook_only_the_host_is_shown(address: str, kept: str) -> None:
    assert addresses.origin(address) == kept


def test_user_and_password_are_taken_out_of_an_address_for_the_header() -> None:
    assert addresses.parted("http://me:a%40b@h:1/p?q=1") == ("http://h:1/p?q=1", ("me", "a@b"))
    assert addresses.parted("http://h:1/p") == ("http://h:1/p", None)


def test_an_exceptions_own_text_is_not_repeated() -> None:
    error = urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))
    assert addresses.reason(error) == "ConnectionRefusedError: Connection refused"
    assert SECRET not in addresses.reason(ValueError(f"nonnumeric port: '{SECRET}@h'"))
