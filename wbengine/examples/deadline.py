"""A deadline: when time is up, what is unfinished is not started, and what is done is undone.

A thief has a second.  The safe takes as long as it takes: what runs when time is up
finishes, then everything is reverted, and `run` raises `DeadlineExceeded`.

Prints::

    in through the window
    at the safe
    leaves the safe as it was
    out through the window
    DeadlineExceeded, REVERTED
    the bag is still empty: True
"""

from __future__ import annotations

import time

from wbengine import engines, exceptions, task
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow


class Enter(task.Task):
    def execute(self) -> None:
        print("in through the window")

    def revert(self) -> None:
        print("out through the window")


class Crack(task.Task):
    def execute(self) -> None:
        print("at the safe")
        time.sleep(1.2)

    def revert(self) -> None:
        print("leaves the safe as it was")


class Bag(task.Task):
    default_provides = "bag"

    def execute(self) -> str:
        return "jewels"


def main() -> None:
    flow = linear_flow.Flow("burglary").add(Enter(), Crack(), Bag("bag it"))
    kinds = (_kinds.SERIAL, _kinds.THREADS, _kinds.WORKERS)
    with _kinds.chosen(__doc__, kinds) as options:
        engine = engines.load(flow, **options)
        try:
            engine.run(deadline=1)
        except exceptions.DeadlineExceeded as error:
            print(f"{type(error).__name__}, {engine.storage.get_flow_state()}")
        print("the bag is still empty:", "bag" not in engine.storage.fetch_all())


if __name__ == "__main__":
    main()
