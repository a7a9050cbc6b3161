"""A module that takes long to import in child processes."""

from __future__ import annotations

import multiprocessing
import time

from wbengine.task import task

if multiprocessing.parent_process() is not None:
    time.sleep(2.5)


@task
def nap() -> str:
    time.sleep(0.05)
    return "slept"
