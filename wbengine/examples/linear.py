"""How arguments find their way: by name, from the store and from task to task.

A garden is measured, and fences are priced.  `rebind` lets one task class work on different names,
`inject` gives one task a constant of its own, and a parameter with a default may stay without a
value.

Prints::

    {'area': 600, 'length': 30, 'meadow': 7200, 'perimeter': 100, 'price': 1250.0, 'width': 20}
"""

from __future__ import annotations

from wbengine import engines, task
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow


class Measure(task.Task):
    """Returns two values; a tuple of names in `default_provides` says which is which."""

    default_provides = ("area", "perimeter")

    def execute(self, length: int, width: int) -> tuple[int, int]:
        return length * width, 2 * (length + width)


class Multiply(task.Task):
    def execute(self, value: int, by: int) -> int:
        return value * by


class Price(task.Task):
    default_provides = "price"

    def execute(self, perimeter: int, per_metre: float = 12.5) -> float:
        return perimeter * per_metre


def main() -> None:
    flow = linear_flow.Flow("garden").add(
        Measure(),
        Multiply("flowers", provides="meadow", rebind={"value": "area"}, inject={"by": 12}),
        Price(),
    )
    with _kinds.chosen(__doc__) as options:
        values = engines.run(flow, store={"length": 30, "width": 20}, **options)
    print(dict(sorted(values.items())))


if __name__ == "__main__":
    main()
