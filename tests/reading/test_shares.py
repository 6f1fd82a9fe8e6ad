"""Non-compute share and pictures a second, in `show` and `runs` alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagexec.reading import rows, table
from stagexec.reading.store import load
from tests.reading.fake_journal import MS, FakeJournal, FakeRun

GRAPH = {"1": ("Draw", []), "2": ("Save", ["1"])}


def run_with(folder: Path, *files: tuple[str, dict[str, object]]) -> dict[str, object]:
    """`show` of a run: 5 ms waiting, 300 ms sampling, 100 ms loading, 95 ms of delivery, and these files."""
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", GRAPH).spend(5 * MS).start()
    run.visit(1, "1", "Draw", [("model_load_residency", 100 * MS), ("sampling", 300 * MS)])
    for at, (path, fields) in enumerate(files):
        run.artifact("2", path, **{"frames": None, **fields, "sha256": f"{at:02}" * 32})
    run.execute(outputs={"2": len(files)}).spend(95 * MS).close()
    journal.write(folder)
    found = load(folder).runs[-1]
    shown = rows.detail(found)
    kept = ("pictures", "pictures_per_s", "non_compute_share")
    assert {name: shown[name] for name in kept}.items() <= table.summary_of(table.flat(found)).items()
    return shown


def test_what_lies_outside_of_the_making_stages_is_the_non_compute_share(tmp_path: Path) -> None:
    shown = run_with(tmp_path)
    assert shown["total_ns"] == 500 * MS
    assert shown["non_compute_share"] == pytest.approx(0.4)
    assert (shown["pictures"], shown["pictures_per_s"]) == (0, None)


def test_images_count_once_and_videos_by_their_frames(tmp_path: Path) -> None:
    image = ("/out/a.png", {"frames": 1})
    video = ("/out/a.mp4", {"media": "video", "frames": 24})
    moving = ("/out/a.webp", {"frames": 5})
    shown = run_with(tmp_path, image, video, moving)
    assert shown["pictures"] == 30
    assert shown["pictures_per_s"] == pytest.approx(60)


@pytest.mark.parametrize(
    "fields", [{"cached": True}, {"state": "missing"}, {"orphan": True}, {"media": "audio"}]
)
def test_what_was_not_made_and_delivered_here_does_not_count(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    assert run_with(tmp_path, ("/out/a.png", {"frames": 1, **fields}))["pictures"] == 0


def test_a_video_of_unknown_length_makes_the_count_unknown(tmp_path: Path) -> None:
    shown = run_with(tmp_path, ("/out/a.png", {}), ("/out/a.mp4", {"media": "video"}))
    assert (shown["pictures"], shown["pictures_per_s"]) == (None, None)
    assert run_with(tmp_path / "old", ("/out/a.png", {}))["pictures"] == 1
