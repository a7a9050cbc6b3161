"""Who runs or changes a flow: a text that names a process, and by which its death can be proved.

The text travels in the lease.  Proving death is only tried where it is certain: for a process of
this host, since it was booted last, among the processes that this one can see.  Everybody else's
lease has to run out.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import socket
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from wbengine import _clock

__all__ = ["Owner", "died", "in_words", "is_momentary", "new"]

#: Where nothing is known.
_UNKNOWN: Final = "-"

#: The last part of the text of an owner that is `momentary`; others have none.
_MOMENTARY: Final = "momentary"

#: What of a host's name is kept: with the rest, the text has at most 160 characters.
_HOST: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Owner:
    """One run of an engine, or one change of a flow outside of runs, which is `momentary`.

    `born` is when its process was started, `boot` and `space` say among which processes `pid` is
    its number; `process` is random, and `run` tells the runs of that process apart.  `since` is in
    unix seconds of its own host, for people.
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
        """The owner that `text` describes; None if it is of another make."""
        parts = text.split("/")
        try:
            host, pid, born, boot, space, process, run, since = parts[:8]
            momentary = parts[8:] == [_MOMENTARY]
            if parts[8:] and not momentary:
                return None
            return cls(host, int(pid), born, boot, space, process, int(run), int(since), momentary)
        except ValueError:
            return None

    def let_go(self) -> None:
        """This run is over, whatever its lease says."""
        _running.discard((self.process, self.run))


class _Process:
    """What is the same for all owners of this process; made anew after a fork."""

    def __init__(self) -> None:
        self.host = _HOST.sub("_", socket.gethostname())[:60] or _UNKNOWN
        self.pid = os.getpid()
        self.born = _status(self.pid)[1]
        self.boot = _read("/proc/sys/kernel/random/boot_id").strip().replace("-", "") or _UNKNOWN
        self.space = _space()
        self.name = secrets.token_hex(6)


_this: _Process | None = None
_numbers = itertools.count(1)
#: The runs of this process that are not over.
_running: set[tuple[str, int]] = set()


def new(clock: _clock.Clock = _clock.SYSTEM, *, momentary: bool = False) -> Owner:
    """The owner that begins now, in this process; call `let_go` when it ends."""
    here = _here()
    owner = Owner(
        here.host, here.pid, here.born, here.boot, here.space, here.name,
        next(_numbers), int(clock.time()), momentary,
    )  # fmt: skip
    _running.add((owner.process, owner.run))
    return owner


def died(text: str) -> bool:
    """Whether it is certain that the owner that `text` describes runs nothing any more."""
    owner, here = Owner.parse(text), _here()
    if owner is None:
        return False
    if owner.process == here.name:
        return (owner.process, owner.run) not in _running
    theirs = (owner.host, owner.boot, owner.space)
    if _UNKNOWN in (*theirs, owner.born) or theirs != (here.host, here.boot, here.space):
        return False
    return _process_died(owner.pid, owner.born)


def is_momentary(text: str) -> bool:
    """Whether the owner that `text` describes holds the lease for one change only."""
    owner = Owner.parse(text)
    return owner is not None and owner.momentary


def in_words(text: str) -> str:
    """An owner as people call it."""
    owner = Owner.parse(text)
    if owner is None:
        return text
    since = datetime.fromtimestamp(owner.since, timezone.utc)
    mine = ", which is this one," if owner.process == _here().name else ""
    return f"process {owner.pid}{mine} on host {owner.host} (since {since:%Y-%m-%d %H:%M:%S} UTC)"


def _here() -> _Process:
    global _this
    if _this is None:
        _this = _Process()
    return _this


def _forked() -> None:
    global _this
    _this = None
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _process_died(pid: int, born: str) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is somebody else's
    state, since = _status(pid)
    if since == _UNKNOWN:
        return False  # it may be hidden from us
    return since != born or (state in ("Z", "X") and _threads(pid) <= 1)


def _status(pid: int) -> tuple[str, str]:
    """The state of a process and when it was started (in ticks since boot), as far as is told."""
    # Its name comes first, in brackets, and may hold anything.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else (_UNKNOWN, _UNKNOWN)


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _space() -> str:
    """Which processes this one can see, and by which clock it is told when they were started."""
    found = []
    for kind in ("pid", "time"):
        try:
            found.append(re.sub(r"\D", "", os.readlink(f"/proc/self/ns/{kind}")))
        except OSError:
            found.append("")  # older systems have one clock for all
    return ".".join(found) if found[0] else _UNKNOWN


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
