"""Every bad path, file or word in every verb: one line on standard error, exit code 2, no traceback."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stagexec import cli, main
from stagexec.bench import plan as plans
from stagexec.host import tables, warmup
from tests.reading.fake_journal import FakeJournal, reseeded_run, tiny_run

POSIX = sys.platform != "win32"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    reseeded_run(journal, "bbbb")
    journal.write(folder)
    return folder


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, str]:
    """What a path can be that no file or folder of ours is."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    found = {
        "a part over 255 bytes": str(tmp_path / ("x" * 300)),
        "a part over 255 bytes in letters of two": "é" * 200,
        "over PATH_MAX": "/".join(["y" * 100] * 60),
        "no such user": "~nosuchuser/x",
        "a file in its way": str(tmp_path / "file" / "x"),
        "nowhere": str(tmp_path / "nowhere" / "x"),
        "a NUL": f"{tmp_path}/a\0b",
        "nothing": "",
        "control characters": f"{tmp_path}/\x1b[31mred\x07\n",
        "half a character": f"{tmp_path}/\ud800",
    }
    if POSIX:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to("loop")
        listening = socket.socket(socket.AF_UNIX)
        before = Path.cwd()
        os.chdir(tmp_path)  # the path of a socket may have 100 bytes
        listening.bind("socket")
        os.chdir(before)
        listening.close()
        found |= {name: str(tmp_path / name) for name in ("pipe", "loop", "socket")} | {
            "a device": "/dev/null"
        }
    return found


def refused(done: Result) -> str:
    """The one line of a refusal."""
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    said = [line for line in lines if not line.startswith(("Usage:", "Try ", "stagexec: no runs"))]
    assert len([line for line in said if line]) == 1, lines
    assert not [char for char in said[-1] if ord(char) < 32 or 0x7F <= ord(char) < 0xA0], said
    return said[-1]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.command, [str(word) for word in words], prog_name="stagexec")


READS = (
    ["runs"], ["show", "last"], ["diff", "last~1", "last"], ["failures"], ["plan", "last"], ["audit"],
    ["profile"], ["export", "last", "--csv", "unused.csv"],
)  # fmt: skip


@pytest.mark.parametrize("verb", READS, ids=lambda words: words[0])
def test_a_ledger_that_is_none_is_one_line(verb: list[str], odd: dict[str, str], tmp_path: Path) -> None:
    for what, path in {**odd, "a file": str(tmp_path / "file")}.items():
        assert refused(call(*verb, "--ledger", path)), what


