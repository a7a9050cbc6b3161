"""How far a decider's "no" reaches, and what a node does that comes after ignored ones."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, TypeVar

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
        return _translate(cls, "decider depth", desired_depth)


class Join(str, enum.Enum):
    """When a node runs that comes after others, some of which may have been ignored.

    The rule is applied once, when everything directly before the node has succeeded or was ignored.
    A link is *taken* when its source was not ignored, and its decider, if it has one, says yes.  A
    nested flow counts as an ignored source when all its last members (those that nothing in it
    comes after) were ignored.

    With any rule but `ALL`, what other targets were refused ends at the node, whatever the depth:
    the node's own rule decides.  Only when a flow around it is ignored as a whole, it is too.  An
    empty flow has nobody to be ignored: it has no rule.
    """

    #: TaskFlow's rule, and the default: it runs unless it is within the reach of a "no", or one of
    #: its own deciders says no.
    ALL = "ALL"
    #: It runs if at least one link was taken; deciders are asked only when no other link was.  Else
    #: it is ignored, and everything after it (if deciders alone are the cause: as deep as the
    #: widest of them says).
    ANY = "ANY"
    #: It runs also when everything before it was ignored; only a decider of its own, asked unless
    #: its source was ignored, can refuse it.
    NONE_FAILED = "NONE_FAILED"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def translate(cls, desired_join: Join | str) -> Join:  # type: ignore[override]
        """The rule with that name, whatever its case.

        >>> print(Join.translate("none_failed"))
        NONE_FAILED

        :raises TypeError: not a string.
        :raises ValueError: no such rule.
        """
        return _translate(cls, "join rule", desired_join)


_E = TypeVar("_E", bound=enum.Enum)


def _translate(cls: type[_E], what: str, wanted: Any) -> _E:
    if isinstance(wanted, cls):
        return wanted
    if not isinstance(wanted, str):
        raise TypeError(f"A {what} is a {cls.__name__} or a string, not {wanted!r}")
    try:
        return cls(wanted.upper())
    except ValueError:
        known = [member.value for member in cls]
        raise ValueError(
            f"Unknown {what} {wanted!r}{_names.hint(wanted, known)};"
            f" choose one of {', '.join(known)}"
        ) from None


_WIDTH = {depth: place for place, depth in enumerate(Depth)}


def pick_widest(depths: Iterable[Depth]) -> Depth:
    """The depth that reaches furthest.

    :raises ValueError: there is none to choose from, or one of them is no depth.
    """
    known = [Depth.translate(depth) for depth in depths]
    found = min(known, key=_WIDTH.__getitem__, default=None)
    if found is None:
        raise ValueError("There are no depths to choose from")
    return found
