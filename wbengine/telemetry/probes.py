"""Whether a worker, or a conductor, lives and takes requests: for supervisors."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import time
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

from wbengine.telemetry.serving import Answer, Route

__all__ = ["Probed", "Pulse", "routes"]

LOG: Final = logging.getLogger(__name__)

#: Seconds in which a living worker gives its lock away.
STUCK: Final = 2.0

#: Seconds between two touches of a file.
PERIOD: Final = 1.0


class Probed(Protocol):
    """What can be asked how it is."""

    @property
    def trouble(self) -> str | None:
        """Why it takes nothing new now; None: it does."""

    def responds(self, seconds: float) -> bool:
        """Whether it shows within so many seconds that it lives."""


def routes(worker: Probed) -> dict[str, Route]:
    """`/livez`: it is able to do anything, also without its broker; when it is not, nothing helps
    but another process.  `/readyz`: it takes requests; it may do so again by itself.
    """

    def live() -> Answer:
        return _told(None if worker.responds(STUCK) else f"it has been stuck for {STUCK:g} s")

    def ready() -> Answer:
        return _told(worker.trouble)

    return {"/livez": live, "/readyz": ready}


def _told(trouble: str | None) -> Answer:
    if trouble is None:
        return Answer(b'{"status": "ok"}\n')
    body = json.dumps({"status": "unavailable", "why": trouble}) + "\n"
    return Answer(body.encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)


class Pulse:
    """Touches a file whenever the broker was heard again, once a second at most.

    A worker that does not hear its broker, or whose loop does not turn, touches it no more.  Called
    in each turn of that loop (see `Worker.tell_turns`); never raises.

    :raises OSError: there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._path = path
        self._heard = -math.inf
        self._due = 0.0
        self._ailing = False

    def __call__(self, heard: float) -> None:
        now = time.monotonic()
        if heard <= self._heard or now < self._due:
            return
        self._heard, self._due = heard, now + PERIOD
        try:
            self._path.touch()
            self._ailing = False
        except OSError as error:
            if not self._ailing:
                LOG.warning("the heartbeat file cannot be touched: %s", error)
            self._ailing = True