@pytest.mark.parametrize("verb", READS[:2], ids=lambda words: words[0])
def test_a_ledger_of_the_environment_that_can_be_none_is_one_line(
    verb: list[str], odd: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for what in ("a part over 255 bytes", "no such user", "over PATH_MAX"):
        monkeypatch.setenv("STAGEXEC_LEDGER", odd[what])
        assert refused(call(*verb)), what


@pytest.mark.parametrize("option", ["--csv", "--parquet", "--html", "--perfetto"])
def test_a_target_that_cannot_be_written_is_one_line(
    option: str, odd: dict[str, str], tmp_path: Path, ledger: Path
) -> None:
    targets = dict(odd)
    for written in ("control characters", "half a character", "a device", "pipe", "nowhere"):
        targets.pop(written, None)  # those can be written, or would wait for a reader
    targets["a folder" if option != "--parquet" else "a file"] = str(
        tmp_path / ("folder" if option != "--parquet" else "file")
    )
    if option == "--parquet":
        targets.pop("loop", None)
    for what, path in targets.items():
        done = call("export", "last", option, path, "--ledger", ledger)
        assert refused(done), what


WORDS = (
    "last~", "last~-1", "last~99999999999999999999999", "last~1~1", "LAST", "", " ", "\0", "\x1b[2J",
    "a'b\"c;", "%", "_", "*", "x" * 10_000, "é", "\u202e", "\ud800", "../../etc", "-1", "zzzz", "[red]",
)  # fmt: skip


@pytest.mark.parametrize("verb", ["show", "plan", "diff", "export"])
@pytest.mark.parametrize("name", WORDS, ids=ascii)
def test_a_run_of_any_name_that_is_none_is_one_line(
    verb: str, name: str, ledger: Path, tmp_path: Path
) -> None:
    more = {"diff": ["last"], "export": ["--csv", str(tmp_path / "x.csv")]}.get(verb, [])
    assert refused(call(verb, "--ledger", ledger, *more[:2], "--", name, *(more if verb == "diff" else [])))


TIMES = ("yesterday", "", "2h3", "-1d", "9999-99-99", "1e9d", "\0", "\x1b[31m")
SPEEDS = ("sampling", "=2", "", "moon=2", "sampling=2=3", "\x1b=2")
SENSELESS = (
    *(["runs", "--since", word] for word in TIMES),
    *(["failures", "--since", word] for word in ("nan", "infd")),
    *(["failures", "--price", word] for word in ("nan", "inf", "-1", "1e999", "", "\x1b")),
    *(["runs", "--limit", word] for word in ("0", "-1", "x", "")),
    *(["plan", "last", "--speedup", word] for word in SPEEDS),
    *(["plan", "last", "--speedup", f"sampling={k}"] for k in ("0", "-1", "nan", "inf", "1e999", "")),
    ["failures", "--by", "moon"], ["runs", "--outcome", "\x1b"], ["profile", "--next", "--cancel"],
    ["export"], ["export", "--csv", ""], ["export", "--perfetto", "x"], ["nosuch"],
    ["\x1b[31m"], ["runs", "--nosuch"],
)  # fmt: skip


@pytest.mark.parametrize("words", SENSELESS, ids=ascii)
def test_an_option_that_makes_no_sense_is_one_line(words: list[str], ledger: Path) -> None:
    ours = ["--ledger", str(ledger)] if words[0] in ("runs", "failures", "plan", "profile", "export") else []
    assert refused(call(*words, *ours))


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "--since", "9" * 400 + "d"], ["runs", "--since", "0s"], ["runs", "--since", "0001-01-01"],
        ["runs", "--since", "9999-12-31"], ["runs", "--limit", "9" * 30], ["failures", "--price", "1e308"],
        ["plan", "last", "--speedup", "sampling=1e-320"], ["plan", "last", "--speedup", "sampling=1e308"],
    ],
    ids=ascii,
)  # fmt: skip
def test_numbers_at_the_edge_are_answered_or_refused_in_one_line(words: list[str], ledger: Path) -> None:
    done = call(*words, "--ledger", ledger, "--json")
    if done.exit_code:
        refused(done)
    else:
        assert done.exception is None


DEEP = 50_000
TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "no UTF-8": b"\xff\xfe\x00x",
    "deep brackets": b"[" * DEEP,
    "deep lists": b"[" * 900 + b"]" * 900,
    "deep TOML": b"x = " + b"[" * DEEP + b"]" * DEEP,
    "deep keys": b"x." * 5000 + b"x = 1",
    "deep tables": b"[" + b"a." * 5000 + b"a]",
    "deep objects": b'{"1": ' * DEEP,
    "deep workflow": b'{"1": {"class_type": "X", "inputs": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}}",
    "a long number": b"x = " + b"9" * 10_000,
    "a long JSON number": b'{"1": ' + b"9" * 10_000 + b"}",
    "keys twice": b'{"1": {"class_type": "X", "inputs": {}}, "1": {"class_type": "Y", "inputs": {}}}',
    "TOML keys twice": b"x = 1\nx = 2",
    "a date that is none": b"x = 2024-99-99",
    "NUL": b"\0",
    "half a character": b'{"\\ud800": 1}',
    "control characters": b'x = "\x1b[31m"',
    "wrong shapes": b"seam = 1\nnodes = 'x'\nhands_off = {}\narm = 3\nunit = [[]]",
    "list of lists": b"seam = [[1]]\nnodes = [[2]]\narm = [[]]\nunit = [1]",
    "a list": b"[1, 2]",
    "null": b"null",
    "text": b'"x"',
    "nodes that are none": b'{"1": 1, "2": [], "3": null}',
    "inputs that are none": b'{"1": {"class_type": [], "inputs": []}}',
    "infinite": b"name = 'x'\n[budget]\nrun_seconds = nan\n[[unit]]\nname = 'a'\nstate = 'recompute'",
    "huge": b"name = 'x'\nservers = 99999999999999999999\n[[unit]]\nname = 'a'\nstate = 'recompute'",
    "huge unit": b"name = 'x'\n[[unit]]\nname = 'a'\nstate = 'recompute'\ncounted = 9999999999999",
    "odd types": b"[[seam]]\nid = 2024-01-01\ntarget = [1, {a = 2}]\nkind = 1.5\nwhy = true\nhosts = []",
    "escape": b"[[seam]]\nid = \"\\u001b[31m\"\ntarget = 'x:y'\nkind = 'probe'\nwhy = 'x'\nhosts = 'x'",
}


