"""A task that waits until it may end."""

from __future__ import annotations

import threading

from wbengine import task

OPEN = threading.Event()


class Gated(task.Task):
    default_provides = "gated"

    def execute(self) -> str:
        OPEN.wait(60)
        return "done"
