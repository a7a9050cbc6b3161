"""What the fleet does; the module imports no flow, as a worker's tasks need not."""

from __future__ import annotations

import os

from wbengine import task


class Where(task.Task):
    """The process that ran it."""

    def execute(self) -> int:
        return os.getpid()
