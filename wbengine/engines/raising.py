"""What a run raises about a flow that did not come to the end that was meant."""

from __future__ import annotations

from wbengine import exceptions, states
from wbengine._core import lifecycle
from wbengine._core.machine import Machine
from wbengine.storage import Storage
from wbengine.types import failure as ft

__all__ = ["raise_failures"]


def raise_failures(machine: Machine, storage: Storage, deadline: float | None) -> None:
    """Raise what a run that is over failed with, if it did.

    :raises DeadlineExceeded: time was up, in this run (then `deadline` says how much that was) or
        in an earlier one.
    :raises Exception: what failed.
    """
    if machine.state in (states.SUCCESS, states.SUSPENDED):
        return
    if machine.expired or lifecycle.DEADLINE_EXCEEDED in storage.flow_meta:
        raise _too_late(machine, storage, deadline if machine.expired else None)
    _raise_what_stopped(machine, storage)


def _raise_what_stopped(machine: Machine, storage: Storage) -> None:
    """What kept atoms from being reverted, if anything did; else what failed.

    The former with the latter as its context: it happened while that was being handled.
    """
    stuck = storage.get_revert_failures().values()
    failed = storage.get_execute_failures().values()
    try:
        ft.Failure.reraise_if_any([*machine.problems, *failed])
    except BaseException:
        ft.Failure.reraise_if_any(stuck)
        raise
    ft.Failure.reraise_if_any(stuck)


def _too_late(
    machine: Machine, storage: Storage, deadline: float | None
) -> exceptions.DeadlineExceeded:
    cause: BaseException | None = None
    try:
        _raise_what_stopped(machine, storage)
    except BaseException as error:
        cause = error
    given = "the time an earlier run was given" if deadline is None else f"{deadline:g} seconds"
    found = exceptions.DeadlineExceeded(
        f"Flow {storage.flow_name!r} did not end within {given}", cause
    )
    found.__cause__ = cause
    return found
