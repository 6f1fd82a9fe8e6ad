"""A restart of the host comes back to our launcher, with the same arguments each time."""

from __future__ import annotations

import json
import ntpath
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stagexec import main
from stagexec.host import restart
from stagexec.host.restart import Restart, is_successor, ours_instead, ours_started, quoted
from stagexec.record.guard import GUARDED
from tests.faults import fresh_faults

COMMAND = ["-m", "stagexec.main", "--stagexec-comfyui", "/srv/Comfy UI"]
MAIN = "/srv/Comfy UI/main.py"
PYTHON = "/opt/venv/bin/python"


@pytest.fixture
def linux() -> Restart:
    return Restart(COMMAND, MAIN, PYTHON)


@pytest.fixture
def windows() -> Restart:
    command = ["-m", "stagexec.main", "--stagexec-comfyui", "C:\\My AI\\ComfyUI", "--stagexec-strict"]
    return Restart(command, "C:\\My AI\\ComfyUI\\main.py", "C:\\My AI\\python_embeded\\python.exe", ntpath)


WINDOWS = ["-m", "stagexec.main", "--stagexec-comfyui", '"C:\\My AI\\ComfyUI"', "--stagexec-strict"]


@pytest.mark.parametrize(
    "program", ["C:\\My AI\\python_embeded\\python.exe", "c:/my ai/PYTHON_embeded/python.EXE"]
)
@pytest.mark.parametrize("script", ["C:\\My AI\\ComfyUI\\main.py", "c:/my ai/comfyui/./main.py"])
def test_the_managers_quoted_words_are_known_on_windows(windows: Restart, program: str, script: str) -> None:
    words = [f'"{program}"', f'"{script}"', "--port", "8189"]
    assert ours_instead((program, words), windows) == (program, [words[0], *WINDOWS, "--port", "8189"])


def test_words_without_quotes_are_put_into_quotes_for_windows_exec_where_they_need_them(
    windows: Restart,
) -> None:
    program = windows.executable
    words = [program, windows.main_file, "--output-directory", "D:\\my output", "", "--cpu"]
    _, made = ours_instead((program, words), windows) or (None, [])
    assert made == [f'"{program}"', *WINDOWS, "--output-directory", '"D:\\my output"', '""', "--cpu"]
    line = " ".join(made)  # as the C runtime joins them
    assert '"C:\\My AI\\ComfyUI" --stagexec-strict --output-directory "D:\\my output" "" --cpu' in line


def test_quoting_leaves_plain_words_and_those_in_quotes_as_they_are() -> None:
    assert quoted(["-m", '"a b"', "a b", "--cpu"]) == ["-m", '"a b"', '"a b"', "--cpu"]


@pytest.mark.parametrize(
    "flags",
    [
        ["-s"],
        ["-s", "-I", "-X", "utf8"],
        ["-W", "ignore", "-u"],
        ["-Xutf8"],
        ["--check-hash-based-pycs", "never"],
    ],
)
def test_the_interpreters_own_flags_stay_in_order(linux: Restart, flags: list[str]) -> None:
    words = [PYTHON, *flags, MAIN, "--cpu", "a b"]
    assert linux.words(words) == [PYTHON, *flags, *COMMAND, "--cpu", "a b"]


@pytest.mark.parametrize(
    "words",
    [
        [PYTHON, "-m", "pip", "install", MAIN],
        [PYTHON, "-c", "print()", MAIN],
        [PYTHON, "-mpip", MAIN],
        [PYTHON, "/srv/other/main.py"],
        ["/usr/bin/other", MAIN],
        [PYTHON],
        [PYTHON, "-s"],
        [],
    ],
)
def test_any_other_command_is_left_alone(linux: Restart, words: list[str]) -> None:
    assert linux.words(words) is None


def test_a_relative_script_is_the_one_of_the_folder_in_which_the_process_starts(linux: Restart) -> None:
    assert linux.words([PYTHON, "main.py"], cwd="/srv/Comfy UI") == [PYTHON, *COMMAND]
    assert linux.words([PYTHON, "main.py"], cwd="/srv") is None


def test_a_program_by_its_bare_name_is_ours_where_the_names_are_equal(linux: Restart) -> None:
    assert linux.words(["python", MAIN]) == ["python", *COMMAND]
    assert linux.words(["bash", MAIN]) is None


