"""A lease: who runs a flow, and so who may write its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LEASE_SECONDS", "Lease"]

#: So long after its last sign of life an owner's lease ends.
LEASE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write the records of one flow.

    `epoch` rises by one with each lease of the flow, from 1, whoever takes it: it tells a write of
    an owner from one of whoever came after.
    """

    flow: str
    owner: str
    epoch: int
