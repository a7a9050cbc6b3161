"""A task that goes through the broker to a worker, and back: with a worker of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from wbengine import engines, exceptions, keys, task
from wbengine.diagnosis.findings import Finding, Place, bad, good, line
from wbengine.engines.worker_based import worker
from wbengine.engines.worker_based.connections import connecting, queue_counts
from wbengine.patterns import linear_flow

__all__ = ["Echo", "look"]


class Echo(task.Task):
    """Says what it is told."""

    idempotent = True
    default_provides = "said"

    def execute(self, word: str) -> str:
        return word


def look(place: Place, topic: str) -> Iterator[Finding]:
    """Run one task, on a worker that is started for it and ends again; no other one takes it.

    Signed with shared keys; those of one role cannot speak for both sides.
    """
    try:
        ring = keys.shared(place.keys) or keys.NONE
        serving = worker.Worker(
            topic=topic, tasks=[Echo], concurrency=1, ledger=place.ledger, result_ttl=None,
            drain_timeout=1.0, keys=ring, **place.engine_options,
        )  # fmt: skip
    except (ValueError, ImportError, exceptions.WbengineException) as error:
        yield bad("round trip", line(error), "mend what is found wrong above")
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
            raise exceptions.TransportFailure("a worker cannot take from the broker in time")
        said = _ask(place, topic, ring)
    except Exception as error:
        told = failed[0] if failed else error
        yield bad("round trip", line(told), "mend what is found wrong above; else see what the log"
                  " says: -v")  # fmt: skip
        return
    finally:
        serving.stop()
        thread.join(place.timeout)
        if not failed:
            _clear(place, serving)
    if said:
        yield good("round trip", f"a task ran on a worker, {time.monotonic() - began:.2f} s in all")
    else:
        yield bad("round trip", "what came back is not what was sent", "see what the log says: -v")


def _ask(place: Place, topic: str, ring: keys.Keyring | str) -> bool:
    flow = linear_flow.Flow("doctor").add(Echo("echo"))
    word = f"{time.time()}"
    options: dict[str, Any] = {"ledger": place.ledger, "topics": [topic], "keys": ring}
    engine = engines.load(
        flow, store={"word": word}, engine="worker-based", transition_timeout=place.timeout,
        **options, **place.engine_options,
    )  # fmt: skip
    engine.run(deadline=2 * place.timeout)
    said: bool = engine.storage.fetch("said") == word
    return said


def _clear(place: Place, gone: worker.Worker) -> None:
    """Not everywhere does an empty queue go with its last worker."""
    with contextlib.suppress(Exception):  # it goes one day
        connection = connecting.reach(place.target, threading.Event(), within=2.0)
        with connection:
            queue_counts.remove_unused(connection, gone.queues.values())
