"""What lists tell of a flow, in the head of its folder: so that a list need not read the flows.

It is told again with each turn, for it counts only together with the mark of that turn: what some
other writer did, or a power failure left, is not taken for it.
"""

from __future__ import annotations

import functools
import secrets
from typing import Final, NamedTuple

from wbengine.persistence import models
from wbengine.persistence.backends.directory import lines

__all__ = ["PLACE", "Row", "of_flow", "parse", "raw"]

#: So many bytes it has in the head.
PLACE: Final = 1024
KIND: Final = "row"
_SHORT: Final = 60
#: Of these, what the row itself says has at most so many.
_MOST: Final = PLACE - 200


class Row(NamedTuple):
    """The flow in short; `birth` tells it from another flow of the same uuid, before or after.

    The flow's latest line is at byte `place`, of the journal or else of the records; None: nobody
    looked.
    """

    uuid: str
    name: str
    book: str
    state: str | None
    created: float | None
    error: str | None
    birth: str
    in_journal: bool = False
    place: int | None = None

    def at(self, place: int, in_journal: bool) -> Row:
        return self._replace(place=place, in_journal=in_journal)


def of_flow(flow: models.FlowDetail, book: str, birth: str | None = None) -> Row:
    """What is told of a flow."""
    return Row(
        flow.uuid, flow.name, book, flow.state, flow.created, flow.error,
        birth if birth is not None else secrets.token_hex(6),
    )  # fmt: skip


def raw(row: Row | None, key: bytes, generation: int, length: int) -> bytes:
    """What the head is to say, beside the mark of that generation and length.

    Of a long error the end is left out; and of a flow with a very long name all, but where it is.
    """
    text = None if row is None else _text(row)
    if text is None:
        return b"".ljust(PLACE - 1) + b"\n"
    line = lines.write_text(KIND, text, key, generation, length)
    return line[:-1].ljust(PLACE - 1) + b"\n"


@functools.lru_cache(maxsize=256)
def _text(row: Row) -> bytes | None:
    """As much of it as there is room for; most turns leave it as it was."""
    short = row if row.error is None else row._replace(error=row.error[:_SHORT])
    for told in (row, short, short._replace(error=None)):
        text = lines.json_of(told)
        if len(text) <= _MOST:
            return text
    return None


def parse(data: bytes, key: bytes, generation: int, length: int) -> Row | None:
    """What `raw` wrote for the same mark; None: it is not known."""
    try:
        line = lines.read(data.rstrip() + b"\n")
        if (line.kind, line.key) != (KIND.encode(), key):
            return None
        if (line.major, line.minor) != (generation, length):
            return None
        return Row(*line.tree())
    except (lines.Damaged, TypeError, ValueError):
        return None
