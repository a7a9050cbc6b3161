"""Two tasks, one after the other.

Prints::

    Hello, Ada.
    Goodbye, Ada.
"""

from __future__ import annotations

from examples import kinds
from wbengine import engines, task
from wbengine.patterns import linear_flow


class Hello(task.Task):
    def execute(self, name: str) -> None:
        print(f"Hello, {name}.")


class Goodbye(task.Task):
    def execute(self, name: str) -> None:
        print(f"Goodbye, {name}.")


def main() -> None:
    flow = linear_flow.Flow("visit").add(Hello(), Goodbye())
    with kinds.chosen(__doc__) as options:
        engines.run(flow, inputs={"name": "Ada"}, **options)


if __name__ == "__main__":
    main()
