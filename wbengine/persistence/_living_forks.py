"""Forks that have not ended: the flows whose results they use must not be reverted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine import exceptions, states
from wbengine.persistence import _commands, _inherited_results, models
from wbengine.types import codec

if TYPE_CHECKING:
    from wbengine.persistence import base

__all__ = ["refusal"]


def refusal(connection: base.Connection, flow: models.FlowDetail, what: str) -> str | None:
    """Return why a flow must not run again because of its forks, or as a fork; or None.

    Each run of a flow may end with its reversion. A fork that owns what it inherited does not use
    results of the flow any more, but its own forks may. The flow can then only be reverted.

    :param what: one of `_commands.COMMANDS`.
    """
    if what == _commands.SUSPEND:
        return None
    if flow.is_held and what == _commands.CANCEL:
        return _refusal_to_cancel(connection, flow)
    if flow.forked_from is not None and what in (_commands.RESUME, _commands.RETRY):
        if flow.is_held:
            return f"Flow {flow.uuid} starts when flow {flow.forked_from['flow']} is reverted"
        with codec.unknown_classes_as_text():
            fork = connection.get_flow_details(flow.uuid)
        if (reason := _inherited_results.refusal(connection, fork)) is not None:
            return reason
    if not flow.forks:
        return None
    if flow.successor is not None and what in (_commands.RESUME, _commands.RETRY):
        return (
            f"Flow {flow.uuid} was superseded by its fork {flow.successor}, which owns its results"
        )
    with codec.unknown_classes_as_text():
        living = _living(connection, flow, is_first=True)
    if living is None:
        return None
    return (
        f"Flow {flow.uuid} cannot run again or be reverted: its fork {living}, which has not ended,"
        " uses its results. Wait for the end of the fork, or cancel it"
    )


def _refusal_to_cancel(connection: base.Connection, fork: models.FlowDetail) -> str | None:
    """Return why a fork that waits for the reversion of its original cannot be cancelled."""
    original = (fork.forked_from or {}).get("flow", "")
    try:
        with codec.unknown_classes_as_text():
            flow = connection.get_flow_details(original, lazy=True)
    except exceptions.NotFound:  # It was deleted.
        return None
    if flow.state in states.FLOW_ENDED and not connection.commands([original]):
        return None  # The reversion was refused, or failed.
    return f"Flow {fork.uuid} can be cancelled when the reversion of flow {original} has ended"


def _living(connection: base.Connection, flow: models.FlowDetail, *, is_first: bool) -> str | None:
    for entry in flow.forks:
        uuid = entry["flow"]
        try:
            fork = connection.get_flow_details(uuid, lazy=True)
        except exceptions.NotFound:  # It was deleted.
            continue
        request = connection.commands([uuid]).get(uuid)
        has_ended = fork.state in states.FLOW_ENDED and not (request and request.reruns_flow)
        if not (has_ended or (is_first and entry.get("own"))):
            return str(uuid)
        nested = _living(connection, fork, is_first=False)
        if nested is not None:
            return nested
    return None
