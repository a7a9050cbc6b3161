"""Reader of journal folders, an older storage format. They can only be converted.

Each line of a file is ``<crc32> <version> <kind> <key> <major> <minor> <json>``; the checksum
covers the rest of the line. A flow's folder contains ``records.<n>``, ``journal.<n>`` with later
batches, and ``head`` with the number `n`, the latest lease, and the number of journal bytes that
must be valid. A *batch* starts with a line that contains the number of its other lines. An
incomplete batch at the end of a journal is ignored.
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

__all__ = ["JournalFlow", "books", "is_journal_folder", "read_flow"]

_VERSION: Final = 1
_HEAD_LINE_BYTES: Final = 512
_is_plain_key: Final = re.compile(r"[0-9a-z][0-9a-z_-]{0,99}").fullmatch


class _DamagedError(Exception):
    pass


class _Line(NamedTuple):
    kind: str
    key: str
    major: int
    minor: int
    text: bytes

    def tree(self) -> Any:
        return json.loads(self.text.decode("utf-8", "surrogatepass"))


class JournalFlow(NamedTuple):
    detail: models.FlowDetail
    outline: Outline | None
    owner: str | None


def is_journal_folder(path: str) -> bool:
    """Return True if the folder has the journal format."""
    return os.path.isdir(os.path.join(path, "books"))


def books(path: str) -> Iterator[tuple[models.LogBook, list[str]]]:
    """Yield the logbooks of a folder without their flows, and the uuids of their flows.

    :raises CorruptRecord: if the file of a logbook is damaged.
    """
    folder = os.path.join(path, "books")
    for name in sorted(os.listdir(folder)):
        if name.startswith("."):
            continue
        file = os.path.join(folder, name)
        try:
            content = _line(_read(file)).tree()
            yield trees.record_of(trees.BOOK, content["row"]), list(content["flows"])
        except _DAMAGE_ERRORS as error:
            raise _corrupt(file, error) from error


def read_flow(path: str, uuid: str) -> JournalFlow:
    """Return a flow with its atoms and their items.

    :raises CorruptRecord: if a file of the flow is damaged.
    """
    key = _key(uuid)
    folder = os.path.join(path, "flows", key)
    try:
        head = _read(os.path.join(folder, "head"))
        lease, mark = (
            _line(head[:_HEAD_LINE_BYTES]),
            _line(head[_HEAD_LINE_BYTES : 2 * _HEAD_LINE_BYTES]),
        )
        record_lines, epoch = _batches(os.path.join(folder, f"records.{mark.major}"))
        journal_lines, later_epoch = _batches(
            os.path.join(folder, f"journal.{mark.major}"), mark.minor
        )
        detail = _flow_of(record_lines + journal_lines)
        detail.epoch = max(lease.major, epoch, later_epoch)
        lease_content = lease.tree()
        runs = lease_content["held"] and lease_content["until"] > time.time()
        outline = os.path.join(folder, "outline")
        stored_outline = Outline.from_bytes(_read(outline)) if os.path.exists(outline) else None
        return JournalFlow(detail, stored_outline, lease_content["owner"] if runs else None)
    except _DAMAGE_ERRORS as error:
        raise _corrupt(folder, error, uuid) from error


_DAMAGE_ERRORS: Final = (
    _DamagedError, OSError, LookupError, TypeError, ValueError, exceptions.InvalidFormat,
)  # fmt: skip


def _corrupt(path: str, error: BaseException, flow: str | None = None) -> exceptions.CorruptRecord:
    return exceptions.CorruptRecord(f"{path} is damaged: {error}", path=path, flow=flow)


def _key(uuid: str) -> str:
    if _is_plain_key(uuid):
        return uuid
    return "x-" + hashlib.sha256(uuid.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _line(raw: bytes) -> _Line:
    rest = raw.rstrip()[9:]
    if raw[:9] != b"%08x " % zlib.crc32(rest):
        raise _DamagedError("a checksum is wrong")
    version, kind, key, major, minor, text = rest.split(b" ", 5)
    if int(version) > _VERSION:
        raise _DamagedError(f"unknown format {int(version)}")
    return _Line(kind.decode(), key.decode(), int(major), int(minor), text)


def _batches(path: str, certain: int | None = None) -> tuple[list[_Line], int]:
    """Return the lines of all batches of a file and the highest epoch in them.

    :param certain: for a journal, the number of bytes that must be valid. A journal may be
        missing, or end with an incomplete batch if its writer died.
    """
    if certain is not None and not os.path.exists(path):
        if certain:
            raise _DamagedError(f"{path} is missing")
        return [], 0
    raws = _read(path).splitlines(keepends=True)
    lines: list[_Line] = []
    epoch, start, end = 0, 1, len(raws[0]) if raws else 0
    try:
        if raws:
            _complete_line(raws[0])
        while start < len(raws):
            heading = _complete_line(raws[start])
            after = start + 1 + heading.minor
            if heading.kind != "turn" or after > len(raws):
                raise _DamagedError(f"{path} has an incomplete batch at byte {end}")
            lines += [_complete_line(raw) for raw in raws[start + 1 : after]]
            epoch = max(epoch, heading.major)
            end += sum(map(len, raws[start:after]))
            start = after
    except (_DamagedError, ValueError):
        if certain is None or end < certain or _has_later_batch(raws[start + 1 :]):
            raise
    return lines, epoch


def _complete_line(raw: bytes) -> _Line:
    if not raw.endswith(b"\n"):
        raise _DamagedError("its last line is incomplete")
    return _line(raw)


def _has_later_batch(raws: list[bytes]) -> bool:
    """Return True if a batch starts in these lines: the damage is then not in the last batch."""
    for raw in raws:
        try:
            if b" turn " in raw[:24] and _complete_line(raw):
                return True
        except (_DamagedError, ValueError):
            continue
    return False


def _flow_of(lines: list[_Line]) -> models.FlowDetail:
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
        raise _DamagedError("the record of the flow is missing")
    detail: models.FlowDetail = trees.record_of(trees.FLOW, flow.tree())
    for key, line in atoms.items():
        atom: models.AtomDetail = trees.record_of(line.kind, line.tree())
        if atom.items is not None:
            for item in items.get(key, {}).values():
                atom.items.put(trees.record_of(trees.ITEM, item.tree()))
        detail.add(atom)
    return detail
