"""What changed of a flow's records since somebody looked last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wbengine.persistence import models

__all__ = ["Changes", "turn_in"]

#: The number of a turn has no more digits.
_MOST_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class Changes:
    """What `Connection.get_changes` found.

    `cursor` is where to go on from the next time.  `whole`: this is all that is kept, and what was
    known before does not count any more.  `flow` is the flow without its atoms.  `atoms` are those
    that are new or have changed: complete where it is the `whole`, otherwise without items.  Those
    of the items that changed are in `items` then, by the uuid of their atom, whose own row may have
    stayed as it was.
    """

    cursor: str
    whole: bool
    flow: models.FlowDetail
    atoms: Sequence[models.AtomDetail]
    items: Mapping[str, Sequence[models.ItemDetail]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return True

    def put_into(self, known: models.FlowDetail | None) -> models.FlowDetail:
        """The flow as it is now, with its atoms; `known` is what it was at the cursor before.

        That one is changed, and returned, unless this is the whole.
        """
        if known is None or self.whole:
            self.flow.add_all(self.atoms)
            return self.flow
        known.update(self.flow)
        known.epoch = self.flow.epoch
        for atom in self.atoms:
            kept = known.find(atom.uuid)
            if kept is None:
                known.add(atom)
            else:
                kept.update_row(atom)
        for uuid, changed in self.items.items():
            owner = known.find(uuid)
            if owner is not None and owner.items is not None:
                for item in changed:
                    owner.items.put(item)
        return known


def turn_in(cursor: str | None, name: str, latest: int) -> int | None:
    """The turn that was seen last, by a cursor `NAME.TURN`; None: it is none of the flow that the
    store calls `name`, and has written `latest` as its last turn.
    """
    told, _, turn = (cursor or "").partition(".")
    is_number = len(turn) <= _MOST_DIGITS and turn.isascii() and turn.isdigit()
    return int(turn) if told == name and is_number and int(turn) <= latest else None
