"""Workers for engines that are killed; some workers are killed, too."""

from __future__ import annotations

import json
import re
import signal
import threading
from pathlib import Path
from typing import Any

from tests.crashing import children, tasks
from tests.seams import ledgers, transports
from wbengine.engines.worker_based import worker

TOPIC = "crash"


def start(
    url: str,
    log: Path,
    hits: Path | None = None,
    kill: children.Kill | None = None,
    *,
    offered: Any = tasks,
    topic: str = TOPIC,
) -> int:
    """Start a worker in a child process. At SIGTERM it writes the counts of its crash points to
    `hits`.

    :param offered: module of its tasks.
    """

    def work() -> None:
        counting = children.Hits(kill)
        if hits is not None:
            counting.install()
        started = worker.Worker("default", topic, [offered], url=url, threads_count=4)

        def stop(number: int, frame: object) -> None:
            threading.Thread(target=started.stop, daemon=True).start()

        signal.signal(signal.SIGTERM, stop)
        started.run(display_banner=False)
        if hits is not None:
            hits.write_text(json.dumps(counting.counts), encoding="utf-8")

    return children.fork(work, log, patience=3600)


def left_in(broker: Path, ended: bool = True) -> list[str]:
    """Return objects that must not remain after all flows ended: messages, claims, rows,
    heartbeats.
    """
    return [*transports.Folder(broker).left(ended), *ledgers.left(broker, ended)]


def reply_queues(broker: Path) -> list[str]:
    """Return the reply queues of executors. Without a running engine there are none."""
    queues = transports.Folder(broker).queues
    return [f"queue {name}" for name in queues if not name.startswith(f"{TOPIC}.") and _IDS(name)]


#: Pattern of executor ids, which differ from worker names.
_IDS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").search
