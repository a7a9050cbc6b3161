"""Check of the values to which stored records refer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wbengine import exceptions
from wbengine.types import codec
from wbengine.types._references import Reference

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads

__all__ = ["Check", "Unavailable", "references_in"]


class Unavailable(NamedTuple):
    """A reference in a record to a value that is lost or damaged.

    :ivar field: the field of the record, and the path in it.
    :ivar problem: a sentence that contains all of this.
    """

    field: str
    address: str
    problem: str


class Check:
    """Checks the references of records, and each value once.

    :param payloads: where the values are; None: the values are only counted.
    :param read: whether to read the values and compare them with their addresses.
    """

    def __init__(self, payloads: Payloads | None, *, read: bool = False) -> None:
        self._payloads = payloads
        self._read = read
        self._available: set[str] = set()
        self._unavailable: set[str] = set()

    @property
    def count(self) -> int:
        """The number of different values."""
        return len(self._available) + len(self._unavailable)

    def unavailable(self, tree: Any, where: str) -> Iterator[Unavailable]:
        """Yield the references in the JSON tree of a record whose values are lost or damaged.

        :param where: the flow and the record, for `Unavailable.problem`.
        :raises StorageFailure: if the folder or bucket cannot be reached.
        """
        for path, reference in references_in(tree, ""):
            address = reference.address
            if address in self._available:
                continue
            try:
                if self._payloads is not None:
                    self._payloads.check(reference, f"{where} {path}", read=self._read)
            except exceptions.PayloadUnavailable as error:
                self._unavailable.add(address)
                yield Unavailable(path, address, str(error))
            else:
                self._available.add(address)


def references_in(tree: Any, path: str) -> Iterator[tuple[str, Reference]]:
    """Yield the references in a JSON tree, each with its path."""
    if type(tree) is dict:
        if tree.get(codec.TAG) == "payload":
            yield path, codec.unpack(tree)
            return
        for key, item in tree.items():
            step = "" if codec.TAG in tree else f"[{key!r}]"
            yield from references_in(item, f"{path}{step}" if path else key)
    elif type(tree) is list:
        for index, item in enumerate(tree):
            yield from references_in(item, f"{path}[{index}]")
