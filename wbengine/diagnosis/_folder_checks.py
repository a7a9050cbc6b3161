"""Checks of a folder: access, free space, and the process that writes."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Final

from wbengine._sqlite import sqlite_files
from wbengine.diagnosis._clocks import check_clock
from wbengine.diagnosis.findings import Finding, Place, bad, good
from wbengine.transports import Target
from wbengine.transports._folder import folder_tables

__all__ = ["check", "fix"]

_MIN_FREE_BYTES: Final = 100 * 1024 * 1024


def fix(reason: str, target: Target | None) -> str | None:
    """Return how to make a folder usable that was not for a reason.

    :param target: None if the default folder cannot be used.
    """
    match = re.search(r"folder (\S+)", reason)
    path = target.place[0] if target is not None else match[1] if match else "FOLDER"
    if "belongs to user id" in reason:
        return f"run: chown -R {os.geteuid()} {path}; or use another folder"
    if "open to other users" in reason:
        return f"run: chmod 700 {path}"
    if "written by other users" in reason:
        return f"run: chmod go-w {path}"
    if "is a symlink" in reason:
        return f"remove the symlink {path}, which another user may have created"
    if "not a folder" in reason:
        return f"remove the file {path}, or use another folder with --url filesystem:///PATH"
    return f"create a folder that this user can write: mkdir -p {path}; chmod u+rwx {path}"


def check(place: Place) -> Iterator[Finding]:
    """Check the free space, the clock and the process that writes to the file."""
    folder = place.target.place[0]
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE_BYTES:
        yield bad("broker settings", f"{folder} must have at least {_MIN_FREE_BYTES // 1024**2} MB"
                  f" of free space, got {free // 1024**2} MB",
                  "free some space; messages and results are files")  # fmt: skip
    else:
        yield good(
            "broker settings", f"{folder} is writable and has {free // 1024**2:,} MB of free space"
        )
    os.utime(folder)
    yield from check_clock("broker clock", "of the files", os.stat(folder).st_mtime - time.time())
    writer = sqlite_files.describe_writer(f"{folder}/{folder_tables.NAME}")
    if writer is not None and "stopped" in writer:
        yield bad("broker file", f"{folder}: {writer}", "resume that process or end it")
