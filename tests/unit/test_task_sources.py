"""Task sources of workers: counting, description and closing."""

from __future__ import annotations

import pytest

from tests.support import sample_tasks
from tests.support.workers import worker_in_thread
from wbengine.engines.worker_based import server
from wbengine.engines.worker_based._worker_side import describing, task_sources


class Broken(task_sources.TaskSource):
    """Task source that cannot be closed."""

    description = (("jobs", "from afar"),)

    def close(self, timeout: float = 5.0) -> None:
        raise OSError("no more")


def test_max_tasks_counts_tasks_of_sources() -> None:
    core = server.Server("w", [], {}, 2, max_tasks=2)
    assert core.admit() == (True, [])
    assert core.admit() == (True, [server.Drain()])
    assert core.admit() == (False, [])


def test_all_tasks_are_admitted_without_max_tasks() -> None:
    core = server.Server("w", [], {}, 2)
    assert {core.admit() == (True, []) for _ in range(5)} == {True}


def test_worker_ends_if_its_source_cannot_be_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with worker_in_thread("memory://broken", sample_tasks, source=Broken()) as worker:
        assert "jobs      from afar" in worker.banner
    assert worker.ended.is_set()
    assert "cannot be closed" in caplog.text


def test_banner_of_worker_without_topics_describes_its_sources() -> None:
    told = describing.banner("w", "memory://w", "x", (), ["a.B"], "2 threads", Broken.description)
    assert "  jobs      from afar\n  tasks     a.B\n" in told
    assert "memory" not in told and "topics" not in told
    both = describing.banner("w", "u://", "x", ("t",), ["a.B"], "2 threads", Broken.description)
    assert "  topics    t\n  jobs      from afar\n" in both
