"""Check that a task reaches a temporary worker through the broker and that its result returns."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from wbengine import engines, exceptions, task
from wbengine._concurrency import conditions
from wbengine._security import keys
from wbengine.diagnosis.findings import Finding, Place, bad, good, line
from wbengine.engines.worker_based import worker
from wbengine.engines.worker_based._connections import connecting, queue_counts
from wbengine.patterns import linear_flow

__all__ = ["Echo", "check"]


class Echo(task.Task):
    """A task that returns its argument."""

    idempotent = True
    default_provides = "said"

    def execute(self, word: str) -> str:
        return word


def check(place: Place, topic: str) -> Iterator[Finding]:
    """Start a temporary worker and run one task on it. Other workers do not receive the task.

    Messages are signed only with shared keys, because a key of one role cannot sign for both sides.
    """
    try:
        ring = keys.shared(place.keys) or keys.NONE
        serving = worker.Worker(
            topic=topic, tasks=[Echo], concurrency=1, ledger=place.ledger, result_ttl=None,
            drain_timeout=1.0, keys=ring, **place.engine_options,
        )  # fmt: skip
    except (ValueError, ImportError, exceptions.WbengineException) as error:
        yield bad("round trip", line(error), "fix the problems above")
        return
    failed: list[BaseException] = []

    def run() -> None:
        try:
            serving.run(display_banner=False)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="wbengine-doctor", daemon=True)
    thread.start()
    began = time.monotonic()
    try:
        if not serving.wait(place.timeout):
            raise exceptions.TransportFailure("a worker did not connect to the broker in time")
        is_correct = _run_task(place, topic, ring)
    except Exception as error:
        cause = failed[0] if failed else error
        yield bad("round trip", line(cause), "fix the problems above; for details, see the log"
                  " (-v)")  # fmt: skip
        return
    finally:
        serving.stop()
        thread.join(place.timeout)
        if not failed:
            _delete_queues(place, serving)
    if is_correct:
        yield good(
            "round trip", f"a worker executed a task; round trip: {time.monotonic() - began:.2f} s"
        )
    else:
        yield bad("round trip", "the result of the task is wrong", "for details, see the log (-v)")


def _run_task(place: Place, topic: str, ring: keys.Keyring | str) -> bool:
    flow = linear_flow.Flow("doctor").add(Echo("echo"))
    word = f"{time.time()}"
    options: dict[str, Any] = {"ledger": place.ledger, "topics": [topic], "keys": ring}
    engine = engines.load(
        flow, store={"word": word}, engine="worker-based", transition_timeout=place.timeout,
        **options, **place.engine_options,
    )  # fmt: skip
    engine.run(deadline=2 * place.timeout)
    is_correct: bool = engine.storage.fetch("said") == word
    return is_correct


def _delete_queues(place: Place, stopped_worker: worker.Worker) -> None:
    """Delete the queues of the worker, which some brokers keep."""
    with contextlib.suppress(Exception):  # unused queues expire anyway
        connection = connecting.reach(place.target, conditions.Event(), within=2.0)
        with connection:
            queue_counts.remove_unused(connection, stopped_worker.consumed_queues())
