"""Flows that have not ended and use results of another flow."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from wbengine import exceptions, states
from wbengine.persistence import _living_forks, models
from wbengine.types import codec

if TYPE_CHECKING:
    from wbengine.persistence import base

__all__ = ["User", "users"]

_MAX_CHILDREN: Final = 100
_UNFINISHED: Final = tuple(each for each in states.FLOW_STATES if each not in states.FLOW_ENDED)


class User(NamedTuple):
    """A flow that has not ended and uses results of another flow.

    :ivar kind: "fork": it, or the fork from which it was forked, inherited results that the other
        flow reverts; "parent": it started the other flow and may have its result; "child": the
        other flow started it.
    """

    flow: str
    kind: str
    name: str
    state: str

    @property
    def refuses_undo(self) -> bool:
        """Whether the other flow cannot be reverted as long as this flow has not ended."""
        return self.kind == "fork"

    def to_dict(self) -> dict[str, str]:
        return self._asdict()


def users(connection: base.Connection, flow: models.FlowDetail) -> tuple[User, ...]:
    """Return the flows that have not ended and use results of a flow in SUCCESS.

    These are its forks, its parent, and the first 100 of its children.

    :param flow: the flow with its atoms.
    """
    if flow.state != states.SUCCESS:
        return ()
    found: list[User] = []
    with codec.unknown_classes_as_text():
        found += [_user(fork, "fork") for fork in _living_forks.living(connection, flow)]
        if flow.parent is not None:
            with contextlib.suppress(exceptions.NotFound):
                parent = connection.get_flow_details(flow.parent, lazy=True)
                if parent.state not in states.FLOW_ENDED:
                    found.append(_user(parent, "parent"))
    if any(atom.meta_value(models.CHILD) is not None for atom in flow):
        page = connection.list_flows(states=_UNFINISHED, parent=flow.uuid, limit=_MAX_CHILDREN)
        found += [
            User(row.uuid, "child", row.name, row.state or states.PENDING) for row in page.flows
        ]
    return tuple(found)


def _user(flow: models.FlowDetail, kind: str) -> User:
    return User(flow.uuid, kind, flow.name, flow.state or states.PENDING)
