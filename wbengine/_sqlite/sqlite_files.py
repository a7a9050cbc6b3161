"""Information about an SQLite file from the operating system: its file system and its writer."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["NETWORK", "describe_writer", "is_stopped", "kind_of", "network_kind", "writer_of"]

#: Network file systems, whose locks or shared memory are unreliable.
NETWORK: Final = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
        "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
        "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    )
)  # fmt: skip

#: The byte of the WAL index (the file '-shm') that the writer locks.
_WRITE_LOCK_BYTE: Final = 120

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_MOUNTS_FILE: Final = Path("/proc/self/mounts")


def network_kind(path: str) -> str | None:
    """Return the kind of network file system of a file, or None if it is local or unknown."""
    try:
        table = _MOUNTS_FILE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    kind = kind_of(os.path.realpath(path), table)
    return kind if kind in NETWORK else None


def kind_of(path: str, table: str) -> str | None:
    """Return the kind of file system of a path, according to a table of mounts."""
    innermost_kind = None
    for line in table.splitlines():
        _, mount_point, kind, *_ = line.split(" ")
        mount_point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), mount_point)
        inside = path == mount_point or path.startswith(mount_point.rstrip("/") + "/")
        if inside:  # The last match counts, because it hides earlier mounts.
            innermost_kind = kind
    return innermost_kind


def writer_of(path: str) -> int | None:
    """Return the id of the process that has the write lock of a database, or None if unknown.

    This reads the system's list of locks. Opening and closing the file would release this process's
    own locks on it.
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
    """Return True if a process is stopped (`SIGSTOP`, a debugger)."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"


def describe_writer(path: str) -> str | None:
    """Describe the process that writes a database, or return None."""
    writer = writer_of(path)
    if writer is None:
        return None
    if is_stopped(writer):
        return f"stopped process {writer} is writing it (to continue: kill -CONT {writer})"
    return f"process {writer} is writing it"
