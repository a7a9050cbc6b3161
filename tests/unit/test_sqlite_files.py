"""Detection of network file systems from the mount table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wbengine._sqlite import sqlite_files

TABLE = r"""/dev/sda1 / ext4 rw 0 0
server:/srv /srv nfs4 rw 0 0
/dev/sdb1 /srv/fast xfs rw 0 0
//host/share /mnt/ünser\040share cifs rw 0 0
tmpfs /hidden/below tmpfs rw 0 0
server:/srv /hidden nfs4 rw 0 0
tmpfs /opt/data tmpfs rw 0 0
me@host: /opt/data fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/flows.db", "ext4"),
        ("/srv/flows.db", "nfs4"),
        ("/srvother/flows.db", "ext4"),
        ("/srv/fast/flows.db", "xfs"),
        ("/hidden/below/flows.db", "nfs4"),
        ("/mnt/ünser share/flows.db", "cifs"),
        ("/opt/data/flows.db", "fuse.sshfs"),
    ],
)
def test_file_system_of_a_path_is_that_of_its_last_mount(path: str, kind: str) -> None:
    assert sqlite_files.kind_of(path, TABLE) == kind


def test_mounts_of_this_system_can_be_read(tmp_path: Path) -> None:
    if os.path.exists("/proc/self/mounts"):
        assert (
            sqlite_files.kind_of(str(tmp_path), Path("/proc/self/mounts").read_text()) is not None
        )
    assert sqlite_files.network_kind("/proc/self") is None
