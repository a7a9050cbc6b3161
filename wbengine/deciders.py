"""How far a decider's "no" reaches."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from wbengine import _names


class Depth(str, enum.Enum):
    """What is ignored when a decider says no; members in order of width, the widest first.

    A flow as the target is ignored as a whole; of what comes after it, only `ALL` ignores anything.
    An empty flow has nobody to be ignored: its deciders are not asked.
    """

    #: The target and everything that comes after it, nested or not.
    ALL = "ALL"
    #: The target and what comes after it in the same flow.
    FLOW = "FLOW"
    #: The target and the tasks directly after it.
    NEIGHBORS = "NEIGHBORS"
    #: Only the target.
    ATOM = "ATOM"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def translate(cls, desired_depth: Depth | str) -> Depth:  # type: ignore[override]
        """The depth with that name, whatever its case.

        :raises TypeError: not a string.
        :raises ValueError: no such depth.
        """
        if isinstance(desired_depth, cls):
            return desired_depth
        if not isinstance(desired_depth, str):
            raise TypeError(f"A decider depth is a Depth or a string, not {desired_depth!r}")
        try:
            return cls(desired_depth.upper())
        except ValueError:
            known = [depth.value for depth in cls]
            raise ValueError(
                f"Unknown decider depth {desired_depth!r}{_names.hint(desired_depth, known)};"
                f" choose one of {', '.join(known)}"
            ) from None


_WIDTH = {depth: place for place, depth in enumerate(Depth)}


def pick_widest(depths: Iterable[Depth]) -> Depth:
    """The depth that reaches furthest.

    :raises ValueError: there is none to choose from.
    """
    found = min(depths, key=_WIDTH.__getitem__, default=None)
    if found is None:
        raise ValueError("There are no depths to choose from")
    return found
