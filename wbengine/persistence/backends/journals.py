"""Folders of the version before, which kept journals: they are read, whole, to be moved.

Every file has lines, each ``<crc32> <version> <kind> <key> <major> <minor> <json>``; the checksum
is of all that follows it.  A flow's folder has ``records.<n>``, ``journal.<n>`` with the turns
since, and ``head``, which says the number, the latest lease, and how much of the journal counts at
least.  A *turn* is a line that says how many follow: they count all, or (at the end of a journal)
none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine.persistence import models, trees
from wbengine.types.outline import Outline

__all__ = ["KeptFlow", "books", "is_one", "read_flow"]

_VERSION: Final = 1
_PLACE: Final = 512
_PLAIN: Final = re.compile(r"[0-9a-z][0-9a-z_-]{0,99}").fullmatch


class _Damaged(Exception):
    pass


class _Line(NamedTuple):
    kind: str
    key: str
    major: int
    minor: int
    text: bytes

    def tree(self) -> Any:
        return json.loads(self.text.decode("utf-8", "surrogatepass"))


class KeptFlow(NamedTuple):
    """A flow that was kept, with the epoch of its latest lease."""

    detail: models.FlowDetail
    outline: Outline | None
    #: Who runs it (None: nobody does).
    owner: str | None


def is_one(path: str) -> bool:
    """Whether a folder is one of these."""
    return os.path.isdir(os.path.join(path, "books"))


def books(path: str) -> Iterator[tuple[models.LogBook, list[str]]]:
    """The books in a folder, without their flows, and the uuids of these.

    :raises CorruptRecord: the file of one is damaged.
    """
    folder = os.path.join(path, "books")
    for name in sorted(os.listdir(folder)):
        if name.startswith("."):
            continue
        file = os.path.join(folder, name)
        try:
            told = _line(_read(file)).tree()
            yield trees.record_of(trees.BOOK, told["row"]), list(told["flows"])
        except _WRONG as error:
            raise _corrupt(file, error) from error


def read_flow(path: str, uuid: str) -> KeptFlow:
    """A flow, with its atoms and their items.

    :raises CorruptRecord: something of it is damaged.
    """
    key = _key(uuid)
    folder = os.path.join(path, "flows", key)
    try:
        head = _read(os.path.join(folder, "head"))
        lease, mark = _line(head[:_PLACE]), _line(head[_PLACE : 2 * _PLACE])
        kept, epoch = _turns(os.path.join(folder, f"records.{mark.major}"))
        later, later_epoch = _turns(os.path.join(folder, f"journal.{mark.major}"), mark.minor)
        detail = _flow_of(kept + later)
        detail.epoch = max(lease.major, epoch, later_epoch)
        held = lease.tree()
        runs = held["held"] and held["until"] > time.time()
        outline = os.path.join(folder, "outline")
        drawn = Outline.from_bytes(_read(outline)) if os.path.exists(outline) else None
        return KeptFlow(detail, drawn, held["owner"] if runs else None)
    except _WRONG as error:
        raise _corrupt(folder, error, uuid) from error


_WRONG: Final = (
    _Damaged, OSError, LookupError, TypeError, ValueError, exceptions.InvalidFormat,
)  # fmt: skip


def _corrupt(path: str, error: BaseException, flow: str | None = None) -> exceptions.CorruptRecord:
    return exceptions.CorruptRecord(f"{path} is damaged: {error}", path=path, flow=flow)


def _key(uuid: str) -> str:
    if _PLAIN(uuid):
        return uuid
    return "x-" + hashlib.sha256(uuid.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _line(raw: bytes) -> _Line:
    rest = raw.rstrip()[9:]
    if raw[:9] != b"%08x " % zlib.crc32(rest):
        raise _Damaged("a checksum is wrong")
    version, kind, key, major, minor, text = rest.split(b" ", 5)
    if int(version) > _VERSION:
        raise _Damaged(f"it is of format {int(version)}, which is not known")
    return _Line(kind.decode(), key.decode(), int(major), int(minor), text)


def _turns(path: str, certain: int | None = None) -> tuple[list[_Line], int]:
    """The lines of all turns of a file, and the highest epoch that they name.

    `certain`: of a journal, which may not be there, and ends with a turn that is not whole when its
    writer died; so many bytes of it surely are.
    """
    if certain is not None and not os.path.exists(path):
        if certain:
            raise _Damaged(f"{path} is missing")
        return [], 0
    raws = _read(path).splitlines(keepends=True)
    found: list[_Line] = []
    epoch, at, end = 0, 1, len(raws[0]) if raws else 0
    try:
        if raws:
            _whole(raws[0])
        while at < len(raws):
            heading = _whole(raws[at])
            after = at + 1 + heading.minor
            if heading.kind != "turn" or after > len(raws):
                raise _Damaged(f"{path} has half a turn at byte {end}")
            found += [_whole(raw) for raw in raws[at + 1 : after]]
            epoch = max(epoch, heading.major)
            end += sum(map(len, raws[at:after]))
            at = after
    except (_Damaged, ValueError):
        if certain is None or end < certain or _goes_on(raws[at + 1 :]):
            raise
    return found, epoch


def _whole(raw: bytes) -> _Line:
    if not raw.endswith(b"\n"):
        raise _Damaged("its last line is not whole")
    return _line(raw)


def _goes_on(raws: list[bytes]) -> bool:
    """Whether a turn begins in one of these lines: then what is before them is no end."""
    for raw in raws:
        try:
            if b" turn " in raw[:24] and _whole(raw):
                return True
        except (_Damaged, ValueError):
            continue
    return False


def _flow_of(lines: list[_Line]) -> models.FlowDetail:
    """The flow that they tell of: of a record the last one counts."""
    flow: _Line | None = None
    atoms: dict[str, _Line] = {}
    items: dict[str, dict[int, _Line]] = {}
    for line in lines:
        if line.kind == "flow":
            flow = line
        elif line.kind == "item":
            if line.key in atoms and atoms[line.key].major == line.major:
                items.setdefault(line.key, {})[line.minor] = line
        elif line.kind in (trees.TASK, trees.RETRY):
            if line.key in atoms and atoms[line.key].major != line.major:
                items.pop(line.key, None)
            atoms[line.key] = line
    if flow is None:
        raise _Damaged("it says nothing of the flow itself")
    detail: models.FlowDetail = trees.record_of(trees.FLOW, flow.tree())
    for key, line in atoms.items():
        atom: models.AtomDetail = trees.record_of(line.kind, line.tree())
        if atom.items is not None:
            for item in items.get(key, {}).values():
                atom.items.put(trees.record_of(trees.ITEM, item.tree()))
        detail.add(atom)
    return detail
