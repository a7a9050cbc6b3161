"""Tasks that set tags while they run."""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from pathlib import Path
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow

DUE = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
TAGS = {"phase": "two", "amount": 5, "due": DUE, "paid": True}


class Tagger(task.Task):
    def execute(self) -> None:
        assert self.request is not None
        self.request.tag(phase="one", amount=5)
        self.request.tag(phase="two", due=DUE, paid=True)


class AsyncTagger(task.Task):
    async def execute(self) -> None:
        Tagger.execute(self)  # type: ignore[arg-type]


class Failing(task.Task):
    def execute(self) -> None:
        Tagger.execute(self)  # type: ignore[arg-type]
        raise RuntimeError("no")


class Killed(task.Task):
    """Sets a tag and waits; the first execution kills its process when a file `kill` exists."""

    idempotent = True

    def execute(self, folder: str) -> None:
        assert self.request is not None
        path = Path(folder)
        if (path / "go").exists():
            self.request.tag(again=True)
            return
        self.request.tag(phase="before", amount=1)
        (path / "tagged").touch()
        while not (path / "kill").exists():
            time.sleep(0.01)
        (path / "go").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def flow(name: str) -> Any:
    return linear_flow.Flow(name).add(globals()[name]())
