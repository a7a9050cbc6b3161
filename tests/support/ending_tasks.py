"""Tasks that end early where they are undone, and others; each writes down what it does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support import cancelled_tasks as tasks
from tests.support.sample_tasks import append
from wbengine import exceptions


class Early(tasks.Heeds):
    cancel_on_revert = True


class EarlyWaits(tasks.Waits):
    cancel_on_revert = True


class EarlyItem(tasks.Item):
    cancel_on_revert = True


class ShruggingItem(EarlyItem):
    """Succeeds when it is told to end."""

    def execute(self, path: str, item: int) -> str:  # type: ignore[override]
        try:
            return super().execute(path, 2)
        except exceptions.Cancelled:
            return "so what"


class FailingItem(EarlyItem):
    """Fails once the second item runs too; that one ends when it is told to."""

    def execute(self, path: str, item: int) -> str:  # type: ignore[override]
        if item == 0:
            _wait_for(path, f"+{self.name.partition('[')[0]}[1] ")
            raise RuntimeError("item 0 failed")
        return super().execute(path, 2)


class Fails(tasks.Quick):
    """Fails once those of `after` have begun; the first time only, if there is a `flag`."""

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
        """What failed did nothing."""


class Sulks(Early):
    """Fails for a reason of its own when it is told to end."""

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
