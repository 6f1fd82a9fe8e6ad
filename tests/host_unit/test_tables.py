"""Seam tables: the shipped ones hold together, and a wrong one says file, row and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagexec.host.tables import TableError, load, read
from stagexec.stages import OPEN_STAGE, STAGES

GOOD = """
[[seam]]
id = "one"
target = "pack.mod:f"
kind = "stage"
stage = "sampling"
why = "seen"
hosts = "all hosts"
"""


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_tables_load_and_each_row_says_why() -> None:
    tables = load()
    assert len(tables.seams) > 50
    assert all(len(row.why) > 10 for row in tables.seams.values())
    assert {row.stage for row in tables.seams.values()} - {None, OPEN_STAGE} <= set(STAGES)


def test_the_place_the_host_restores_itself_is_off_limits(tmp_path: Path) -> None:
    mine = GOOD.replace("pack.mod:f", "comfy.model_management:cast_to")
    with pytest.raises(TableError, match="cast_to must not be patched: hook_breaker_ac10a0"):
        load([file(tmp_path, mine)])


def test_a_users_table_is_added_to_the_shipped_ones(tmp_path: Path) -> None:
    path = file(tmp_path, GOOD)
    tables = load([path])
    assert tables.seams["one"].target == ("pack.mod:f",)
    assert tables.seams["one"].source == str(path)
    assert tables.files[-1] == str(path)


def test_a_users_seam_with_a_shipped_id_takes_its_place(tmp_path: Path) -> None:
    mine = GOOD.replace('"one"', '"vae_decode"').replace("pack.mod:f", "comfy.sd:VAE.decode_renamed")
    assert load([file(tmp_path, mine)]).seams["vae_decode"].target == ("comfy.sd:VAE.decode_renamed",)


def test_a_row_of_a_class_that_does_several_things_has_a_hint(tmp_path: Path) -> None:
    text = '[[nodes]]\nstage = "node_other"\nhint = "sampling"\nwhy = "mine"\nclasses = ["Detailer"]\n'
    assert load([file(tmp_path, text)]).nodes["Detailer"].hint == "sampling"
    for wrong in (text.replace('"sampling"', '"sampel"'), text.replace('"node_other"', '"postprocess"')):
        with pytest.raises(TableError, match="a hint is a stage, and is given beside stage node_other alone"):
            load([file(tmp_path, wrong)])


def test_a_users_node_class_takes_the_shipped_one_s_place(tmp_path: Path) -> None:
    text = '[[nodes]]\nstage = "postprocess"\npart = "<node class>"\nwhy = "mine"\nclasses = ["Canny"]\n'
    row = load([file(tmp_path, text)]).nodes["Canny"]
    assert (row.stage, row.part) == ("postprocess", "Canny")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("why", "reason"), r"mine.toml: seam 'one': .*unknown field `reason`"),
        (('why = "seen"\n', ""), r"mine.toml: seam 'one': .*missing required field `why`"),
        (('"seen"', '" "'), r"mine.toml: seam 'one': why and hosts must say something"),
        (('"sampling"', '"sampeling"'), r"mine.toml: seam 'one': unknown stage 'sampeling'"),
        (('stage = "sampling"\n', ""), r"mine.toml: seam 'one': a row of kind stage needs a stage"),
        (('"stage"', '"wrap"'), r"mine.toml: seam 'one': Invalid enum value 'wrap'"),
        (('"pack.mod:f"', '"pack.mod.f"'), r"target 'pack.mod.f' is neither 'module:qualname' nor"),
        (('"pack.mod:f"', "[]"), r"target is empty"),
        (('"pack.mod:f"', "7"), r"seam 'one': Expected `array`, got `int` - at `\$.target`"),
        (('"one"', '"One!"'), r"the id must be lower-case letters"),
        (('why = "seen"', 'why = "seen"\npart = "stepp"'), r"unknown part 'stepp' of stage 'sampling'"),
        (('why = "seen"', 'why = "seen"\nprobe = "x"'), r"unknown probe 'x'; the probes are: "),
        (
            ('why = "seen"', 'why = "seen"\nnot_inside = ["unknown"]'),
            r"names the seam 'unknown', which no table has",
        ),
        (
            ('why = "seen"', 'why = "seen"\nnot_while = ["encod"]'),
            r"not_while names 'encod', which is no stage",
        ),
        (('kind = "stage"', 'kind = "probe"\nprobe = "cancel"'), r"a row of kind probe has no stage"),
    ],
)
def test_a_wrong_seam_row_is_named_with_what_is_wrong(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert change[0] in GOOD
    with pytest.raises(TableError, match=message):
        load([file(tmp_path, GOOD.replace(*change))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[seam]\n", r"mine.toml: is not TOML"),
        ("[[seams]]\n", r"mine.toml: unknown table seams; known are seam, nodes, hands_off"),
        ("[seam]\nid = 1\n", r"mine.toml: seam must be written as \[\[seam\]\]"),
        (GOOD + GOOD, r"mine.toml: seam 'one': the id is used twice"),
        ('[[nodes]]\nstage = "x"\nwhy = "y"\nclasses = []\n', r"mine.toml: nodes 1: unknown stage 'x'"),
        (
            '[[nodes]]\nstage = "sampling"\nwhy = "y"\nclasses = ["A", "A"]\n',
            r"mine.toml: nodes 1: node class 'A' is listed twice",
        ),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        read(file(tmp_path, text))


def test_a_file_that_is_not_there_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"nowhere.toml: cannot be read") as caught:
        load([tmp_path / "nowhere.toml"])
    assert "\n" not in str(caught.value)


def test_a_table_error_is_a_value_error() -> None:
    assert issubclass(TableError, ValueError)
