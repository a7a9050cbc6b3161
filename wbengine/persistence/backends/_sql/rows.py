"""Conversion between records and rows of tables.

A field that has a column of the same name is stored in it: values of users and failures as JSON,
others unchanged. All other fields are in the column `more`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine import exceptions, states
from wbengine._sql import dialects
from wbengine._text import json_text
from wbengine.persistence import _sealed_fields, _trees
from wbengine.persistence._commands import CANCEL, SUSPEND, FlowCommand
from wbengine.persistence.backends._sql import tables
from wbengine.types import _tags

__all__ = [
    "ATOM", "BOOK", "DAMAGE", "FLOW", "ITEM", "SIGNAL", "Row", "Shape", "command_of",
    "command_text", "flow_fields", "has_command", "object_of", "pending_command", "storable_text",
    "tag_rows", "text_of",
]  # fmt: skip

Row = dict[str, Any]

_ENCODE_ASCII: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_PACKED: Final = ("meta", "value", "results", "failure", "revert_results", "revert_failure")
#: Columns that do not belong to the record.
_OTHER_COLUMNS: Final = (
    "id", "book_uuid", "lease_owner", "lease_epoch", "lease_until", "wish", "created", "updated",
    "ended", "birth", "changed", "more",
)  # fmt: skip


#: Errors of damaged rows.
DAMAGE: Final = (
    ValueError, TypeError, LookupError, RecursionError, exceptions.InvalidFormat,
    exceptions.NotTrusted,
)  # fmt: skip


class Shape:
    """The columns of records in their table.

    `kind` is the kind of the records; None: each row has its own. `keys` identify a row. Keys and
    `plain` fields are stored unchanged, `packed` fields as JSON. If a database cannot store a plain
    text unchanged (for example, one with a NUL), `more` contains the original text and takes
    precedence.
    """

    def __init__(self, table: sa.Table, kind: str | None, *keys: str) -> None:
        columns = [column.name for column in table.columns if column.name not in _OTHER_COLUMNS]
        self.table: Final = table.name
        self.kind: Final = kind
        self.keys: Final = keys
        self.packed: Final = tuple(name for name in columns if name in _PACKED)
        self.plain: Final = tuple(name for name in columns if name not in (*keys, *_PACKED))
        self.columns: Final = (*keys, *self.plain, *self.packed, "more")

    def row(self, tree: Mapping[str, Any], seals: bool = True, **identity: Any) -> Row:
        """Return the row for a tree of `trees.tree_of`.

        :param seals: encrypt it if the keys encrypt; False: there are no keys.
        :raises InvalidFormat: if a key is not a storable text of 1 to 255 characters.
        :raises NotTrusted: if the keys encrypt, but contain no secret for stores.
        """
        row: Row = {}
        for name in self.keys:
            value = identity[name] if name in identity else tree[name]
            row[name] = value if type(value) is int else _key(name, value)
        if seals:
            tree = _sealed_fields.sealed(self.kind or identity["kind"], tree, *self._place(row))
        rest = {key: value for key, value in tree.items() if value is not None and key not in row}
        for name in self.plain:
            value = identity.get(name, rest.pop(name, None))
            if isinstance(value, str) and ("\0" in value or not value.isascii()):
                stored = storable_text(value)
                if stored != value:
                    rest[name] = value
                value = stored
            row[name] = value
        for name in self.packed:
            value = rest.pop(name, None)
            # An empty `meta` is stored as NULL; an empty result is stored as JSON.
            row[name] = None if value is None or (name == "meta" and not value) else text_of(value)
        row["more"] = text_of(rest) if rest else None
        return row

    def record(
        self, kind: str, row: Mapping[str, Any], flow: str | None = None, **identity: Any
    ) -> Any:
        """Return the record of a row, with `identity` as additional fields.

        :raises CorruptRecord: if the row is damaged.
        """
        try:
            return _trees.record_of(kind, {**self.tree(row), **identity})
        except DAMAGE as error:
            raise self.damaged(row, error, flow) from error

    def tree(self, row: Mapping[str, Any]) -> _trees.Tree:
        """Return the fields in a row, decrypted if this process has keys.

        :raises ValueError, TypeError, RecursionError: if the row is damaged.
        :raises NotTrusted: as `opened`.
        """
        tree = {name: row[name] for name in (*self.keys, *self.plain) if row[name] is not None}
        for name in (*self.packed, "more"):
            if row[name] is not None:
                parsed = json.loads(row[name])
                tree.update(parsed if name == "more" else {name: parsed})
        return self.opened(row, tree) if _sealed_fields.SEALED in tree else tree

    def opened(self, row: Mapping[str, Any], tree: _trees.Tree) -> _trees.Tree:
        """Return the tree of a row with decrypted fields, if this process has keys.

        :raises NotTrusted: if these are other keys, or the row was changed.
        """
        return _sealed_fields.opened(tree, *self._place(row))

    def _place(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return self.table, *(str(row[name]) for name in self.keys)

    def damaged(
        self, row: Mapping[str, Any], error: BaseException, flow: str | None
    ) -> exceptions.CorruptRecord:
        path = "/".join([self.table, *(str(row[name]) for name in self.keys)])
        path = path.encode("utf-8", "backslashreplace").decode()
        first = str(error).partition("\n")[0]
        record = f" ({row['name']!r})" if "name" in row else ""
        return exceptions.CorruptRecord(
            f"{path}{record} cannot be read: {first}; it was not changed", path=path, flow=flow
        )


def text_of(value: Any) -> str:
    """Return a value as JSON text that every database can store."""
    try:
        return json_text.encode(value).decode()
    except UnicodeEncodeError:  # Lone surrogates.
        return _ENCODE_ASCII(value)


def command_of(text: str | None) -> FlowCommand | None:
    """Return the command in a text of `text_of`. A damaged command counts as None."""
    try:
        return None if text is None else FlowCommand.from_dict(json.loads(text))
    except (ValueError, TypeError, RecursionError, exceptions.InvalidFormat):
        return None


def pending_command(text: str | None, state: str | None) -> FlowCommand | None:
    """Return the command of a flow in this state, or None if no engine can carry it out."""
    command = command_of(text)
    return command if command is not None and command.applies_to(state) else None


def has_command(flow: str = "") -> str:
    """Return SQL for whether a flow has a command as in `pending_command`.

    :param flow: prefix of the columns of the flow.
    """
    ended = ", ".join(f"'{state}'" for state in sorted(states.FLOW_ENDED))
    # `what` is the first field of `FlowCommand`, also in release 0.1.
    late = " OR ".join(f'{flow}wish LIKE \'{{"what":"{what}"%\'' for what in (CANCEL, SUSPEND))
    has_ended = f"{flow}state IS NOT NULL AND {flow}state IN ({ended})"
    return f"({flow}wish IS NOT NULL AND NOT ({has_ended} AND ({late})))"


def object_of(text: str | None) -> dict[str, Any]:
    """Return the JSON object in a text; an empty one if there is none or it is damaged."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def flow_fields(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields without a column and the `meta` of a flow; nothing of damaged texts.

    Without the key, encrypted fields have their readable part.
    """
    fields, meta = object_of(row["more"]), object_of(row["meta"])
    if _sealed_fields.SEALED in fields:
        with contextlib.suppress(exceptions.NotTrusted):
            fields = FLOW.opened(row, {**fields, "meta": meta})
            meta = fields["meta"]
    return fields, meta


def tag_rows(flow_uuid: str, meta: Mapping[str, Any], *, given: bool) -> list[Row]:
    """Return the rows of the index of tags for a flow with this `meta`.

    :param given: include the tags of the submission.
    """
    return [
        {**tag._asdict(), "given": int(tag.given), "flow_uuid": flow_uuid}
        for tag in _tags.index_of(meta, given=given)
    ]


def command_text(command: FlowCommand | None) -> str | None:
    """Return the stored form of a command. Equal commands have equal texts."""
    return None if command is None else text_of(command.to_dict())


def storable_text(text: str) -> str:
    """Return the text with each character that databases cannot store replaced."""
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if not text.isascii() and not json_text.is_text(text):
        text = text.encode("utf-8", "replace").decode()
    return text


def _key(name: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= dialects.MAX_KEY_LENGTH
        or value[-1] == " "  # Some databases ignore a trailing space.
        or storable_text(value) != value
    ):
        raise exceptions.InvalidFormat(
            f"A {name} in a database must be a str of 1 to {dialects.MAX_KEY_LENGTH} storable"
            f" characters, got {value!r:.300}"
        )
    return value


BOOK: Final = Shape(tables.BOOKS, _trees.BOOK, "uuid")
FLOW: Final = Shape(tables.FLOWS, _trees.FLOW, "uuid")
ATOM: Final = Shape(tables.ATOMS, None, "uuid", "flow_uuid")
SIGNAL: Final = Shape(tables.SIGNALS, None, "flow_uuid", "name")
ITEM: Final = Shape(tables.ITEMS, _trees.ITEM, "atom_uuid", "attempt", "item")
