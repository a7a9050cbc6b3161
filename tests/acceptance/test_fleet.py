"""Fleets of many workers and engines.

The first tests are small versions of `tools/fleet`, which starts 64 workers and 20 engines.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import running
from tests.support import workers
from tests.support.brokers import Brokers, Place
from tests.support.sample_tasks import Echo, Nothing
from wbengine import engines
from wbengine.patterns import unordered_flow

EACH = 500


def _fleet(kind: str, folder: Path, url: Place) -> None:
    plan = running.Plan(kind, workers=5, engines=3, tasks=10, change=2, idle=0.2, alone=0)
    report = running.run(plan, folder, url)
    assert not report.problems, "\n".join(report.problems)


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_fleet_on_redis_has_no_problems(redis_url: Place, tmp_path: Path) -> None:
    _fleet("redis", tmp_path, redis_url)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_fleet_on_rabbitmq_has_no_problems(rabbitmq_url: Place, tmp_path: Path) -> None:
    _fleet("amqp", tmp_path, rabbitmq_url)


@pytest.fixture(params=["redis", "rabbitmq", "filesystem"])
def url(request: pytest.FixtureRequest, broker_servers: Brokers, tmp_path: Path) -> Iterator[str]:
    if request.param == "filesystem":
        yield f"filesystem://{tmp_path}"
        return
    with broker_servers[request.param].place() as place:
        yield place
        assert not place.left()


def _run(url: str, flow: Any, **options: Any) -> dict[str, Any]:
    loaded = engines.load(flow, engine="worker-based", url=url, **options)
    loaded.run()
    values: dict[str, Any] = loaded.storage.fetch_all()
    return values


def test_worker_receives_only_tasks_it_offers(url: str) -> None:
    """Two workers with different tasks share a topic."""
    flow = unordered_flow.Flow("f")
    for number in range(EACH):
        flow.add(
            Nothing(name=f"n{number}", provides=f"n{number}"),
            Echo(name=f"e{number}", provides=f"e{number}", inject={"value": number}),
        )
    with (
        workers.worker_in_thread(url, Nothing) as one,
        workers.worker_in_thread(url, Echo) as other,
    ):
        values = _run(url, flow)
        # A refused or resent task would be counted, too.
        assert one.counts == other.counts == {"SUCCESS": EACH}
    assert values == {
        **{f"n{number}": None for number in range(EACH)},
        **{f"e{number}": number for number in range(EACH)},
    }


@pytest.mark.parametrize("topics", [["video.*", "video.hd"], ["video.hd", "video.*"]])
def test_task_runs_once_if_pattern_and_topic_match_same_worker(url: str, topics: list[str]) -> None:
    flow = unordered_flow.Flow("f")
    flow.add(*(Nothing(name=f"n{number}", provides=f"n{number}") for number in range(EACH)))
    with contextlib.ExitStack() as stack:
        hired = {
            name: stack.enter_context(workers.worker_in_thread(url, Nothing, topic=topic))
            for name, topic in {
                "hd": "video.hd",
                "sd": "video.sd",
                "both": ["video.hd", "video.sd"],
                "audio": "audio",
            }.items()
        }
        _run(url, flow, topics=topics)
        counts = {name: Counter(worker.counts) for name, worker in hired.items()}
        assert sum(counts.values(), Counter()) == {"SUCCESS": EACH}
        assert not counts["audio"]
        assert counts["hd"] + counts["both"]
