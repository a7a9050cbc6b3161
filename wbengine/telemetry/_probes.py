"""Liveness and readiness of workers and conductors."""

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

from wbengine.telemetry._serving import Answer, Route

__all__ = ["Probed", "Pulse", "routes"]

LOG: Final = logging.getLogger(__name__)

#: Time within which a live worker releases its lock.
RESPONSE_SECONDS: Final = 2.0

#: Minimum interval between two updates of the file.
TOUCH_SECONDS: Final = 1.0


class Probed(Protocol):
    """A worker or conductor."""

    @property
    def trouble(self) -> str | None:
        """The reason why it accepts no tasks now, or None."""

    def responds(self, seconds: float) -> bool:
        """Return whether it reacts within this time."""


def routes(worker: Probed) -> dict[str, Route]:
    """Return the handlers of `/livez` and `/readyz`.

    `/livez` fails if the process is blocked, so that only a restart helps; it does not depend on
    the broker. `/readyz` fails while it accepts no tasks, which may be temporary.
    """

    def live() -> Answer:
        return _answer(
            None
            if worker.responds(RESPONSE_SECONDS)
            else f"the main loop has been stuck for {RESPONSE_SECONDS:g} s"
        )

    def ready() -> Answer:
        return _answer(worker.trouble)

    return {"/livez": live, "/readyz": ready}


def _answer(trouble: str | None) -> Answer:
    if trouble is None:
        return Answer(b'{"status": "ok"}\n')
    body = json.dumps({"status": "unavailable", "why": trouble}) + "\n"
    return Answer(body.encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)


class Pulse:
    """Touches a file after messages from the broker, at most once per second.

    `Worker.observe_loop` calls it in each iteration of the worker's loop. The file is not touched
    while the broker is silent or the loop is blocked. Errors are logged.

    :raises FileNotFoundError: if the folder does not exist.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._path = path
        self._last_message = -math.inf
        self._due = 0.0
        self._has_failed = False

    def __call__(self, heard: float) -> None:
        now = time.monotonic()
        if heard <= self._last_message or now < self._due:
            return
        self._last_message, self._due = heard, now + TOUCH_SECONDS
        try:
            self._path.touch()
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                LOG.warning("cannot touch the heartbeat file: %s", error)
            self._has_failed = True
