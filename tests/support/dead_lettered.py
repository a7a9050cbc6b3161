"""Dead letters, as engines store them."""

from __future__ import annotations

from pathlib import Path

from wbengine import transports
from wbengine.engines.worker_based._connections import dead_letters
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.fleet import _ledgers


def put(
    url: str,
    home: Path,
    number: int,
    queue: str = "t.gone",
    cls: str = "Touch",
    exchange: str = "default",
    name: str | None = None,
) -> None:
    """Dead-letter a request as an engine does after the loss of the workers that received it."""
    target = transports.resolve(url)
    with _ledgers.open_ledger(None, target) as ledger:
        assert ledger is not None
        headers = {hd.WBE_VERSION: "1", hd.WBE_EPOCH: 3, hd.WBE_LEDGER: ledger.digest}
    headers |= {hd.WBE_DEAD: "lost with 2 workers", hd.WBE_QUEUE: queue}
    body = {
        "action": "execute",
        "arguments": {"path": str(home / f"ran-{number}")},
        "task_cls": f"tests.support.worker_tasks.{cls}",
        "task_name": name or f"t{number}",
        "task_version": [1, 0],
    }
    letter = env.Envelope("REQUEST", body, "", f"id-{number}", "engine", headers)
    with dead_letters.DeadLetters(target, exchange, 5.0) as letters:
        letters.put(letter)
