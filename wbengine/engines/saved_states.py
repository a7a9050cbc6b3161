"""What earlier runs left in the records of a flow, as far as a run, or a reset, begins with it."""

from __future__ import annotations

from wbengine import exceptions, states
from wbengine.storage import Storage

__all__ = ["failed_nodes", "states_by_node"]


def states_by_node(storage: Storage) -> dict[int, tuple[str | None, str]]:
    """State and intention of each atom for which something was done, or is to be undone."""
    return {
        node: (record.state, record.intention)
        for node, record in enumerate(storage.records)
        if record is not None
        and (record.state != states.PENDING or record.intention != states.EXECUTE)
    }


def failed_nodes(storage: Storage) -> list[int]:
    """The atoms that failed.

    :raises InvalidState: something is reverted, or is to be, so that it cannot just go on.
    """
    failed = []
    for node, record in enumerate(storage.records):
        if record is None:
            continue
        if record.intention in (states.REVERT, states.RETRY):
            raise exceptions.InvalidState(
                f"Flow {storage.flow_name!r} cannot go on where it failed: atom"
                f" {record.name!r} is {record.state} and means to {record.intention};"
                " revert what is left, or reset everything"
            )
        if record.state == states.FAILURE:
            failed.append(node)
    return failed
