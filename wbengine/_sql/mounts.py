"""On what kind of file system a file is, as the system tells: sqlite needs one whose locks work."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["NETWORK", "kind_of", "network_kind"]

#: File systems of other hosts: their locks do not hold, or not those of shared memory.
NETWORK: Final = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
        "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
        "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    )
)  # fmt: skip

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_TABLE: Final = Path("/proc/self/mounts")


def network_kind(path: str) -> str | None:
    """The kind of network file system that a file is on; None: on none, or nothing tells."""
    try:
        table = _TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    kind = kind_of(os.path.realpath(path), table)
    return kind if kind in NETWORK else None


def kind_of(path: str, table: str) -> str | None:
    """The kind of file system that a path is on, by the system's table of mounts."""
    found = None
    for line in table.splitlines():
        _, place, kind, *_ = line.split(" ")
        place = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), place)
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside:  # the last one counts: it hides what was mounted there before
            found = kind
    return found
