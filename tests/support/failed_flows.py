"""Stored flows that failed, without running them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from wbengine import states
from wbengine.persistence import base, models

__all__ = ["store_flows"]


def store_flows(
    store: base.Backend,
    number: int,
    *,
    state: str | None = states.FAILURE,
    is_submitted: bool = True,
    tags: Mapping[str, str] | None = None,
    prefix: str = "order",
) -> list[str]:
    """Store flows in a state, each with a failed task. Return their uuids, the oldest first."""
    uuids = []
    with contextlib.closing(store.get_connection()) as connection:
        for index in range(number):
            flow = models.FlowDetail(f"{prefix} {index}")
            flow.state = state
            flow.meta[models.FACTORY] = {"name": "tests.operations.flows:steps"}
            if tags:
                flow.meta["tags"] = dict(tags)
            if is_submitted:
                flow.meta[models.SUBMITTED] = {"namespace": "served", "rank": 2}
            task = models.TaskDetail("charge")
            task.state = states.FAILURE
            flow.add(task)
            book = models.LogBook(flow.name)
            book.meta[models.MADE_BY] = "wbengine"
            book.add(flow)
            connection.save_logbook(book)
            uuids.append(flow.uuid)
    return uuids
