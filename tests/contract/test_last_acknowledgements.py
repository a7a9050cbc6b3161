"""Acknowledgements while a process disconnects, on all brokers of wbengine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import brokers, outgoing
from wbengine.engines.worker_based import dispatcher
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based.proxy import Proxy


class Worker(Proxy):
    """A process that receives one request. `after_flush` is called between two steps of `stop`."""

    def __init__(self, url: str) -> None:
        self.requests: list[Any] = []
        self.has_request = threading.Event()
        handler = dispatcher.Handler(self._on_request, owns_ack=True)
        super().__init__("worker", "x", {"TEST": handler}, url=url)
        self.consumer.consume_shared(["shared"], 1)

    def _on_request(self, data: Any, message: Any) -> None:
        self.requests.append(message)
        self.has_request.set()


def stop(
    worker: Worker, after_flush: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop a proxy, and call a function between its last flush and its disconnection."""
    flush = worker._sender.flush

    def flush_first(timeout: float | None) -> bool:
        is_idle = flush(timeout)
        after_flush()
        return is_idle

    monkeypatch.setattr(worker._sender, "flush", flush_first)
    worker.stop()


@pytest.mark.parametrize("kind", ["memory", "filesystem", "redis", "postgresql"])
def test_acknowledgement_after_the_last_flush_is_not_lost(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(brokers.broker_url(kind, request, tmp_path))
    thread = threading.Thread(target=worker.start, daemon=True)
    thread.start()
    assert worker.wait(60)
    with worker.target.open() as operator:
        worker.send(outgoing.message(env.Envelope("TEST", {"n": 1}, routing_key="shared")))
        assert worker.has_request.wait(60)
        consumer = worker.consumer
        stop(worker, lambda: consumer.ack_answered(consumer.ack_many, worker.requests), monkeypatch)
        thread.join(60)
        assert not thread.is_alive() and operator.size("shared") == 0