def test_a_script_by_another_way_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "main.py").touch()
    try:
        (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    except OSError:
        pytest.skip("this user may make no links")
    how = Restart(COMMAND, str(tmp_path / "real" / "main.py"), PYTHON)
    assert how.words([PYTHON, str(tmp_path / "link" / "main.py")]) == [PYTHON, *COMMAND]


# --- a new process before this one ends ---------------------------------------------------------------


def test_a_popen_that_starts_our_successor_starts_us(linux: Restart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [MAIN, "--windows-standalone-build", "--port", "8188"])
    words = [PYTHON, MAIN, "--port", "8188"]
    changed = [PYTHON, *COMMAND, "--port", "8188"]
    assert ours_started(linux, (words,), {"cwd": "/"}) == ((changed,), {"cwd": "/"})
    assert ours_started(linux, (), {"args": tuple(words)}) == ((), {"args": changed})
    relative = [PYTHON, "main.py", "--port", "8188"]
    assert ours_started(linux, (relative,), {"cwd": Path("/srv/Comfy UI")}) == (
        (changed,),
        {"cwd": Path("/srv/Comfy UI")},
    )


@pytest.mark.parametrize(
    "asked",
    [[PYTHON, MAIN, "--port", "8190"], [PYTHON, MAIN], [PYTHON, "-m", "pip"], "python main.py", ["x"]],
)
def test_a_popen_that_starts_something_else_is_left_alone(
    linux: Restart, monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    """A pack may start a second server, of plain ComfyUI: that is its own wish."""
    monkeypatch.setattr(sys, "argv", [MAIN, "--port", "8188"])
    assert ours_started(linux, (asked,), {}) is None


def test_a_successor_has_the_same_arguments_but_for_what_a_restart_leaves_out() -> None:
    mine = ["--windows-standalone-build", "--port", "1", "--auto-launch"]
    assert is_successor(["--port", "1", "--disable-auto-launch"], mine)
    assert is_successor(['"--port"', "1"], mine)
    assert not is_successor(["--port", "2"], mine)
    assert not is_successor([], mine)


# --- our own arguments --------------------------------------------------------------------------------


def test_what_was_ours_comes_back_as_it_was_and_grows_at_no_restart() -> None:
    own = main.parser()
    first = [
        *(
            "--stagexec-ledger",
            "y",
            "--listen",
            "--stagexec-patches",
            "p q.toml",
            "--stagexec-comfyui",
            "here",
            "y",
        ),
        *("--stagexec-patches=b.toml", "--stagexec-strict", "--port", "1", "--stagexec-timing", "events"),
    ]
    kept = [
        *("--stagexec-ledger", "y", "--stagexec-patches", "p q.toml"),
        *("--stagexec-patches=b.toml", "--stagexec-strict", "--stagexec-timing", "events"),
    ]
    assert main.own_words(own, first) == kept
    _, theirs = own.parse_known_args(first)
    words = first
    for _ in range(3):
        words = ["--stagexec-comfyui", "/tree", *main.own_words(own, words), *theirs]
        assert words == ["--stagexec-comfyui", "/tree", *kept, "--listen", "y", "--port", "1"]
        assert vars(own.parse_known_args(words)[0])["stagexec_patches"] == ["p q.toml", "b.toml"]


# --- for real -----------------------------------------------------------------------------------------

FAKE_MAIN = """
import json, os, subprocess, sys
how, count = os.environ["HOW"], int(os.environ.get("COUNT", "0"))
with open(os.environ["SEEN"], "a") as out:
    out.write(json.dumps([sys.orig_argv[1:], sys.argv]) + "\\n")
if count < 3:
    os.environ["COUNT"] = str(count + 1)
    words = [sys.executable, sys.argv[0], *sys.argv[1:]]
    if how == "execv":
        os.execv(sys.executable, words)
    elif how == "execl":
        os.execl(sys.executable, *words)
    elif how == "execve":
        os.execve(sys.executable, [words[0], "-s", *words[1:]], dict(os.environ))
    elif how == "execvp":
        os.execvp(sys.executable, words)
    elif how == "spawn":
        sys.exit(os.spawnv(os.P_WAIT, sys.executable, words))
    elif how == "fork":
        child = os.fork()
        if not child:
            os.execv(sys.executable, words)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        subprocess.Popen(words).wait()
        os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there an exec does not wait for what it starts")
@pytest.mark.parametrize("how", ["execv", "execve", "spawn", "fork", "popen"])
def test_three_restarts_in_a_row_come_back_to_us_with_the_same_arguments(tmp_path: Path, how: str) -> None:
    tree = tmp_path / "Comfy UI"
    for name in ("comfy", "comfy_execution"):
        (tree / name).mkdir(parents=True)
    for name in ("execution.py", "server.py", "nodes.py"):
        (tree / name).write_text("")
    (tree / "main.py").write_text(FAKE_MAIN)
    seen = tmp_path / "seen"
    asked = ["--stagexec-strict", "--cpu", "--stagexec-ledger", "my ledger", "--out", "a b"]
    done = subprocess.run(
        [sys.executable, "-m", "stagexec.main", "--stagexec-comfyui", str(tree), *asked],
        env={**os.environ, "HOW": how, "SEEN": str(seen), "PYTHONPATH": str(Path(main.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in seen.read_text().splitlines()]
    flags = ["-s"] if how == "execve" else []
    ours = ["--stagexec-comfyui", str(tree), "--stagexec-strict", "--stagexec-ledger", "my ledger"]
    again = [*flags, "-m", "stagexec.main", *ours, "--cpu", "--out", "a b"]
    assert [words for words, _ in lines[1:]] == [again] * 3
    assert [argv[1:] for _, argv in lines] == [["--cpu", "--out", "a b"]] * 4


# --- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_can_start", "_follows_us", "ours_instead", "ours_started"])
def test_a_fault_of_ours_leaves_a_restart_as_it_is(
    name: str, linux: Restart, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = fresh_faults(monkeypatch)

    def faulty(*_: Any) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(GUARDED[f"stagexec.host.restart.{name}"], "body", faulty)
    called: list[Any] = []
    words = [sys.executable, MAIN]
    execute = restart._exec_wrapper(linux)
    execute(lambda *args: called.append(args), None, (sys.executable, words), {})
    spawn = restart._spawn_wrapper(linux)
    spawn(lambda *args: called.append(args), None, (os.P_NOWAIT, sys.executable, words), {})
    init = restart._popen_init(linux, lambda _popen, *args: called.append(args))
    init(None, words)
    assert called == [(sys.executable, words), (os.P_NOWAIT, sys.executable, words), (words,)]
    assert {where for where, _ in noted} == {name}
