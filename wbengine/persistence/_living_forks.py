"""Forks of stored flows, which use their results or revert them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wbengine import exceptions, states
from wbengine.persistence import _commands, _inherited_results, models
from wbengine.types import codec

if TYPE_CHECKING:
    from wbengine.persistence import base

__all__ = ["deletion_refusal", "living", "refusal", "refusal_text", "waiting_forks"]


def refusal(connection: base.Connection, flow: models.FlowDetail, what: str) -> str | None:
    """Return why a flow must not run again because of its forks, or as a fork; or None.

    Each run of a flow may end with its reversion. A fork that owns what it inherited does not use
    results of the flow any more, but its own forks may. The flow can then only be reverted.

    :param what: one of `_commands.COMMANDS`.
    """
    if what == _commands.SUSPEND:
        return None
    if flow.awaits_reversion and what == _commands.CANCEL:
        return _refusal_to_cancel(connection, flow)
    if flow.forked_from is not None and what in (_commands.RESUME, _commands.RETRY):
        if flow.awaits_reversion:
            return f"Flow {flow.uuid} starts when flow {flow.forked_from['flow']} is reverted"
        with codec.unknown_classes_as_text():
            detail = connection.get_flow_details(flow.uuid)
        if (reason := _inherited_results.refusal(connection, detail)) is not None:
            return reason
    if not flow.forks:
        return None
    if flow.successor is not None and what in (_commands.RESUME, _commands.RETRY):
        return (
            f"Flow {flow.uuid} was superseded by its fork {flow.successor}, which owns its results"
        )
    fork = next(living(connection, flow), None)
    if fork is None:
        return None
    return f"Flow {flow.uuid} cannot run again or be reverted: {refusal_text(fork.uuid)}"


def refusal_text(fork: str) -> str:
    """Return why a flow with this fork is not reverted."""
    return (
        f"its fork {fork}, which has not ended, uses its results. Wait for the end of the fork, or"
        " cancel it"
    )


def deletion_refusal(connection: base.Connection, flow: models.FlowDetail) -> str | None:
    """Return why a flow must not be deleted because of its forks, or as a fork; or None."""
    if waiting := waiting_forks(connection, flow):
        return (
            f"Flow {flow.uuid} is not deleted: its fork {waiting[0]} starts when it is reverted."
            " Cancel the fork first, when the reversion has ended"
        )
    if flow.state == states.REVERTED:
        return None
    for entry in flow.forks:
        if not entry.get("own") and _stored(connection, entry["flow"]) is not None:
            return (
                f"Flow {flow.uuid} is not deleted: its fork {entry['flow']} uses results that only"
                " this flow can revert. Delete the fork first"
            )
    origin = flow.forked_from
    if origin is not None and origin.get("own") and _stored(connection, origin["flow"]) is not None:
        return (
            f"Flow {flow.uuid} is not deleted: only this fork can revert the results that it"
            f" inherited from flow {origin['flow']}. Delete that flow first"
        )
    return None


def waiting_forks(connection: base.Connection, flow: models.FlowDetail) -> list[str]:
    """Return the uuids of the forks that start when a flow is reverted."""
    forks = [_stored(connection, entry["flow"]) for entry in flow.forks if entry.get("own")]
    return [fork.uuid for fork in forks if fork is not None and fork.awaits_reversion]


def _stored(connection: base.Connection, uuid: str) -> models.FlowDetail | None:
    """Return a flow without its atoms, or None if it was deleted."""
    try:
        with codec.unknown_classes_as_text():
            return connection.get_flow_details(uuid, lazy=True)
    except exceptions.NotFound:
        return None


def _refusal_to_cancel(connection: base.Connection, fork: models.FlowDetail) -> str | None:
    """Return why a fork that waits for the reversion of its original cannot be cancelled."""
    original = (fork.forked_from or {}).get("flow", "")
    flow = _stored(connection, original)
    if flow is None:
        return None
    if flow.state in states.FLOW_ENDED and not connection.commands([original]):
        return None  # The reversion was refused, or failed.
    return f"Flow {fork.uuid} can be cancelled when the reversion of flow {original} has ended"


def living(
    connection: base.Connection, flow: models.FlowDetail, *, is_first: bool = True
) -> Iterator[models.FlowDetail]:
    """Yield the forks of a flow that have not ended and use results which it reverts."""
    for entry in flow.forks:
        uuid = entry["flow"]
        fork = _stored(connection, uuid)
        if fork is None:
            continue
        request = connection.commands([uuid]).get(uuid)
        has_ended = fork.state in states.FLOW_ENDED and not (request and request.reruns_flow)
        if not (has_ended or (is_first and entry.get("own"))):
            yield fork
        yield from living(connection, fork, is_first=False)
