"""Conductors whose parked jobs are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.seams import stores as stored_in
from tests.support import conducted
from wbengine.conductors.backends import impl_nonblocking
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base as persistence

__all__ = ["conducting", "dialects"]

#: Mark of tests for MySQL, too, because their locks differ between dialects.
dialects = pytest.mark.parametrize("uri", [*stored_in.DURABLE, "mysql"], indirect=True)


@contextlib.contextmanager
def conducting(
    store: persistence.Backend, most: int = 1, engine: str | None = None, **options: Any
) -> Iterator[tuple[impl_sql.SQLJobBoard, list[str]]]:
    """Run a conductor with `most` slots in a thread; yield its board and the jobs it abandoned.

    :param engine: the kind of its engines, with `options`.
    """
    parked: list[str] = []
    with boards.backend("b", "sql", persistence=store) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        conductor = impl_nonblocking.NonBlockingConductor(
            "c", board, store, engine, options, max_simultaneous_jobs=most
        )
        conductor.notifier.register(
            "job_abandoned", lambda event, details: parked.append(details["job"].uuid)
        )
        with conducted.running(conductor):
            yield board, parked
