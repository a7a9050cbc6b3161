"""Records as rows of tables, and rows as records."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from wbengine import _codec, _codec_tags, exceptions
from wbengine._sql import dialects
from wbengine.persistence import trees
from wbengine.persistence.backends.sql import tables

__all__ = ["ATOM", "BOOK", "FLOW", "ITEM", "Row", "Shape", "kept", "text_of"]

#: The values of a row, by column.
Row = dict[str, Any]

_ENCODE_ASCII: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_BETWEEN: Final = "\x1f"
#: Columns that are not of the record: who writes it need not know them.
_BESIDE: Final = (
    "id", "book_uuid", "lease_owner", "lease_epoch", "lease_until", "wish", "wish_epoch", "created",
    "updated", "birth", "changed",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Which fields of a record have columns of their own, and of what kind.

    `keys` identify a row; they and `plain` fields are kept as they are, `packed` ones as JSON.  A
    plain text that a database cannot keep as it is (with a NUL in it, say) is in `more` as well,
    which counts.
    """

    table: str
    keys: tuple[str, ...]
    plain: tuple[str, ...]
    packed: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All that a record says of itself."""
        return (*self.keys, *self.plain, *self.packed, "more", "checksum")

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
        row["checksum"] = self._checksum(row)
        return row

    def tree(self, row: Mapping[str, Any]) -> trees.Tree:
        """What the row was made from.

        :raises ValueError: it is damaged.
        """
        if row["checksum"] is not None and row["checksum"] != self._checksum(row):
            raise ValueError(
                "its checksum is wrong (set it to NULL if the row was changed on purpose)"
            )
        tree = {name: row[name] for name in (*self.keys, *self.plain) if row[name] is not None}
        for name in self.packed:
            text = row[name]
            if text is not None:
                tree[name] = json.loads(text)
        if row["more"] is not None:
            tree.update(json.loads(row["more"]))
        return tree

    def record(
        self, kind: str, row: Mapping[str, Any], flow: str | None = None, **identity: Any
    ) -> Any:
        """The record that a row holds, with what else it says of itself.

        :raises CorruptRecord: it holds none.
        """
        try:
            return trees.record_of(kind, {**self.tree(row), **identity})
        except (ValueError, TypeError, exceptions.InvalidFormat) as error:
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

    def _checksum(self, row: Mapping[str, Any]) -> int:
        """Of all that was given to the database; columns that come later are empty in old rows."""
        told = [
            f"{name}={row[name]}"
            for name in (*self.keys, *self.plain, *self.packed, "more")
            if row[name] is not None
        ]
        return zlib.crc32(_BETWEEN.join(told).encode("utf-8", "surrogateescape"))


def text_of(value: Any) -> str:
    """JSON that every database can keep."""
    text = _codec.text_of(value)
    return text if text.isascii() or _codec_tags.is_text(text) else _ENCODE_ASCII(value)


def kept(text: str) -> str:
    """What of a plain text every database keeps."""
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if not text.isascii() and not _codec_tags.is_text(text):
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


def _shape(table: sa.Table, keys: Iterable[str], packed: Iterable[str]) -> Shape:
    known = (*keys, *packed, *_BESIDE, "more", "checksum")
    plain = [column.name for column in table.columns if column.name not in known]
    return Shape(table.name, tuple(keys), tuple(plain), tuple(packed))


_RESULTS: Final = ("results", "failure", "revert_results", "revert_failure")

BOOK: Final = _shape(tables.BOOKS, ["uuid"], ["meta"])
FLOW: Final = _shape(tables.FLOWS, ["uuid"], ["meta"])
ATOM: Final = _shape(tables.ATOMS, ["uuid", "flow_uuid"], ["meta", *_RESULTS])
ITEM: Final = _shape(
    tables.ITEMS, ["atom_uuid", "attempt", "item"], ["value", "results", "failure"]
)
