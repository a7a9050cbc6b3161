"""Records as rows of tables, and rows as records.

A field of a record has a column of its own where its table has one of that name: values of users
and failures as JSON, anything else as it is.  The rest is in `more`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine import _json_text, exceptions
from wbengine._sql import dialects
from wbengine.persistence import trees
from wbengine.persistence.backends.sql import tables

__all__ = ["ATOM", "BOOK", "FLOW", "ITEM", "Row", "Shape", "kept", "text_of"]

#: The values of a row, by column.
Row = dict[str, Any]

_ENCODE_ASCII: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_PACKED: Final = ("meta", "value", "results", "failure", "revert_results", "revert_failure")
#: Columns that are not of the record.
_BESIDE: Final = (
    "id", "book_uuid", "lease_owner", "lease_epoch", "lease_until", "wish", "created", "updated",
    "birth", "changed", "more",
)  # fmt: skip


class Shape:
    """Which fields of a record have columns of their own, and of what kind.

    `keys` identify a row; they and `plain` fields are kept as they are, `packed` ones as JSON.  A
    plain text that a database cannot keep as it is (with a NUL in it, say) is in `more` as well,
    which counts.
    """

    def __init__(self, table: sa.Table, *keys: str) -> None:
        columns = [column.name for column in table.columns if column.name not in _BESIDE]
        self.table: Final = table.name
        self.keys: Final = keys
        self.packed: Final = tuple(name for name in columns if name in _PACKED)
        self.plain: Final = tuple(name for name in columns if name not in (*keys, *_PACKED))
        #: All that a record says of itself.
        self.columns: Final = (*keys, *self.plain, *self.packed, "more")

    def row(self, tree: Mapping[str, Any], **identity: Any) -> Row:
        """The row of what `trees.tree_of` said.

        :raises InvalidFormat: a key is no text of 1 to 255 characters that can be kept.
        """
        rest = {key: value for key, value in tree.items() if value is not None}
        row: Row = {}
        for name in self.keys:
            value = identity[name] if name in identity else tree[name]
            rest.pop(name, None)
            row[name] = value if type(value) is int else _key(name, value)
        for name in self.plain:
            value = identity.get(name, rest.pop(name, None))
            if isinstance(value, str):
                told = kept(value)
                if told != value:
                    rest[name] = value
                value = told
            row[name] = value
        for name in self.packed:
            value = rest.pop(name, None)
            # An empty `meta` is none; an empty result is one.
            row[name] = None if value is None or (name == "meta" and not value) else text_of(value)
        row["more"] = text_of(rest) if rest else None
        return row

    def record(
        self, kind: str, row: Mapping[str, Any], flow: str | None = None, **identity: Any
    ) -> Any:
        """The record that a row holds, with what else it says of itself.

        :raises CorruptRecord: it holds none.
        """
        try:
            tree = {name: row[name] for name in (*self.keys, *self.plain) if row[name] is not None}
            for name in (*self.packed, "more"):
                if row[name] is not None:
                    told = json.loads(row[name])
                    tree.update(told if name == "more" else {name: told})
            return trees.record_of(kind, {**tree, **identity})
        except (ValueError, TypeError, RecursionError, exceptions.InvalidFormat) as error:
            raise self.damaged(row, error, flow) from error

    def damaged(
        self, row: Mapping[str, Any], error: BaseException, flow: str | None
    ) -> exceptions.CorruptRecord:
        """What to raise for a row that is no record."""
        path = "/".join([self.table, *(str(row[name]) for name in self.keys)])
        path = path.encode("utf-8", "backslashreplace").decode()
        first = str(error).partition("\n")[0]
        return exceptions.CorruptRecord(
            f"{path} is damaged: {first}; it was left as it is", path=path, flow=flow
        )


def text_of(value: Any) -> str:
    """JSON that every database can keep."""
    text = _json_text.text_of(value)
    return text if text.isascii() or _json_text.is_text(text) else _ENCODE_ASCII(value)


def kept(text: str) -> str:
    """What of a plain text every database keeps."""
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if not text.isascii() and not _json_text.is_text(text):
        text = text.encode("utf-8", "replace").decode()
    return text


def _key(name: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= dialects.MAX_KEY
        or value[-1] == " "  # to some databases it would be the same without
        or kept(value) != value
    ):
        raise exceptions.InvalidFormat(
            f"A {name} that a database can keep is a text of 1 to {dialects.MAX_KEY} characters,"
            f" not {value!r:.300}"
        )
    return value


BOOK: Final = Shape(tables.BOOKS, "uuid")
FLOW: Final = Shape(tables.FLOWS, "uuid")
ATOM: Final = Shape(tables.ATOMS, "uuid", "flow_uuid")
ITEM: Final = Shape(tables.ITEMS, "atom_uuid", "attempt", "item")
