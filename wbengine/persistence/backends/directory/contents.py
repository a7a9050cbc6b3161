"""What the lines of a flow's files come to: the latest of each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from wbengine import exceptions
from wbengine.persistence import models, trees
from wbengine.persistence.backends.directory import lines

__all__ = [
    "Contents", "NO_ITEMS", "atom_line", "flow_line", "item_line", "lines_of", "record_in",
]  # fmt: skip

#: Instead of an attempt, in the line of an atom without items.
NO_ITEMS: Final = -1

_ATOMS: Final = frozenset((b"task", b"retry"))


def flow_line(flow: models.FlowDetail) -> bytes:
    """:raises NotEncodable: a value in it cannot be kept."""
    return lines.write("flow", tree=trees.tree_of(flow))


def atom_line(atom: models.AtomDetail) -> bytes:
    """:raises NotEncodable: a value in it cannot be kept."""
    attempt = NO_ITEMS if atom.items is None else atom.items.attempt
    return lines.write(atom.kind, lines.key_of(atom.uuid), attempt, 0, trees.tree_of(atom))


def item_line(atom_key: bytes, item: models.ItemDetail) -> bytes:
    """:raises NotEncodable: a value in it cannot be kept."""
    return lines.write("item", atom_key, item.attempt, item.index, trees.tree_of(item))


def lines_of(flow: models.FlowDetail) -> Iterator[bytes]:
    """A flow (first), its atoms and their items.

    :raises NotEncodable: a value in one of them cannot be kept.
    """
    yield flow_line(flow)
    for atom in flow:
        yield atom_line(atom)
        key = lines.key_of(atom.uuid)
        for item in atom.items or ():
            yield item_line(key, item)


class Contents:
    """The records of a flow, as lines.

    The last line of a record counts; items are those of the attempt that their atom's line names.
    """

    __slots__ = ("_atoms", "_flow", "_items")

    def __init__(self, found: Iterable[lines.Line] = ()) -> None:
        self._flow: lines.Line | None = None
        self._atoms: dict[bytes, lines.Line] = {}
        self._items: dict[bytes, dict[int, lines.Line]] = {}
        for line in found:
            self._take(line)

    def _take(self, line: lines.Line) -> None:
        kind, key = line.kind, line.key
        if kind == b"item":
            atom = self._atoms.get(key)
            if atom is not None and atom.major == line.major:
                self._items.setdefault(key, {})[line.minor] = line
        elif kind in _ATOMS:
            before = self._atoms.get(key)
            if before is not None and before.major != line.major:
                self._items.pop(key, None)
            self._atoms[key] = line
        elif kind == b"flow":
            self._flow = line
        # Kinds of lines that are not known say more than is needed to understand the others.

    def __contains__(self, atom_key: bytes) -> bool:
        return atom_key in self._atoms

    def __len__(self) -> int:
        """How many `lines` there are."""
        items = sum(len(self._items.get(key, ())) for key in self._atoms)
        return (self._flow is not None) + len(self._atoms) + items

    @property
    def flow_line(self) -> lines.Line | None:
        """The flow's own."""
        return self._flow

    def lines(self) -> Iterator[bytes]:
        """What is to be written to have the same contents again."""
        if self._flow is not None:
            yield self._flow.raw
        for key, line in self._atoms.items():
            yield line.raw
            for item in self._items.get(key, {}).values():
                yield item.raw

    def flow(self, epoch: int, lazy: bool = False) -> models.FlowDetail:
        """The flow; with its atoms and their items unless it is `lazy`.

        :raises Damaged: a line says what no record says.
        """
        if self._flow is None:
            raise lines.Damaged("it says nothing of the flow itself")
        detail: models.FlowDetail = record_in(self._flow)
        detail.epoch = epoch
        if not lazy:
            detail.add_all(map(self.atom, self._atoms))
        return detail

    def atom(self, key: bytes) -> models.AtomDetail:
        """One atom with its items.

        :raises Damaged: a line says what no record says.
        """
        detail: models.AtomDetail = record_in(self._atoms[key])
        if detail.items is not None:
            for item in self._items.get(key, {}).values():
                try:
                    detail.items.put(record_in(item))
                except ValueError as error:
                    raise lines.Damaged(str(error)) from None
        return detail


def record_in(line: lines.Line) -> Any:
    """The record that a line tells of; an atom comes without items.

    :raises Damaged: the line says what no record says.
    """
    try:
        return trees.record_of(line.kind.decode(), line.tree())
    except exceptions.InvalidFormat as error:
        raise lines.Damaged(str(error)) from error
