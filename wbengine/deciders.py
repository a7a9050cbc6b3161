"""Depths of deciders and join rules."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, TypeVar

from wbengine._introspection import object_names


class Depth(enum.StrEnum):
    """The extent to which nodes are ignored if a decider returns False, widest first.

    If the target is a flow, the whole flow is ignored. Only `ALL` also ignores nodes after that
    flow. Deciders of an empty flow are not called.
    """

    #: The target and all nodes after it, nested or not.
    ALL = "ALL"
    #: The target and the nodes after it in the same flow.
    FLOW = "FLOW"
    #: The target and the tasks directly after it.
    NEIGHBORS = "NEIGHBORS"
    #: Only the target.
    ATOM = "ATOM"

    @classmethod
    def translate(cls, desired_depth: Depth | str) -> Depth:  # type: ignore[override]
        """Return the depth with this name, in upper or lower case.

        :raises TypeError: if it is not a string.
        :raises ValueError: if there is no such depth.
        """
        return _translate(cls, "decider depth", desired_depth)


class Join(enum.StrEnum):
    """A rule for whether a node runs after predecessors that may have been ignored.

    The rule applies when all direct predecessors have succeeded or were ignored. A link is *taken*
    if its source was not ignored and its decider, if any, returns True. A nested flow counts as an
    ignored source if all its last members (those without successors inside it) were ignored.

    A node with a rule other than `ALL` stops the depth of deciders of other targets: only its own
    rule decides. It is still ignored together with a flow that contains it. Rules of empty flows
    have no effect.
    """

    #: The default, as in TaskFlow: the node is ignored if the depth of another target reaches it,
    #: or if one of its own deciders returns False.
    ALL = "ALL"
    #: The node runs if at least one link was taken. If one of them has no decider, no decider is
    #: called. If no link was taken, the node is ignored. With it, all nodes after it are ignored if
    #: one of its sources was ignored; otherwise its deciders define the depth (the widest one).
    ANY = "ANY"
    #: The node runs unless one of its own deciders returns False. A decider is called unless its
    #: source was ignored.
    NONE_FAILED = "NONE_FAILED"

    @classmethod
    def translate(cls, desired_join: Join | str) -> Join:  # type: ignore[override]
        """Return the rule with this name, in upper or lower case.

        >>> print(Join.translate("none_failed"))
        NONE_FAILED

        :raises TypeError: if it is not a string.
        :raises ValueError: if there is no such rule.
        """
        return _translate(cls, "join rule", desired_join)


_E = TypeVar("_E", bound=enum.Enum)


def _translate(cls: type[_E], kind: str, value: Any) -> _E:
    if isinstance(value, cls):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{kind} must be a {cls.__name__} or a str, got {value!r}")
    try:
        return cls(value.upper())
    except ValueError:
        values = [member.value for member in cls]
        raise ValueError(
            f"Unknown {kind} {value!r}{object_names.hint(value, values)};"
            f" known values: {', '.join(values)}"
        ) from None


_WIDTH = {depth: place for place, depth in enumerate(Depth)}


def pick_widest(depths: Iterable[Depth]) -> Depth:
    """Return the widest of several depths.

    :raises ValueError: if `depths` is empty or contains an invalid depth.
    """
    checked = [Depth.translate(depth) for depth in depths]
    widest = min(checked, key=_WIDTH.__getitem__, default=None)
    if widest is None:
        raise ValueError("At least one depth is required")
    return widest
