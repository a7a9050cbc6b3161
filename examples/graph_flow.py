"""A graph flow orders its members by their requirements, independently of the order of `add`.

For a pie, the oven heats while the dough is made. `link` orders two tasks that share no name.

Prints::

    oven at 180 degrees
    crust of flour and butter
    filling of 3 apples
    pie with filling of 3 apples in crust of flour and butter, baked at 180
    the table was laid before the pie was served: True
"""

from __future__ import annotations

from examples import kinds
from wbengine import engines, task
from wbengine.patterns import graph_flow


class Heat(task.Task):
    default_provides = "degrees"

    def execute(self) -> int:
        return 180


class Knead(task.Task):
    default_provides = "crust"

    def execute(self, ingredients: list[str]) -> str:
        return f"crust of {' and '.join(ingredients)}"


class Fill(task.Task):
    default_provides = "filling"

    def execute(self, apples: int) -> str:
        return f"filling of {apples} apples"


class Bake(task.Task):
    default_provides = "pie"

    def execute(self, degrees: int, crust: str, filling: str) -> str:
        return f"pie with {filling} in {crust}, baked at {degrees}"


class LayTable(task.Task):
    def execute(self) -> None:
        pass


class Serve(task.Task):
    def execute(self, pie: str) -> None:
        pass


def main() -> None:
    serve, lay = Serve("serve"), LayTable("lay the table")
    flow = graph_flow.Flow("pie").add(serve, Bake(), Fill(), Knead(), lay, Heat())
    flow.link(lay, serve)
    with kinds.chosen(__doc__) as options:
        engine = engines.load(
            flow, inputs={"ingredients": ["flour", "butter"], "apples": 3}, **options
        )
        order: list[str] = []
        engine.atom_notifier.register(
            "SUCCESS", lambda event, details: order.append(details["task_name"])
        )
        engine.run()
    values = engine.storage.fetch_all()
    print(f"oven at {values['degrees']} degrees", values["crust"], values["filling"], sep="\n")
    print(values["pie"])
    laid_first = order.index("lay the table") < order.index("serve")
    print("the table was laid before the pie was served:", laid_first)


if __name__ == "__main__":
    main()
