"""Many tasks of one class share the work, one task puts their results together.

The letters of a poem are counted line by line, on a worker, and then added up.  (How many lines
there are is known before the flow is made; `fan_out` shows what to do when it is not.)

Prints::

    h: 15
    e: 14
    n: 13
"""

from __future__ import annotations

from collections import Counter

from wbengine import engines, task
from wbengine.examples import _kinds
from wbengine.patterns import graph_flow

LINES = [
    "When the night wind hums in the chimney",
    "and the kettle has nothing to say,",
    "then the mice hold a ball in the pantry",
    "and have danced all the crumbs away.",
]


class CountLetters(task.Task):
    def execute(self, line: str) -> dict[str, int]:
        return dict(Counter(letter for letter in line.lower() if letter.isalpha()))


class AddUp(task.Task):
    default_provides = "total"

    def execute(self, **counts: dict[str, int]) -> dict[str, int]:
        total: Counter[str] = Counter()
        for count in counts.values():
            total.update(count)
        return dict(total)


def main() -> None:
    names = [f"letters of line {number}" for number in range(len(LINES))]
    flow = graph_flow.Flow("count").add(AddUp(requires=names))
    for name, line in zip(names, LINES, strict=True):
        flow.add(CountLetters(f"count {name}", provides=name, inject={"line": line}))
    with _kinds.chosen(__doc__, _kinds.REMOTE_FIRST) as options:
        total = Counter(engines.run(flow, **options)["total"])
    for letter, count in sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))[:3]:
        print(f"{letter}: {count}")


if __name__ == "__main__":
    main()
