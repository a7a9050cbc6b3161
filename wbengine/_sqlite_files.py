"""What the system tells of an sqlite file: on what kind of file system it is, and who writes it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["NETWORK", "describe_writer", "is_stopped", "kind_of", "network_kind", "writer_of"]

#: File systems of other hosts: their locks do not hold, or not those of shared memory.
NETWORK: Final = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
        "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
        "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    )
)  # fmt: skip

#: In the index of a WAL (the file '-shm') its writer has a lock on this byte.
_WRITE_LOCK_BYTE: Final = 120

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


def writer_of(path: str) -> int | None:
    """The process that has the write lock of a database; None: none, or the system does not tell.

    The locks are read from the system's list: to open the file and ask would, when it is closed,
    end the locks that this process has on it.
    """
    try:
        index = os.stat(f"{path}-shm")
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    file = f"{os.major(index.st_dev):02x}:{os.minor(index.st_dev):02x}:{index.st_ino}"
    for line in locks.splitlines():
        # 1: POSIX  ADVISORY  WRITE 4242 fe:00:131 120 120
        words = line.split()
        if len(words) == 8 and words[5] == file and words[3] == "WRITE":
            first, last = words[6:]
            if int(first) <= _WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= _WRITE_LOCK_BYTE):
                return int(words[4])
    return None


def is_stopped(process: int) -> bool:
    """Whether a process was told to stop (`SIGSTOP`, a debugger)."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"


def describe_writer(path: str) -> str | None:
    """Which process writes a database now, and whether it is stopped; None: none does."""
    writer = writer_of(path)
    if writer is None:
        return None
    if is_stopped(writer):
        return f"process {writer} writes it, and is stopped (kill -CONT {writer} lets it go on)"
    return f"process {writer} writes it"
