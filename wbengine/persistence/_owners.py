"""Owners of leases, as texts from which another process can determine that the owner is dead.

A process can determine this only for owners on its own host since the latest boot, in its own
process namespace. In all other cases the lease has to expire.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from wbengine._concurrency import clocks

__all__ = ["Owner", "is_dead", "describe", "is_momentary", "new"]

#: Value of an unknown part.
_UNKNOWN: Final = "-"

#: Last part in the text of a `momentary` owner.
_MOMENTARY: Final = "momentary"

#: Characters that are replaced in the host name.
_INVALID_HOST_CHARACTER: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Owner:
    """One run of an engine, or one change of a flow outside of runs (`momentary`).

    The text has at most 160 characters. `born` is the start time of the process. `pid` is valid for
    `boot` and `space` (boot and namespace of the host). `process` is a random name of the process,
    and `run` numbers its runs. `since` is in Unix seconds of the host, for display.
    """

    host: str
    pid: int
    born: str
    boot: str
    space: str
    process: str
    run: int
    since: int
    momentary: bool = False

    def __str__(self) -> str:
        parts = (self.host, self.pid, self.born, self.boot, self.space, self.process, self.run)
        last = (_MOMENTARY,) if self.momentary else ()
        return "/".join(map(str, (*parts, self.since, *last)))

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Parse the text of an owner. Return None if the format is unknown."""
        parts = text.split("/")
        try:
            host, pid, born, boot, space, process, run, since = parts[:8]
            momentary = parts[8:] == [_MOMENTARY]
            if parts[8:] and not momentary:
                return None
            return cls(host, int(pid), born, boot, space, process, int(run), int(since), momentary)
        except ValueError:
            return None

    def end_run(self) -> None:
        """End this run, whether or not it still has the lease."""
        _running.discard((self.process, self.run))


class _Process:
    """The parts that all owners of this process share. A fork creates them again."""

    def __init__(self) -> None:
        self.host = _INVALID_HOST_CHARACTER.sub("_", socket.gethostname())[:60] or _UNKNOWN
        self.pid = os.getpid()
        self.born = _status(self.pid)[1]
        self.boot = _read("/proc/sys/kernel/random/boot_id").strip().replace("-", "") or _UNKNOWN
        self.space = _namespaces()
        self.name = secrets.token_hex(6)


_process: _Process | None = None
_numbers = itertools.count(1)
_running: set[tuple[str, int]] = set()


def new(clock: clocks.Clock = clocks.SYSTEM, *, momentary: bool = False) -> Owner:
    """Create an owner in this process. Call `end_run` when the owner ends."""
    this_process = _current_process()
    owner = Owner(
        this_process.host, this_process.pid, this_process.born, this_process.boot,
        this_process.space, this_process.name, next(_numbers), int(clock.time()), momentary,
    )  # fmt: skip
    _running.add((owner.process, owner.run))
    return owner


def is_dead(text: str) -> bool:
    """Return True only if the owner has certainly ended."""
    owner, this_process = Owner.parse(text), _current_process()
    if owner is None:
        return False
    if owner.process == this_process.name:
        return (owner.process, owner.run) not in _running
    origin = (owner.host, owner.boot, owner.space)
    if _UNKNOWN in (*origin, owner.born) or origin != (
        this_process.host,
        this_process.boot,
        this_process.space,
    ):
        return False
    return _process_died(owner.pid, owner.born)


def is_momentary(text: str) -> bool:
    """Return True if the owner needs the lease for one change only."""
    owner = Owner.parse(text)
    return owner is not None and owner.momentary


def describe(text: str) -> str:
    owner = Owner.parse(text)
    if owner is None:
        return text
    since = datetime.fromtimestamp(owner.since, UTC)
    note = " (this process)" if owner.process == _current_process().name else ""
    return f"process {owner.pid}{note} on host {owner.host} (since {since:%Y-%m-%d %H:%M:%S} UTC)"


def _current_process() -> _Process:
    global _process
    if _process is None:
        _process = _Process()
    return _process


def _reset_after_fork() -> None:
    global _process
    _process = None
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _process_died(pid: int, born: str) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # The process exists and belongs to another user.
    state, since = _status(pid)
    if since == _UNKNOWN:
        return False  # The process may exist, but not be visible to this process.
    return since != born or (state in ("Z", "X") and _threads(pid) <= 1)


def _status(pid: int) -> tuple[str, str]:
    """Return the state and start time (in ticks since boot) of a process, or unknown."""
    # The process name precedes these fields, in parentheses. It can contain any character.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else (_UNKNOWN, _UNKNOWN)


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _namespaces() -> str:
    numbers = []
    for kind in ("pid", "time"):
        try:
            numbers.append(re.sub(r"\D", "", os.readlink(f"/proc/self/ns/{kind}")))
        except OSError:
            numbers.append("")  # Older kernels have no time namespaces.
    return ".".join(numbers) if numbers[0] else _UNKNOWN


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
