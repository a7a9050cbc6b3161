"""Results that forks have inherited, but that other flows revert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine import exceptions, states
from wbengine.persistence import models
from wbengine.types import codec

if TYPE_CHECKING:
    from wbengine.persistence import base

__all__ = ["refusal"]


def refusal(
    connection: base.Connection, fork: models.FlowDetail, original: models.FlowDetail | None = None
) -> str | None:
    """Return the reason why a fork must not run if its inherited results were reverted, or None.

    Takes O(atoms of the fork, and of the flows that revert its results).

    :param fork: the fork with its atoms.
    :param original: the flow from which it is being forked now; its own results are not reverted.
    """
    owners = _Owners(connection, original)
    owner = owners.reverter(fork)
    if owner is None:
        return None
    what = f"{fork.uuid} cannot run again" if original is None else f"{original.uuid} is not forked"
    return (
        f"Flow {what}: it uses results of flow {owner}, which has reverted them, or may"
        " revert them now. Run that flow again instead"
    )


class _Owners:
    """The flows that revert results of a fork, read once."""

    def __init__(self, connection: base.Connection, trusted: models.FlowDetail | None) -> None:
        self._connection = connection
        # None: the flow reverts nothing that the fork uses.
        self._flows: dict[str, models.FlowDetail | None] = {}
        if trusted is not None:
            self._flows[trusted.uuid] = None

    def reverter(self, flow: models.FlowDetail) -> str | None:
        for record in flow:
            owner: str | None = record.meta_value(models.RESULT_OWNER)
            place: list[str] | None = record.meta_value(models.INHERITED)
            while owner is not None and place is not None:
                detail = self._flow(owner)
                if detail is None:
                    break
                found = detail.find(place[1]) if place[0] == owner else _heir(detail, place)
                if found is None or not _is_idle(self._connection, detail):
                    return owner
                if (found.state, found.attempt) != (record.state, record.attempt):
                    return owner
                place, owner = [owner, found.uuid], found.meta_value(models.RESULT_OWNER)
        return None

    def _flow(self, uuid: str) -> models.FlowDetail | None:
        if uuid not in self._flows:
            try:
                with codec.unknown_classes_as_text():
                    self._flows[uuid] = self._connection.get_flow_details(uuid)
            except exceptions.NotFound:  # It was deleted.
                self._flows[uuid] = None
        return self._flows[uuid]


def _heir(flow: models.FlowDetail, place: list[str]) -> models.AtomDetail | None:
    """Return the record of a fork that inherited the result of a record of another flow."""
    heirs = (record for record in flow if record.meta_value(models.INHERITED) == place)
    return next(heirs, None)


def _is_idle(connection: base.Connection, flow: models.FlowDetail) -> bool:
    command = connection.commands([flow.uuid]).get(flow.uuid)
    is_over = flow.state in states.FLOW_ENDED or flow.is_suspended_by_command
    return is_over and (command is None or not command.reruns_flow)
