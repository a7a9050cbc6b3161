"""A retry that waits, and that knows what is worth another attempt.

A radio calls a ship.  `Backoff` says how long to wait before the next attempt: 0.02 s, 0.04 s, ...
While one flow waits, the other one goes on: a wait is a date in the engine's diary, not a sleep.
`retry_on` names the failures that may pass; any other one ends the attempts at once.

Prints::

    north: fog, fog, heard in attempt 3
    south: out of fuel, no further attempt
    the waits were as long as they had to be: True
"""

from __future__ import annotations

import time
from typing import Any

from wbengine import engines, retry, task
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow

BACKOFF = retry.Backoff(delay=0.02, multiplier=2, max_delay=1)


class Call(task.Task):
    def execute(self, ship: str, attempt: int) -> str:
        if ship == "south":
            raise RuntimeError("out of fuel")
        if attempt < 3:
            raise TimeoutError("fog")
        return f"heard in attempt {attempt}"


def calling(ship: str) -> linear_flow.Flow:
    patience = retry.Times(5, name="patience", provides="attempt", backoff=BACKOFF,
                           retry_on=TimeoutError)  # fmt: skip
    return linear_flow.Flow(ship, retry=patience).add(Call("call", inject={"ship": ship}))


def told(engine: Any) -> str:
    history = engine.storage.get_retry_history("patience")
    return ", ".join(failure.exception_str for _, failure in history.outcomes_iter())


def main() -> None:
    with _kinds.chosen(__doc__) as options:
        north = engines.load(calling("north"), **options)
        began = time.monotonic()
        north.run()
        waited = time.monotonic() - began
        print(f"north: {told(north)}, {north.storage.get('call')}")
        south = engines.load(calling("south"), **options)
        try:
            south.run()
        except RuntimeError:
            failure = south.storage.get_failures()["call"]
            print(f"south: {failure.exception_str}, no further attempt")
    shortest = BACKOFF.seconds(1) + BACKOFF.seconds(2)
    print("the waits were as long as they had to be:", waited >= shortest)


if __name__ == "__main__":
    main()
