"""Which file systems count as this machine's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stagexec.record import disks

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /mnt/share rw - nfs4 server:/x rw
31 22 0:41 / /mnt/share\040two rw - cifs //server/y rw
32 22 0:42 / /mnt/drive rw - fuse.sshfs host: rw
33 30 0:43 / /mnt/share/scratch rw shared:2 master:1 - tmpfs none rw
34 22 0:44 / /srv rw - nfs server:/srv rw
35 34 8:2 / /srv rw - xfs /dev/sdb rw
broken line
""".lstrip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/a/ledger", "ext4"),
        ("/mnt/share/ledger", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/share two/x", "cifs"),
        ("/mnt/drive", "fuse.sshfs"),
        ("/mnt/share/scratch/x", "tmpfs"),
        ("/srv/x", "xfs"),
    ],
)
def test_a_path_belongs_to_the_innermost_and_latest_mount(path: str, kind: str) -> None:
    assert disks._kind_of(path, MOUNTS) == kind


def test_network_and_user_space_file_systems_are_not_local() -> None:
    assert {"ext4", "xfs", "tmpfs", "overlay"} <= disks.LOCAL_KINDS
    assert not disks.LOCAL_KINDS & {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuseblk", "9p", "virtiofs"}


@pytest.mark.skipif(sys.platform != "linux", reason="the table of mounts is Linux's")
def test_a_folder_that_does_not_exist_yet_is_judged_by_where_it_would_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mounts"
    monkeypatch.setattr(disks, "MOUNTS", table)
    table.write_text(f"1 0 8:1 / {tmp_path} rw - ext4 x rw\n2 1 0:9 / {tmp_path}/net rw - nfs x rw\n")
    assert disks.is_local(tmp_path / "a" / "b")
    assert not disks.is_local(tmp_path / "net" / "b")
    table.unlink()
    assert not disks.is_local(tmp_path / "a"), "what cannot be known counts as far away"
