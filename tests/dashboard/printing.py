"""A flow that prints what it should not, and fails: `tests.dashboard.printing:flow`.

Files in the current folder say what happens: it makes `begun` and waits for `go`, with `chatty` it
prints a long line that has nothing but its key, and it fails unless there is `mended`.
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
