"""Tasks of the fleet. The module imports no flow."""

from __future__ import annotations

import os

from wbengine import task


class Where(task.Task):
    """Returns the id of its process."""

    def execute(self) -> int:
        return os.getpid()
