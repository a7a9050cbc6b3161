"""Functions that exist already become tasks without a class.

A birdhouse is built from plain functions: `FunctorTask` wraps one (with another to undo it),
`MapFunctorTask` applies one to several values, `ReduceFunctorTask` folds them.  `@task.task` is the
short way for a function of your own.

Prints::

    planks sawn: [30, 30, 20]
    80 cm of wood
    the paint is off again
    no birdhouse: the hammer is gone
"""

from __future__ import annotations

import operator

from wbengine import engines, task
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow


def saw(plank: int) -> int:
    return plank - plank % 10


def paint(colour: str) -> str:
    return colour


def unpaint() -> None:
    print("the paint is off again")


@task.task
def nail() -> None:
    raise RuntimeError("the hammer is gone")


def main() -> None:
    planks = ["floor", "wall", "roof"]
    store = {"floor": 31, "wall": 34, "roof": 27, "colour": "green"}
    sawing = linear_flow.Flow("wood").add(
        task.MapFunctorTask(saw, requires=planks, provides=[f"sawn {name}" for name in planks]),
        task.ReduceFunctorTask(
            operator.add, requires=[f"sawn {name}" for name in planks], provides="wood"
        ),
    )
    building = linear_flow.Flow("house").add(task.FunctorTask(paint, revert=unpaint), nail())
    with _kinds.chosen(__doc__, _kinds.LOCAL) as options:
        values = engines.run(sawing, store=store, **options)
        print("planks sawn:", [values[f"sawn {name}"] for name in planks])
        print(values["wood"], "cm of wood")
        try:
            engines.run(building, store=store, **options)
        except RuntimeError as error:
            print("no birdhouse:", error)


if __name__ == "__main__":
    main()
