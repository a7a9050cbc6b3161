"""When a task fails, everything before it is undone, newest first.

A journey is booked piece by piece.  The last piece cannot be had; the others are cancelled, each
with the number it was booked under.  The failed task is reverted too: it may have done half of its
work.

Prints::

    train booked: T1
    room booked: R1
    opera: asking
    opera: nothing to cancel, because of: sold out
    room cancelled: R1
    train cancelled: T1
    the journey is off (REVERTED)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wbengine import engines, task
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow
from wbengine.types import failure


class Book(task.Task):
    def execute(self, what: str) -> str:
        number = f"{what[0].upper()}1"
        print(f"{what} booked: {number}")
        return number

    def revert(self, what: str, result: str) -> None:
        print(f"{what} cancelled: {result}")


class BookOpera(task.Task):
    def execute(self) -> None:
        print("opera: asking")
        raise LookupError("sold out")

    def revert(self, result: Any, flow_failures: Mapping[str, failure.Failure]) -> None:
        # `result` is the Failure of this very task; `flow_failures` has those of all tasks.
        reasons = ", ".join(failed.exception_str for failed in flow_failures.values())
        print(f"opera: nothing to cancel, because of: {reasons}")


def main() -> None:
    flow = linear_flow.Flow("journey").add(
        Book("train", inject={"what": "train"}),
        Book("room", inject={"what": "room"}),
        BookOpera("opera"),
    )
    with _kinds.chosen(__doc__) as options:
        engine = engines.load(flow, **options)
        try:
            engine.run()
        except LookupError:  # what the task raised, wherever it ran
            print(f"the journey is off ({engine.storage.get_flow_state()})")


if __name__ == "__main__":
    main()