@pytest.fixture(params=TEXTS, ids=str)
def bad_file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "given"
    path.write_bytes(TEXTS[request.param])
    return str(path)


def launcher(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of the launcher's refusal."""
    code = main.main(list(words))
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    (line,) = told.err.splitlines()
    assert line.startswith("stagexec: ")
    assert line.isprintable(), line
    return line


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What looks like a ComfyUI; none may be started."""
    for name in ("comfy", "comfy_execution"):
        (tmp_path / "tree" / name).mkdir(parents=True)
    for name in ("main.py", "execution.py", "nodes.py", "server.py"):
        (tmp_path / "tree" / name).write_text("raise AssertionError('it was started')")
    for name in ("STAGEXEC_LEDGER", "COMFYUI_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "tree"


@pytest.mark.parametrize("option", ["--stagexec-patches", "--stagexec-warmup"])
def test_a_file_for_the_launcher_that_is_none_is_one_line(
    option: str, bad_file: str, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = not Path(bad_file).read_bytes()
    if option == "--stagexec-patches" and empty:
        assert tables.read(Path(bad_file)).seams == {}  # no rows are no mistake
        return
    launcher(capsys, "--stagexec-comfyui", str(tree), option, bad_file)


@pytest.mark.parametrize("option", ["--stagexec-patches", "--stagexec-warmup", "--stagexec-comfyui"])
def test_a_path_for_the_launcher_that_is_none_is_one_line(
    option: str, odd: dict[str, str], tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (*odd.values(), str(tmp_path / "folder")):
        assert launcher(
            capsys, "--stagexec-comfyui", str(tree), option, path
        )  # and it is one, with exit code 2


def test_a_ledger_for_the_launcher_that_can_be_none_is_one_line(
    odd: dict[str, str], tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    never = [odd[w] for w in ("a part over 255 bytes", "over PATH_MAX", "no such user", "a NUL", "nothing")]
    for path in never:
        launcher(capsys, "--stagexec-comfyui", str(tree), "--stagexec-ledger", path)
    monkeypatch.setenv("STAGEXEC_LEDGER", odd["no such user"])
    assert "$STAGEXEC_LEDGER" in launcher(capsys, "--stagexec-comfyui", str(tree))


def test_a_ledger_that_cannot_be_kept_is_said_aloud_and_with_strict_ends_the_start(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main.ledger_problem(str(path), strict=False) is None
        assert "NO RUN WILL BE RECORDED" in capsys.readouterr().err
        words = ("--stagexec-comfyui", str(tree), "--stagexec-strict", "--stagexec-ledger", str(path))
        assert "cannot be kept" in launcher(capsys, *words)
    good = tmp_path / "new" / "ledger"
    assert main.ledger_problem(str(good), strict=True) is None
    assert list(good.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_a_plan_that_is_none_is_one_line(bad_file: str) -> None:
    assert refused(call("bench", bad_file))


def test_a_path_of_a_plan_or_workflow_that_is_none_is_one_line(odd: dict[str, str], tmp_path: Path) -> None:
    for path in (*odd.values(), str(tmp_path / "folder")):
        assert refused(call("bench", path))
        assert refused(call("bench", "executor", "--workflow", path))


def test_a_workflow_of_a_bench_that_is_none_is_one_line(bad_file: str) -> None:
    assert refused(call("bench", "executor", "--workflow", bad_file))


@pytest.mark.parametrize("option", ["--comfyui", "--models", "--against", "--out", "report"])
def test_a_folder_for_a_bench_that_is_none_is_one_line(
    option: str, odd: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was begun")

    monkeypatch.setattr("stagexec.cli.bench.carry_out", never)
    wrong = dict(odd, file=str(tmp_path / "file"))
    if option == "--out":  # a new folder is made there
        wrong = {what: path for what, path in wrong.items() if what not in ("nowhere", "control characters")}
    for what, path in wrong.items():
        words = ["report", path] if option == "report" else ["executor", option, path]
        assert refused(call("bench", *words)), what


@pytest.mark.parametrize("verb", ["doctor", "demo"])
def test_a_comfyui_that_is_none_is_one_line(verb: str, odd: dict[str, str], tmp_path: Path) -> None:
    more = ["--ledger", str(tmp_path / "led")] if verb == "demo" else []
    for what, path in dict(odd, file=str(tmp_path / "file")).items():
        done = call(verb, "--comfyui", path, *more)
        assert done.exit_code == 2, what
        assert done.exception is None or isinstance(done.exception, SystemExit), what
        assert done.stderr.splitlines()[-1].startswith("Error: "), done.stderr


def complaint(read: Callable[[Path], object], path: Path, kind: type[Exception]) -> str | None:
    """What a reader says of a file that it does not take."""
    try:
        read(path)
    except kind as problem:
        return str(problem)
    return None


def test_seeded_files_of_any_shape_are_taken_or_refused_in_one_line(tmp_path: Path) -> None:
    random_ = random.Random(20240607)
    heads = [
        b"[[seam]]\n",
        b"id = 'a'\n",
        b"[[unit]]\n",
        b"name = 'x'\n",
        b"state = 'recompute'\n",
        b"x = 1e999\n",
    ]
    signs = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"\n", b"\xef\xbb\xbf", b"target = 'a:b'\n"]
    pieces = [*TEXTS.values(), *heads, *signs, b'{"1": {"class_type": "X", "inputs": {}}}']
    path = tmp_path / "given"
    counted = 0
    for _ in range(150):
        path.write_bytes(b"".join(random_.choices(pieces, k=random_.randint(1, 5)))[:3000])
        for read, kind in (
            (tables.read, tables.TableError),
            (warmup.read, warmup.WarmupError),
            (plans.load, plans.PlanError),
        ):
            said = complaint(read, path, kind)
            counted += said is not None
            assert said is None or len(said.splitlines()) == 1, said
    assert counted > 200


def test_a_mark_of_byte_order_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(b'\xef\xbb\xbf{"1": {"class_type": "X", "inputs": {}}}')
    assert warmup.read(path) == {"1": {"class_type": "X", "inputs": {}}}


@pytest.mark.skipif(not POSIX, reason="a folder in use cannot be removed there")
def test_a_folder_that_is_gone_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.delenv("STAGEXEC_LEDGER", raising=False)
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    before = Path.cwd()
    os.chdir(gone)
    try:
        shutil.rmtree(gone)
        assert "gone" in refused(call("runs", "--ledger", "here"))
        assert refused(call("bench", "here.toml"))
        assert refused(call("doctor"))
    finally:
        os.chdir(before)


@pytest.mark.skipif(not POSIX, reason="pipes end otherwise there")
def test_a_reader_that_has_had_enough_and_a_closed_output_end_in_silence(ledger: Path) -> None:
    line = f"{sys.executable} -m stagexec runs --ledger {ledger}"
    for command in (f"{line} | true", f"{line} --json | true", f"{line} >&-", f"{line} --json >&-"):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr
        assert "Exception" not in done.stderr, done.stderr


def test_without_a_home_folder_there_is_one_line_or_an_answer(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_home(*_: object) -> str:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HOME", "STAGEXEC_LEDGER", "COMFYUI_PATH", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    monkeypatch.chdir(tmp_path)
    assert refused(call("runs"))
