"""Plan files: what is wrong in one is said with its line, and the shipped ones are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stagexec.bench import arms, plan
from stagexec.bench.lines import line_of
from stagexec.resources import bench_folder

SHIPPED = sorted((bench_folder() / "plans").glob("*.toml"))

UNIT = '\n[[unit]]\nname = "M03"\nstate = "recompute"\n'


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_plan_is_valid_and_says_what_it_is_for(path: Path) -> None:
    found = plan.load(path)
    assert found.name == path.stem
    assert found.about
    assert all(unit.about for unit in found.unit)


def test_the_shipped_plans_are_those_of_the_design() -> None:
    named = "self matrix attention vae_precision quantization vram cache_mode first_second executor combos"
    assert {path.stem for path in SHIPPED} == set(named.split())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_plan_pairs_by_launches_side_by_side_and_has_a_negative_control(path: Path) -> None:
    found = plan.load(path)
    assert (found.servers, found.chunk, found.repeats) == ("auto", 1, 2)
    alone = len(found.arm) == 1 or found.name == "self"
    assert all(bool(found.control_of(arm.name)) is not alone for arm in found.arm)


def test_the_matrix_has_its_ten_units() -> None:
    found = plan.load(bench_folder() / "plans" / "matrix.toml")
    assert [unit.name for unit in found.unit] == [f"M{number:02}" for number in range(1, 11)]
    by_name = {unit.name: unit for unit in found.unit}
    assert by_name["M01"].pairs == 5
    assert not by_name["M02"].ranked
    assert all((by_name[f"M0{n}"].warmups, by_name[f"M0{n}"].pairs) == (3, 10) for n in range(3, 9))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("name =\n", 1, "not TOML"),
        ('name = "x"\n\nfoo = 1\n' + UNIT, 3, "unknown key `foo`"),
        ('about = "x"\n' + UNIT, 1, "`name` is missing"),
        ('name = "x"\n', 1, "at least one [[unit]]"),
        ('name = "x"\n[[arm]]\nname = "a"\nargs = "--x"\n' + UNIT, 4, "Expected `array`"),
        ('name = "x"\n[[arm]]\nname = "a"\n[[arm]]\nname = "a"\n' + UNIT, 5, "two times arm 'a'"),
        ('name = "x"\n[[arm]]\nname = "a"\n\nedits = [{ node = "1" }]\n' + UNIT, 5, "changes nothing"),
        ('name = "x"\n[[arm]]\nname = "a"\nedits = [{ input = "s", value = 1 }]\n' + UNIT, 4, "or a `class`"),
        ('name = "x"\n[[arm]]\nname = "a"\nactive = [{ what = "w", log = "(" }]\n' + UNIT, 4, "proof 'w'"),
        ('name = "x"\n[[arm]]\nname = "a"\nactive = [{ what = "w" }]\n' + UNIT, 4, "names no evidence"),
        ('name = "x"\nreference = "z"\n[[arm]]\nname = "a"\n' + UNIT, 2, "'z' is no arm"),
        ('name = "x"\ntiming = "fast"\n' + UNIT, 2, "baseline, events, profile"),
        ('name = "x"\nservers = 0\n' + UNIT, 2, "1 or more"),
        ('name = "x"\nservers = "many"\n' + UNIT, 2, 'servers is a number, or "auto"'),
        ('name = "x"\nrepeats = 0\n' + UNIT, 2, "1 or more"),
        ('name = "x"\ncontrol = ["dreaming"]\n' + UNIT, 2, "'dreaming' is no stage: queue_wait"),
        ('name = "x"\n[[arm]]\nname = "a"\ncontrol = ["x"]\n' + UNIT, 4, "'x' is no stage"),
        ('name = "x"\n[[unit]]\nname = "u"\nstate = "hot"\n', 4, "unknown state 'hot': one of process_cold"),
        ('name = "x"\n[[unit]]\nname = "u"\nstate = "recompute"\nuntil = "x"\n', 5, "unknown end 'x'"),
        ('name = "x"\n[[arm]]\nname = "a"\n' + UNIT + 'arms = ["z"]\n', 8, "'z' is no arm"),
        ('name = "x"\n[[unit]]\nname = "u"\nstate = "switch"\n', 2, "needs `switch` edits"),
        ('name = "x"\n[[unit]]\nname = "u"\nstate = "queue"\n', 2, "needs `concurrency`"),
        ('name = "x"\n[[unit]]\nname = "u"\nstate = "recompute"\ncounted = 0\n', 5, "counted 1 or more"),
        ('name = "x"\n[[unit]]\nname = "u"\nstate = "process_cold"\nwarmup = 1\n', 5, "no warm-up"),
        ('name = "x"\n[[arm]]\nname = "a"\nargs = ["--port=1"]\n' + UNIT, 4, "--port is the bench's own"),
        ('name = "x"\n[quality]\npsnr = 3\n' + UNIT, 3, "unknown key `psnr`"),
        ('name = "x"\n[[factor]]\nname = "f"\nlevel = []\n' + UNIT, 2, "has no level"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_plan_is_said_with_its_line(text: str, line: int, what: str) -> None:
    with pytest.raises(plan.PlanError) as caught:
        plan.parse(text, "my.toml")
    message = str(caught.value)
    assert message.startswith(f"my.toml:{line}: "), message
    assert what in message
    assert "\n" not in message


def test_the_line_of_a_key_is_found_in_nested_and_repeated_tables() -> None:
    text = '[a.b]\nx = 1\n[[c]]\ny = 1\n[[c]]\n[c.d]\nz = 2 # z\n[[c.e]]\n"q" = 1\n'
    assert line_of(text, ["a", "b", "x"]) == 2
    assert line_of(text, ["c", 0, "y"]) == 4
    assert line_of(text, ["c", 1]) == 5
    assert line_of(text, ["c", 1, "d", "z"]) == 7
    assert line_of(text, ["c", 1, "e", 0, "q"]) == 9
    assert line_of(text, ["nowhere"]) == 1


def test_a_plan_is_found_by_path_and_by_name_of_a_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('name = "mine"\n' + UNIT)
    assert plan.load(plan.find(str(own))).name == "mine"
    assert plan.find("attention").name == "attention.toml"
    with pytest.raises(plan.PlanError, match="nothing_such"):
        plan.find("nothing_such")


def test_a_plan_without_arms_has_one_that_changes_nothing() -> None:
    found = plan.parse('name = "x"\n' + UNIT)
    assert [(arm.args, arm.edits) for arm in found.arm] == [([], [])]


def factors(fraction: int) -> plan.Plan:
    text = f'name = "x"\nfraction = {fraction}\n'
    for factor in "abc":
        text += f'[[factor]]\nname = "{factor}"\n'
        for level in range(2):
            text += f'[[factor.level]]\nname = "{factor}{level}"\nargs = ["--{factor}{level}"]\n'
    return plan.parse(text + UNIT)


def test_factors_become_all_their_combinations() -> None:
    found = factors(1).arm
    assert len(found) == len({arm.name for arm in found}) == 8
    assert found[-1].args == ["--a1", "--b1", "--c1"]
    assert found[-1].levels == {"a": "a1", "b": "b1", "c": "c1"}


def test_half_of_the_combinations_still_has_every_level_equally_often() -> None:
    found = factors(2).arm
    assert len(found) == 4
    for factor in "abc":
        levels = [arm.levels[factor] for arm in found]
        assert levels.count(f"{factor}0") == levels.count(f"{factor}1") == 2


PROMPT = {
    "1": {"class_type": "Loader", "inputs": {"name": "a"}},
    "2": {"class_type": "Sampler", "inputs": {"seed": 1, "model": ["1", 0]}},
    "3": {"class_type": "Decode", "inputs": {"samples": ["2", 0]}},
}


def test_edits_change_inputs_classes_and_add_nodes_and_leave_the_original_alone() -> None:
    edits = [
        plan.Edit(node="1", input="name", value="b"),
        plan.Edit(class_name="Decode", becomes="Tiled", set={"tile": 512}),
        plan.Edit(add="9", class_name="Extra", set={"x": 1}),
        plan.Edit(node="3", input="vae", value=["9", 0]),
    ]
    made = arms.edited(PROMPT, edits)
    assert made["1"]["inputs"]["name"] == "b"
    assert made["3"] == {"class_type": "Tiled", "inputs": {"samples": ["2", 0], "tile": 512, "vae": ["9", 0]}}
    assert made["9"] == {"class_type": "Extra", "inputs": {"x": 1}}
    assert PROMPT["1"]["inputs"]["name"] == "a"
    assert "9" not in PROMPT


@pytest.mark.parametrize("edit", [plan.Edit(node="7", becomes="X"), plan.Edit(class_name="No", becomes="X")])
def test_an_edit_that_fits_nothing_is_refused(edit: plan.Edit) -> None:
    with pytest.raises(arms.CannotEdit, match="no node"):
        arms.edited(PROMPT, [edit])


def test_an_option_that_the_host_does_not_know_is_named() -> None:
    known = {"--cache-none", "--fast"}.__contains__
    assert arms.unknown_option(["--cache-none", "--fast", "x", "--stagexec-executor", "host"], known) is None
    assert arms.unknown_option(["--fast", "--use-magic=1"], known) == "--use-magic"


def test_a_missing_package_or_file_is_the_reason_that_an_arm_cannot_run(tmp_path: Path) -> None:
    import sys

    need = plan.Needs(modules=["json", "no_such_package"])
    assert arms.missing_needs(need, sys.executable, []) == "the package no_such_package is not installed"
    assert arms.missing_needs(plan.Needs(modules=["json"]), sys.executable, []) is None
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "a.safetensors").write_bytes(b"")
    assert arms.missing_needs(plan.Needs(files=["vae/a.safetensors"]), sys.executable, [tmp_path]) is None
    assert "no file" in str(arms.missing_needs(plan.Needs(files=["vae/b"]), sys.executable, [tmp_path]))


RUN = {
    "executor": "native",
    "cached_nodes": [],
    "cached_in_run": [],
    "visits": [{"class_type": "Decode", "kind": "executed"}, {"class_type": "Loader", "kind": "cached"}],
}
LOG = "start\nUsing pytorch attention in VAE\nUsing pytorch attention\nend"


@pytest.mark.parametrize(
    ("proof", "ok", "evidence"),
    [
        (plan.Proof("a", field="attention_backend", value="split", log="x"), False, "the condition's"),
        (plan.Proof("a", field="precision", value="x", log=r"attention\s*$"), True, "a line of the"),
        (plan.Proof("a", row="executor", value="^native$"), True, "the ledger's executor"),
        (plan.Proof("a", row="executor", value="^host$"), False, "the ledger's executor"),
        (plan.Proof("a", executed="Decode"), True, "the ledger's visits"),
        (plan.Proof("a", executed="Loader"), False, "the ledger's visits"),
        (plan.Proof("a", cached=True), False, "the ledger's cached nodes"),
        (plan.Proof("a", log="Using sage"), False, "a line of the server's log"),
        (plan.Proof("a", field="unknown"), None, "none"),
    ],
)  # fmt: skip
def test_a_proof_is_decided_by_the_best_evidence_there_is(
    proof: plan.Proof, ok: bool | None, evidence: str
) -> None:
    found = arms.prove(proof, {"attention_backend": "pytorch", "precision": None}, RUN, LOG)
    assert found["ok"] is ok
    assert found["evidence"].startswith(evidence)


def test_a_proof_from_the_log_quotes_its_line() -> None:
    found = arms.prove(plan.Proof("a", log=r"pytorch attention$"), None, RUN, LOG)
    assert found["found"] == "Using pytorch attention"
    last = arms.prove(plan.Proof("a", log="end"), None, RUN, LOG)
    assert re.fullmatch("end", last["found"])


def test_every_key_state_and_end_of_a_plan_is_in_the_documentation() -> None:
    from stagexec.bench import units

    text = (Path(__file__).resolve().parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`\[*([a-z_]+)\]*`", text))
    kinds = (plan.Plan, plan.Arm, plan.Unit, plan.Edit, plan.Needs, plan.Proof, plan.Quality, plan.Budget)
    keys = {name for kind in kinds for name in kind.__struct_encode_fields__}
    missing = (keys | set(units.STATES) | set(units.UNTIL)) - told - {"what", "levels"}
    assert not missing
    assert {path.stem for path in SHIPPED} <= told
