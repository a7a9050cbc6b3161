"""A retry controller reverts a flow and runs it again, each time with another value.

A letter has to cross the sea. `retry.ForEach` provides one way after the other as `way`. When a
member of its flow fails, only that flow is reverted and tried with the next way.

Prints::

    letter written
    stamped for the balloon
    the stamp for the balloon is void: no wind
    stamped for the steamer
    the stamp for the steamer is void: on strike
    stamped for the train
    arrived by train, after 2 ways that did not work
"""

from __future__ import annotations

from collections.abc import Mapping

from examples import kinds
from wbengine import engines, retry, task
from wbengine.patterns import linear_flow
from wbengine.types import failure

TROUBLES = {"balloon": "no wind", "steamer": "on strike"}


class Write(task.Task):
    def execute(self) -> None:
        print("letter written")


class Stamp(task.Task):
    def execute(self, way: str) -> None:
        print(f"stamped for the {way}")

    def revert(self, way: str, flow_failures: Mapping[str, failure.Failure]) -> None:
        (reason,) = flow_failures.values()
        print(f"the stamp for the {way} is void: {reason.exception_str}")


class Send(task.Task):
    default_provides = "arrived_by"

    def execute(self, way: str) -> str:
        if way in TROUBLES:
            raise RuntimeError(TROUBLES[way])
        return way


def main() -> None:
    ways = retry.ForEach(["balloon", "steamer", "train"], name="ways", provides="way")
    flow = linear_flow.Flow("letter").add(
        Write(),
        linear_flow.Flow("posting", retry=ways).add(Stamp(), Send()),
    )
    with kinds.chosen(__doc__) as options:
        engine = engines.load(flow, **options)
        engine.run()
    history = engine.storage.get_retry_history("ways")
    failed = sum(bool(failures) for _, failures in history)
    way = engine.storage.fetch("arrived_by")
    print(f"arrived by {way}, after {failed} ways that did not work")


if __name__ == "__main__":
    main()
