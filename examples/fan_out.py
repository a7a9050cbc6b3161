"""`task.Map`: one task for each item of a list whose length is known only at run time.

The sheep of a farm are counted field by field. The list of fields is the result of a task. `Map` is
one member of the flow, and runs its inner task once for each item, at most two at a time. Results
keep the order of the items. With `on_item_failure="collect"`, a failure takes the place of a
result.

Prints::

    hill: 3
    meadow: 12
    marsh: too wet to count
    orchard: 5
    20 sheep
"""

from __future__ import annotations

from typing import Any

from examples import kinds
from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.types import failure


class Survey(task.Task):
    default_provides = "fields"

    def execute(self, farm: dict[str, int]) -> list[str]:
        return list(farm)


class Count(task.Task):
    def execute(self, farm: dict[str, int], field: str) -> int:
        if field == "marsh":
            raise RuntimeError("too wet to count")
        return farm[field]


class Add(task.Task):
    default_provides = "total"

    def execute(self, counts: list[Any]) -> int:
        return sum(count for count in counts if not isinstance(count, failure.Failure))


def main() -> None:
    counting = task.Map(
        Count(),
        over="fields",
        item="field",
        provides="counts",
        name="count all",
        max_in_flight=2,
        on_item_failure="collect",
    )
    flow = linear_flow.Flow("farm").add(Survey(), counting, Add())
    farm = {"hill": 3, "meadow": 12, "marsh": 9, "orchard": 5}
    with kinds.chosen(__doc__) as options:
        values = engines.run(flow, inputs={"farm": farm}, **options)
    for field, count in zip(values["fields"], values["counts"], strict=True):
        text = count.exception_str if isinstance(count, failure.Failure) else count
        print(f"{field}: {text}")
    print(values["total"], "sheep")


if __name__ == "__main__":
    main()
