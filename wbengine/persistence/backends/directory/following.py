"""What changed of a flow, read from the end of its journal: a cursor is a place in there."""

from __future__ import annotations

from collections.abc import Iterable

from wbengine.persistence import base, models
from wbengine.persistence.backends.directory import contents, files, folder, head, lines
from wbengine.persistence.changes import is_number

__all__ = ["changes"]


def changes(where: folder.FlowFolder, since: str | None) -> base.Changes:
    """What changed since a cursor.

    After the journal was folded, and where the head says nothing of the flow, that is all.

    :raises NotFound: the flow is not kept.
    :raises CorruptRecord: something of it is damaged.
    """
    told = where.read_head()
    start = _start(told, since)
    found = None if start is None else _since(where, told, start)
    return _whole(where) if found is None else found


def _cursor(told: head.Head) -> str:
    name = "-" if told.row is None else told.row.birth
    return f"{name}.{told.mark.generation}.{told.mark.length}"


def _start(told: head.Head, since: str | None) -> int | None:
    """Where in the journal a cursor points to; None: it is none of this one."""
    name, _, rest = (since or "").partition(".")
    generation, _, length = rest.partition(".")
    known = told.row is not None and name == told.row.birth
    if not known or generation != str(told.mark.generation):
        return None
    if not is_number(length) or int(length) > told.mark.length:
        return None
    return int(length)


def _whole(where: folder.FlowFolder) -> base.Changes:
    picture = where.read()
    detail = where.detail(picture)
    lazy = detail.copy(retain_contents=False)
    return base.Changes(_cursor(picture.head), True, lazy, list(detail))


def _since(where: folder.FlowFolder, told: head.Head, start: int) -> base.Changes | None:
    """None: it cannot be told from there."""
    try:
        data = b""
        if start < told.mark.length:
            path = where.journal(told.mark.generation)
            data = files.read_from(path, start, told.mark.length - start)
        found = [lines.read(raw) for raw in data.splitlines(keepends=True)]
        flow = next((line for line in reversed(found) if line.kind == b"flow"), None)
        flow = flow or _flow_line(where, told)
        if flow is None:
            return None
        return _made(told, flow, found)
    except (lines.Damaged, FileNotFoundError):
        return None  # who reads it all finds out what is wrong


def _flow_line(where: folder.FlowFolder, told: head.Head) -> lines.Line | None:
    """The flow's latest line, where the head says it is."""
    row = told.row
    if row is None or row.place is None:
        return None
    path = (where.journal if row.in_journal else where.records)(told.mark.generation)
    line = lines.read(files.line_at(path, row.place))
    return line if line.kind == b"flow" else None


def _made(told: head.Head, flow: lines.Line, found: Iterable[lines.Line]) -> base.Changes | None:
    atoms: dict[bytes, lines.Line] = {}
    items: dict[bytes, dict[int, lines.Line]] = {}
    for line in found:
        if line.kind in (b"task", b"retry"):
            before = atoms.get(line.key)
            if before is not None and before.major != line.major:
                items.pop(line.key, None)  # of an attempt that is over
            atoms[line.key] = line
        elif line.kind == b"item":
            items.setdefault(line.key, {})[line.minor] = line
    records: dict[bytes, models.AtomDetail] = {
        key: contents.record_in(line) for key, line in atoms.items()
    }
    changed: dict[str, list[models.ItemDetail]] = {}
    for key, kept in items.items():
        record = records.get(key)
        uuid = record.uuid if record is not None else key.decode()
        if lines.key_of(uuid) != key or (record is None and lines.is_digest(key)):
            return None  # only its row says what it is called
        changed[uuid] = [contents.record_in(kept[index]) for index in sorted(kept)]
    lazy: models.FlowDetail = contents.record_in(flow)
    lazy.epoch = told.holder.epoch
    return base.Changes(_cursor(told), False, lazy, list(records.values()), changed)
