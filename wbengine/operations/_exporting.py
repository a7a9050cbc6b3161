"""Export of a stored flow to one JSON document, and import."""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._logs import stored_lines
from wbengine.operations import _document_references
from wbengine.operations._document_references import LargeValues
from wbengine.persistence import _trees, base, models
from wbengine.signals import Signal
from wbengine.types import codec
from wbengine.types._outline import Outline
from wbengine.types._schema_validation import Schema

__all__ = [
    "SCHEMA", "Imported", "copying_to", "export", "import_document", "import_flow",
    "save_signals_and_logs",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

SCHEMA: Final = "wbengine/flow-export/2"

_UUID: Final = {"type": "string", "minLength": 1, "maxLength": 64}
_TEXT: Final = {"type": ["string", "null"]}
_TIME: Final = {"type": ["number", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": 2**62}
#: Validates the parts that lists and drawings need. The readers of records validate the rest.
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
                    "created": _TIME,
                    "epoch": _COUNT,
                    "history": {
                        "type": "array",
                        "items": {
                            "type": "array",
                            "items": [{"type": "string"}, {"type": "number"}, _TEXT, _TEXT],
                            "minItems": 3,
                            "maxItems": 4,
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
                        "kind": {"enum": [_trees.TASK, _trees.RETRY]},
                        "uuid": _UUID,
                        "name": _TEXT,
                        "worker": _TEXT,
                        "attempt": _COUNT,
                        "reversions": _COUNT,
                        "epoch": _COUNT,
                        **dict.fromkeys(("submitted", "started", "ended", "progress"), _TIME),
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
        "required": ["book", "flow", "atoms", "logs", "signals", "outline"],
    },
    "document",
)


def export(backend: base.Backend, uuid: str) -> dict[str, Any]:
    """Return all stored data of a flow as data for `json`.

    The document is the same for all kinds of stores. `import_flow` stores it again. Instances of
    classes are copied as they are stored, so the classes need not be known.

    :raises NotFound: if the flow is not stored.
    :raises NotEncodable: if a value in a memory store cannot be encoded.
    """
    with contextlib.closing(backend.get_connection()) as connection, codec.copying():
        flow = connection.get_flow_details(uuid)
        outline = connection.get_outline(uuid)
        row = connection.get_row(uuid)
        book = _trees.tree_of(connection.get_logbook(row.book_uuid, lazy=True))
        logs = connection.get_logs(uuid)
        signals = connection.signals([uuid]).get(uuid, ())
    del book["updated_at"]  # Changes with every flow of the logbook.
    return {
        "schema": SCHEMA,
        "book": book,
        **_contents(flow),
        "logs": [list(chunk) for chunk in logs],
        "signals": [[signal.stored_name, signal.text, signal.at] for signal in signals],
        "outline": None if outline is None else base64.b64encode(outline.to_bytes()).decode(),
    }


def import_flow(backend: base.Backend, document: Mapping[str, Any]) -> models.FlowDetail:
    """Store the flow of an exported document. Create its logbook if necessary.

    An import that was interrupted may be repeated. The document does not contain large values
    (`payloads`). Those that are in the place of the backend are kept while the flow is stored; a
    warning is logged about the others.

    :raises InvalidFormat: if the document is invalid.
    :raises Duplicate: if a flow with this uuid is already stored.
    :raises StorageFailure: if the store, or the place of large values, cannot be reached.
    """
    imported = import_document(backend, document)
    if problem := imported.large_values.describe_missing():
        LOG.warning("imported flow %s: %s", imported.flow.uuid, problem)
    return imported.flow


class Imported(NamedTuple):
    """An imported flow, and the large values to which it refers."""

    flow: models.FlowDetail
    large_values: LargeValues


def import_document(backend: base.Backend, document: Mapping[str, Any]) -> Imported:
    """Store the flow of an exported document as `import_flow` does, without a warning."""
    with contextlib.closing(backend.get_connection()) as connection, copying_to(backend):
        book, flow, outline, logs, signals = _read(document)
        connection.upgrade()
        try:
            existing = connection.get_flow_details(flow.uuid)
        except exceptions.NotFound:
            with contextlib.suppress(exceptions.NotFound):
                book = connection.get_logbook(book.uuid, lazy=True)
            # Before the flow is stored, as all writers of references do.
            large_values = _document_references.keep(backend, document, flow.uuid)
            book.add(flow)
            connection.save_logbook(book)
        else:
            has_outline = outline is None or connection.get_outline(flow.uuid) is not None
            stored = connection.signals([flow.uuid]).get(flow.uuid, ())
            has_signals = {each.stored_name for each in signals} <= {
                each.stored_name for each in stored
            }
            if (has_outline and has_signals) or _contents(existing) != _contents(flow):
                raise exceptions.Duplicate(f"Flow {flow.uuid} already exists")
            large_values = _document_references.keep(backend, document, flow.uuid)
        save_signals_and_logs(connection, flow, logs, signals)
        if outline is not None:  # Last: it shows that the import is complete.
            connection.save_outline(flow.uuid, outline)
    return Imported(flow, large_values)


def copying_to(backend: base.Backend) -> contextlib.AbstractContextManager[Any]:
    """Copy values of unknown classes in the `with` block, if the backend stores encoded values."""
    return codec.copying(unknown_only=True) if backend.encodes else contextlib.nullcontext()


def save_signals_and_logs(
    connection: base.Connection,
    flow: models.FlowDetail,
    logs: Sequence[models.LogChunk],
    signals: Iterable[Signal],
) -> None:
    """Store missing signals of a flow, and its task logs unless the store contains some."""
    for signal in signals:
        connection.put_signal(flow.uuid, signal)
    if logs and not connection.get_logs(flow.uuid):
        connection.save_changes(flow, (), flow_row=False, logs=logs)


def _contents(flow: models.FlowDetail) -> dict[str, Any]:
    return {
        "flow": {**_trees.tree_of(flow), "epoch": flow.epoch},
        "atoms": [_atom(atom) for atom in flow],
    }


def _atom(atom: models.AtomDetail) -> dict[str, Any]:
    tree = {"kind": atom.kind, **_trees.tree_of(atom)}
    if atom.items is not None:
        tree["items"] = {**tree["items"], "details": [_trees.tree_of(item) for item in atom.items]}
    return tree


def _read(
    document: Mapping[str, Any],
) -> tuple[models.LogBook, models.FlowDetail, Outline | None, list[models.LogChunk], list[Signal]]:
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema must be {SCHEMA!r}, got {document['schema']!r:.80}")
        _DOCUMENT.check(document)
        book: models.LogBook = _trees.record_of(_trees.BOOK, document["book"])
        flow: models.FlowDetail = _trees.record_of(_trees.FLOW, document["flow"])
        flow.epoch = int(document["flow"]["epoch"])
        for entry in document["atoms"]:
            atom: models.AtomDetail = _trees.record_of(entry["kind"], entry)
            if atom.items is not None:
                for item in entry["items"]["details"]:
                    atom.items.put(_trees.record_of(_trees.ITEM, item))
            flow.add(atom)
        text = document["outline"]
        outline = None if text is None else Outline.from_bytes(base64.b64decode(text))
        logs = [
            models.LogChunk(atom, attempt, item, stored_lines.lines_of({"lines": lines}))
            for atom, attempt, item, lines in document["logs"]
            if flow.find(atom) is not None
        ]
        signals = [Signal.from_stored(*entry) for entry in document["signals"]]
    except (
        *(LookupError, TypeError, ValueError, AttributeError, RecursionError, binascii.Error),
        exceptions.InvalidFormat,
    ) as error:
        problem = f"missing key {error}" if isinstance(error, LookupError) else str(error)
        raise exceptions.InvalidFormat(f"Document must be an exported flow: {problem}") from error
    return book, flow, outline, logs, signals
