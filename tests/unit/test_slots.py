"""Pools of a worker for combinations of options."""

from __future__ import annotations

import os
from concurrent import futures
from typing import Any

import pytest

from wbengine import pools
from wbengine.engines.worker_based._worker_side import slots


@pytest.mark.parametrize(
    ("options", "kind", "size", "words"),
    [
        ({}, pools.ThreadPool, slots.default_slots(), "threads"),
        ({"threads": 3}, pools.ThreadPool, 3, "threads"),
        ({"processes": 2}, pools.ProcessPool, 2, "processes"),
        ({"concurrency": 5}, pools.ThreadPool, 5, "threads"),
        ({"kind": "threads", "concurrency": 5}, pools.ThreadPool, 5, "threads"),
        ({"kind": "processes"}, pools.ProcessPool, os.cpu_count(), "processes"),
        ({"kind": "processes", "concurrency": 2}, pools.ProcessPool, 2, "processes"),
        ({"processes": 1, "max_calls": 9, "max_memory": 2**30}, pools.ProcessPool, 1, "processes"),
        ({"kind": "solo"}, pools.SoloPool, 1, "solo (the main thread)"),
        ({"kind": "solo", "concurrency": 1}, pools.SoloPool, 1, "solo (the main thread)"),
    ],
)
def test_pool_has_the_requested_kind_and_size(
    options: Any, kind: Any, size: int, words: str
) -> None:
    made: Any
    made, count, told = slots.make_pool(**options)
    assert (type(made), made.size, count, told) == (kind, size, size, words)
    made.stop()


def test_pool_wraps_a_given_executor() -> None:
    with futures.ThreadPoolExecutor(3) as executor:
        made, count, told = slots.make_pool(executor)
        assert (type(made), count, told) == (pools.ExternalPool, 3, "of the given executor")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 1, "processes": 1}, "got threads and processes"),
        ({"threads": 1, "kind": "threads"}, "got threads and pool"),
        ({"threads": 1, "concurrency": 1}, "only one of threads and concurrency"),
        ({"kind": "fibres"}, "pool must be one of threads, processes, solo, got 'fibres'"),
        ({"kind": "thread"}, r"got 'thread' \(did you mean 'threads'\?\)"),
        ({"kind": "solo", "concurrency": 2}, "'solo' has one slot, got concurrency=2"),
        ({"kind": "solo", "max_calls": 2}, "require child processes, got solo"),
        ({"max_memory": 2}, "require child processes, got threads"),
        ({"kind": "processes", "max_calls": 0}, "max_calls must be a whole number"),
        ({"kind": "threads", "concurrency": 0}, "size of a pool"),
    ],
)
def test_contradictory_pool_options_are_rejected(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        slots.make_pool(**options)
