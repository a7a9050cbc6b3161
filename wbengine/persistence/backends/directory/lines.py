"""The bytes of the files: lines with checksums, and turns of them.  No file is touched here.

A line is ``<crc32> <version> <kind> <key> <major> <minor> <json>``; the checksum is that of all
that follows it.  What the numbers mean depends on the kind::

    records  journal   key: the flow   major: generation of the file
    turn               key: "-"        major: epoch of the writer      minor: lines that follow
    flow               key: "-"        major, minor: 0
    task  retry        key: the atom   major: attempt of its items (-1: it has none)
    item               key: the atom   major: its attempt              minor: its index
    lease              key: the flow   major: epoch
    length             key: the flow   major: generation               minor: bytes that count
    row                key: the flow   major, minor: those of the `length` it counts with
    wish               key: the flow   major: epoch of the lease that it is about
    book  note         what `books` and `doing` write

So what counts of a journal is found without reading any JSON.  A *turn* is a line of that kind and
the lines it announces; it counts as a whole, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from wbengine import _codec

__all__ = [
    "Damaged",
    "Line",
    "Scan",
    "file_name",
    "heading",
    "is_digest",
    "json_of",
    "key_of",
    "read",
    "scan",
    "turn",
    "write",
    "write_text",
]

#: Of what is written here; what is read may be older, and never newer.
VERSION: Final = 1

_CRC: Final = 8
_FIELDS: Final = 7
_MOST_NAME: Final = 100
_DIGEST: Final = "x-"
#: What a line says that says nothing.
_NOTHING: Final = b"null"
_PLAIN: Final = re.compile(r"[0-9a-z][0-9a-z_-]*").fullmatch
#: Within so many bytes of a line is its kind.
_HEADING: Final = 24


class Damaged(Exception):
    """Bytes are not what was written, or by a newer version; the text says what is wrong."""


class Line(NamedTuple):
    """One line; `raw` is all of it."""

    raw: bytes
    kind: bytes
    key: bytes
    major: int
    minor: int

    def tree(self) -> Any:
        """What the line says in JSON.

        :raises Damaged: it is no JSON.
        """
        try:
            return json.loads(
                self.raw.split(b" ", _FIELDS - 1)[-1].decode("utf-8", "surrogatepass")
            )
        except (ValueError, RecursionError) as error:
            raise Damaged(f"a record of kind {self.kind.decode()!r} is no JSON: {error}") from None


class Scan(NamedTuple):
    """What was found in a file, up to the first thing that is wrong."""

    first: Line | None
    lines: list[Line]
    #: The highest epoch of a turn.
    epoch: int
    #: Where the last turn that is whole ends.
    end: int
    #: What is wrong there (None: nothing, it is the end of the file).
    problem: str | None
    #: Whether anything whole comes after that: then it is no unfinished end.
    within: bool


def file_name(uuid: str) -> str:
    """The name of a file or folder for a uuid, which may be any text."""
    if _PLAIN(uuid) and len(uuid) <= _MOST_NAME:
        return uuid
    return _DIGEST + hashlib.sha256(uuid.encode("utf-8", "surrogatepass")).hexdigest()


def key_of(uuid: str) -> bytes:
    """A word that stands for a uuid, which may be any text."""
    return file_name(uuid).encode()


def is_digest(key: bytes) -> bool:
    """Whether a key may be another text than the uuid it stands for."""
    return key.startswith(_DIGEST.encode())


def write(kind: str, key: bytes = b"-", major: int = 0, minor: int = 0, tree: Any = None) -> bytes:
    """One line.  `tree` is what `json` can write."""
    text = _NOTHING if tree is None else json_of(tree)
    return write_text(kind, text, key, major, minor)


def json_of(tree: Any) -> bytes:
    """What a line says of `tree`."""
    return _codec.text_of(tree).encode("utf-8", "surrogatepass")


def write_text(kind: str, text: bytes, key: bytes, major: int, minor: int) -> bytes:
    """One line, which says what `json_of` made."""
    rest = b"%d %s %s %d %d %s" % (VERSION, kind.encode(), key, major, minor, text)
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def turn(epoch: int, lines: Sequence[bytes]) -> bytes:
    """Lines that count together."""
    return b"".join((heading(epoch, len(lines)), *lines))


def heading(epoch: int, count: int) -> bytes:
    """What a turn of so many lines begins with."""
    return write("turn", major=epoch, minor=count)


def read(raw: bytes) -> Line:
    """One line, with its line feed.

    :raises Damaged: it is damaged, or of a newer version.
    """
    if raw[-1:] != b"\n":
        raise Damaged("its last line is not whole")
    rest = raw[_CRC + 1 : -1]
    if raw[: _CRC + 1] != b"%08x " % zlib.crc32(rest):
        raise Damaged("a checksum is wrong")
    try:
        version, kind, key, major, minor, _ = rest.split(b" ", _FIELDS - 2)
        if int(version) > VERSION:
            raise Damaged(f"it is of format {int(version)}: a newer wbengine wrote it")
        return Line(raw, kind, key, int(major), int(minor))
    except ValueError:
        raise Damaged("it has another form than expected") from None


def scan(raws: Sequence[bytes], kind: str, key: bytes, generation: int) -> Scan:
    """Read the lines of a file of records or a journal, which may have none; raises nothing."""
    found: list[Line] = []
    first: Line | None = None
    epoch = end = at = 0
    problem: str | None = None
    try:
        if raws:
            first = _first(raws[0], kind, key, generation)
            at, end = 1, len(raws[0])
        while at < len(raws):
            header = read(raws[at])
            if header.kind != b"turn":
                raise Damaged(f"a line of kind {header.kind.decode()!r} is where a turn begins")
            after = at + 1 + header.minor
            if after > len(raws):
                raise Damaged("its last turn is not whole")
            found += [read(raw) for raw in raws[at + 1 : after]]
            epoch = max(epoch, header.major)
            end += sum(map(len, raws[at:after]))
            at = after
    except Damaged as error:
        problem = str(error)
    return Scan(first, found, epoch, end, problem, problem is not None and _goes_on(raws[at + 1 :]))


def _first(raw: bytes, kind: str, key: bytes, generation: int) -> Line:
    line = read(raw)
    if (line.kind, line.key, line.major) != (kind.encode(), key, generation):
        raise Damaged(
            f"it is the {line.kind.decode()!r} of {line.key.decode()}, number {line.major},"
            f" not the {kind!r} of {key.decode()}, number {generation}"
        )
    return line


def _goes_on(raws: Sequence[bytes]) -> bool:
    """Whether a turn begins in one of these lines."""
    for raw in raws:
        if b" turn " in raw[:_HEADING]:
            try:
                read(raw)
            except Damaged:
                continue
            return True
    return False
