"""Tasks with and without `cancel_on_revert`. Each records what it does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support import cancelled_tasks as tasks
from tests.support.sample_tasks import append
from wbengine import exceptions


class Early(tasks.Cancellable):
    cancel_on_revert = True


class EarlyWaits(tasks.Waits):
    cancel_on_revert = True


class EarlyItem(tasks.Item):
    cancel_on_revert = True


class SucceedingItem(EarlyItem):
    """Succeeds when it is cancelled."""

    def execute(self, path: str, item: int) -> str:  # type: ignore[override]
        try:
            return super().execute(path, 2)
        except exceptions.Cancelled:
            return "so what"


class FailingItem(EarlyItem):
    """The first item fails once the second one runs; the second one ends when it is cancelled."""

    def execute(self, path: str, item: int) -> str:  # type: ignore[override]
        if item == 0:
            _wait_for(path, f"+{self.name.partition('[')[0]}[1] ")
            raise RuntimeError("item 0 failed")
        return super().execute(path, 2)


class Fails(tasks.Quick):
    """Fails once the tasks of `after` have begun. If there is a `flag`, it fails only the first
    time.
    """

    def execute(  # type: ignore[override]
        self, path: str, after: list[str], flag: str | None = None
    ) -> str:
        for name in after:
            _wait_for(path, f"+{name} ")
        append(path, f"+{self.name} x")
        if flag is not None:
            if Path(flag).exists():
                return self.name
            Path(flag).touch()
        raise RuntimeError(f"{self.name} failed")

    def revert(self, path: str, result: Any, flow_failures: Any) -> None:
        """Do nothing: a failed execution has no effect to undo."""


class FailsOnCancel(Early):
    """Raises an error of its own when it is cancelled."""

    def execute(self, path: str) -> str:
        try:
            return super().execute(path)
        except exceptions.Cancelled:
            raise KeyError("sulking") from None


def _wait_for(path: str, begin: str) -> None:
    end = time.monotonic() + tasks.LONG
    while begin not in Path(path).read_text():
        assert time.monotonic() < end, f"{begin!r} never came"
        time.sleep(0.005)
