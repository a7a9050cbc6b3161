"""The head of a flow's folder: who runs the flow, and how much of which files counts.

A small file of three fixed places, each with one line: it is written in place, without waiting for
the disk where that is not needed.  Whoever changes anything in the folder holds the lock of
this file.  The third place (`rows`) may be missing, or of another time: then it says nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from wbengine.persistence import leases
from wbengine.persistence.backends.directory import lines, rows

__all__ = ["LEAST", "SIZE", "Head", "Holder", "Mark", "parse", "row_in"]

#: Of one place: a disk writes so much at once, or nothing of it.
_PLACE: Final = 512
#: So long it is without the third place.
LEAST: Final = 2 * _PLACE
SIZE: Final = LEAST + rows.PLACE
_MOST_OWNER: Final = 200


class Holder(NamedTuple):
    """The latest lease: `until` is a time of the host's clock; `held` until it is given back."""

    epoch: int = 0
    owner: str = ""
    until: float = 0.0
    held: bool = False

    def runs(self, now: float) -> bool:
        return self.held and self.until > now

    def is_of(self, lease: leases.Lease) -> bool:
        # Of an owner with a very long name only the beginning is kept.
        return self.held and self.epoch == lease.epoch and lease.owner.startswith(self.owner)


class Mark(NamedTuple):
    """The files that count are those of `generation`; of the journal, `length` bytes surely do.

    What follows them counts too, as far as it is whole: the mark is set after each turn, and not
    awaited.  But within them nothing may be damaged, while an unfinished end is only an end.
    """

    generation: int
    length: int = 0


class Head(NamedTuple):
    holder: Holder
    mark: Mark
    #: What lists tell of the flow; None: it is not known.
    row: rows.Row | None = None

    def raw(self, key: bytes) -> bytes:
        """What the file is to hold."""
        return _place(_lease_line(self.holder, key)) + self._rest(key)

    def raw_after(self, raw: bytes, key: bytes) -> bytes:
        """`raw`, when it differs from that in everything but `holder`."""
        return raw[:_PLACE] + self._rest(key)

    def _rest(self, key: bytes) -> bytes:
        generation, length = self.mark
        told = rows.raw(self.row, key, generation, length)
        return _place(lines.write("length", key, generation, length)) + told


def parse(data: bytes, key: bytes) -> Head:
    """What a head says.

    :raises Damaged: it is damaged, or of a newer version.
    """
    if len(data) < LEAST:
        raise lines.Damaged("it is too short")
    lease = _line(data[:_PLACE], "lease", key)
    length = _line(data[_PLACE:LEAST], "length", key)
    told = lease.tree()
    try:
        holder = Holder(lease.major, told["owner"], told["until"], told["held"])
    except (LookupError, TypeError):
        raise lines.Damaged("its lease has another form than expected") from None
    row = rows.parse(data[LEAST:SIZE], key, length.major, length.minor)
    return Head(holder, Mark(length.major, length.minor), row)


def row_in(data: bytes, key: bytes) -> rows.Row | None:
    """What a head tells lists, without the rest: None where all of it has to be looked at."""
    try:
        length = _line(data[_PLACE:LEAST], "length", key)
    except lines.Damaged:
        return None
    return rows.parse(data[LEAST:SIZE], key, length.major, length.minor)


def _lease_line(holder: Holder, key: bytes) -> bytes:
    owner = holder.owner
    told = {"until": holder.until, "held": holder.held}
    while True:  # the end of a very long name is left out: the epoch tells who it is
        line = lines.write("lease", key, holder.epoch, 0, {"owner": owner, **told})
        if len(line) <= _PLACE:
            return line
        owner = owner[: min(len(owner) * 3 // 4, _MOST_OWNER)]


def _place(line: bytes) -> bytes:
    return line[:-1].ljust(_PLACE - 1) + b"\n"


def _line(place: bytes, kind: str, key: bytes) -> lines.Line:
    line = lines.read(place.rstrip() + b"\n")
    if (line.kind, line.key) != (kind.encode(), key):
        raise lines.Damaged(
            f"it is the {line.kind.decode()!r} of {line.key.decode()},"
            f" not the {kind!r} of {key.decode()}"
        )
    return line
