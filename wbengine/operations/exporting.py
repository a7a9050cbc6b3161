"""A kept flow as one JSON document, and such a document as a kept flow."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions, task_logs
from wbengine.persistence import base, models, trees
from wbengine.signals import Signal
from wbengine.types.outline import Outline
from wbengine.types.schemas import Schema

__all__ = ["SCHEMA", "export", "import_flow", "keep_beside"]

SCHEMA: Final = "wbengine/flow-export/2"

_UUID: Final = {"type": "string", "minLength": 1, "maxLength": 64}
_TEXT: Final = {"type": ["string", "null"]}
_MOMENT: Final = {"type": ["number", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": 2**62}
#: What lists and pictures of flows rely on; records see to the rest.
_DOCUMENT: Final = Schema(
    {
        "type": "object",
        "properties": {
            "book": {"type": "object", "properties": {"uuid": _UUID}, "required": ["uuid"]},
            "flow": {
                "type": "object",
                "properties": {
                    "uuid": _UUID,
                    "name": _TEXT,
                    "created": _MOMENT,
                    "epoch": _COUNT,
                    "history": {
                        "type": "array",
                        "items": {
                            "type": "array",
                            "items": [{"type": "string"}, {"type": "number"}, _TEXT],
                            "minItems": 3,
                            "maxItems": 3,
                        },
                    },
                },
                "required": ["uuid", "epoch"],
            },
            "atoms": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "kind": {"enum": [trees.TASK, trees.RETRY]},
                        "uuid": _UUID,
                        "name": _TEXT,
                        "worker": _TEXT,
                        "attempt": _COUNT,
                        "reversions": _COUNT,
                        "epoch": _COUNT,
                        **dict.fromkeys(("submitted", "started", "ended", "progress"), _MOMENT),
                    },
                    "required": ["kind", "uuid"],
                },
            },
            "logs": {
                "type": "array",
                "items": {
                    "type": "array",
                    "items": [_UUID, _COUNT, {"type": "integer", "minimum": -1}, {"type": "array"}],
                    "minItems": 4,
                    "maxItems": 4,
                },
            },
            "signals": {
                "type": "array",
                "items": {
                    "type": "array",
                    "items": [{"type": "string"}, {"type": "string"}, {"type": "number"}],
                    "minItems": 3,
                    "maxItems": 3,
                },
            },
            "outline": _TEXT,
        },
        "required": ["book", "flow", "atoms", "outline"],
    },
    "document",
)


def export(backend: base.Backend, uuid: str) -> dict[str, Any]:
    """All that is kept of a flow, values and all, as what `json` can write.

    The same flow gives the same document, whatever keeps it; `import_flow` keeps it again.

    :raises NotFound: the flow is not kept.
    :raises NotEncodable: a value that is kept in memory cannot be written.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        flow = connection.get_flow_details(uuid)
        outline = connection.get_outline(uuid)
        (row,) = connection.list_flows(uuid=uuid, limit=1).flows
        book = trees.tree_of(connection.get_logbook(row.book_uuid, lazy=True))
        logs = connection.get_logs(uuid)
        signals = connection.signals([uuid]).get(uuid, ())
    del book["updated_at"]  # it changes with any of its flows
    return {
        "schema": SCHEMA,
        "book": book,
        **_told(flow),
        "logs": [list(chunk) for chunk in logs],
        "signals": [list(signal) for signal in signals],
        "outline": None if outline is None else base64.b64encode(outline.to_bytes()).decode(),
    }


def import_flow(backend: base.Backend, document: Mapping[str, Any]) -> models.FlowDetail:
    """Keep the flow of such a document, in its book, which is made if it is not kept.

    An import that ended before the outline was kept may be repeated, and keeps that.

    :raises InvalidFormat: it is no such document.
    :raises Duplicate: a flow with this uuid is kept already.
    """
    book, flow, outline, logs, signals = _read(document)
    with contextlib.closing(backend.get_connection()) as connection:
        connection.upgrade()
        try:
            kept = connection.get_flow_details(flow.uuid)
        except exceptions.NotFound:
            with contextlib.suppress(exceptions.NotFound):
                book = connection.get_logbook(book.uuid, lazy=True)
            book.add(flow)
            connection.save_logbook(book)
        else:
            complete = outline is None or connection.get_outline(flow.uuid) is not None
            if complete or _told(kept) != _told(flow):
                raise exceptions.Duplicate(f"A flow {flow.uuid} is kept already")
        if outline is not None:
            connection.save_outline(flow.uuid, outline)
        keep_beside(connection, flow, logs, signals)
    return flow


def keep_beside(
    connection: base.Connection,
    flow: models.FlowDetail,
    logs: Sequence[models.LogChunk],
    signals: Iterable[Signal],
) -> None:
    """Keep the signals of a flow that are not kept already; and what its tasks logged, unless
    something of it is.
    """
    for signal in signals:
        connection.put_signal(flow.uuid, signal)
    if logs and not connection.get_logs(flow.uuid):
        connection.save_changes(flow, (), flow_row=False, logs=logs)


def _told(flow: models.FlowDetail) -> dict[str, Any]:
    return {
        "flow": {**trees.tree_of(flow), "epoch": flow.epoch},
        "atoms": [_atom(atom) for atom in flow],
    }


def _atom(atom: models.AtomDetail) -> dict[str, Any]:
    told = {"kind": atom.kind, **trees.tree_of(atom)}
    if atom.items is not None:
        told["items"] = {**told["items"], "details": [trees.tree_of(item) for item in atom.items]}
    return told


def _read(
    document: Mapping[str, Any],
) -> tuple[models.LogBook, models.FlowDetail, Outline | None, list[models.LogChunk], list[Signal]]:
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r:.80}, not {SCHEMA!r}")
        _DOCUMENT.check(document)
        book: models.LogBook = trees.record_of(trees.BOOK, document["book"])
        flow: models.FlowDetail = trees.record_of(trees.FLOW, document["flow"])
        flow.epoch = int(document["flow"]["epoch"])
        for told in document["atoms"]:
            atom: models.AtomDetail = trees.record_of(told["kind"], told)
            if atom.items is not None:
                for item in told["items"]["details"]:
                    atom.items.put(trees.record_of(trees.ITEM, item))
            flow.add(atom)
        text = document["outline"]
        outline = None if text is None else Outline.from_bytes(base64.b64decode(text))
        logs = [
            models.LogChunk(atom, attempt, item, task_logs.lines_of({"lines": lines}))
            for atom, attempt, item, lines in document.get("logs", ())
            if flow.find(atom) is not None
        ]
        signals = [Signal(*told) for told in document.get("signals", ())]
    except (
        *(LookupError, TypeError, ValueError, AttributeError, RecursionError, binascii.Error),
        exceptions.InvalidFormat,
    ) as error:
        what = f"there is no {error}" if isinstance(error, LookupError) else str(error)
        raise exceptions.InvalidFormat(f"This is no exported flow: {what}") from error
    return book, flow, outline, logs, signals
