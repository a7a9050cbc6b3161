"""A flow that prints a secret and fails: `tests.dashboard.printing:flow`.

Files in the current folder control it: the task creates `begun` and waits for `go`; with `chatty`
it prints the secret many times in one line; without `mended` it fails.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.workers import until
from wbengine import task
from wbengine.patterns import linear_flow


class Prints(task.Task):
    def execute(self, api_key: str) -> None:
        print("the key is", api_key)
        Path("begun").touch()
        until(lambda: Path("go").exists())
        if Path("chatty").exists():
            print(api_key * 10_000)
        if not Path("mended").exists():
            raise ValueError("out of paper")


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("prints").add(Prints("print"))
