"""Deletion of large values to which no flow of a store refers."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Final

from wbengine import _payloads, exceptions
from wbengine._payloads import sweeping
from wbengine._payloads.sweeping import GRACE_SECONDS, Swept
from wbengine.persistence import base
from wbengine.persistence._restricted import RestrictedBackend

__all__ = ["GRACE_SECONDS", "Swept", "sweep"]


#: Number of references whose flows are looked up to notice that the store is another one.
_MAX_SAMPLE: Final = 1000


def sweep(
    backend: base.Backend,
    grace: float = GRACE_SECONDS,
    *,
    dry_run: bool = False,
    force: bool = False,
) -> Iterator[Swept]:
    """Delete large values to which no flow refers, and yield the progress.

    The backend must be the store of all flows whose values are there. Values of other flows count
    as those of deleted flows. Engines may run meanwhile. An interrupted sweep may be repeated.

    :param grace: age in seconds below which values are kept.
    :param dry_run: only count.
    :param force: also if the store contains none of the flows of the values.
    :raises InvalidState: if the backend has no payloads, or does not show all flows; without
        `force`, also if it contains none of the flows, so that it may be another store.
    :raises StorageFailure: if the store, or the folder or bucket, cannot be reached.
    """
    payloads = backend.payloads
    if payloads is None:
        raise exceptions.InvalidState(
            f"A sweep requires the place of large values: set `payloads` (--payloads or"
            f" ${_payloads.VARIABLE})"
        )
    if isinstance(backend, RestrictedBackend):
        raise exceptions.InvalidState("A sweep requires access to all flows of the store")
    with contextlib.closing(backend.get_connection()) as connection:
        sample = set(itertools.islice(sweeping.flows_of(payloads), _MAX_SAMPLE))
        needs_force = bool(sample) and not connection.marks(sample)
        if needs_force and not (force or dry_run):
            raise exceptions.InvalidState(
                f"No flow of the values in {payloads} is in this store. If it is the right one,"
                " and the flows were deleted, use --force"
            )
        for swept in sweeping.sweep(
            payloads, connection.marks, time.time(), grace, dry_run=dry_run
        ):
            swept.needs_force = needs_force
            yield swept
