"""Behind branches: a join rule says when a task runs although a part of what was before is ignored.

An order may have to go through customs, and may have to be insured: two branches, a decider each.
`flow.join(node, rule)` is applied once, when everything before the node has succeeded or was
ignored: `all` (the default) ignores the node if any branch was, `any` runs it if at least one was
taken, `none_failed` runs it in any case.

Prints::

    domestic, cheap: print label
    domestic, dear: insurance, all papers, print label
    abroad, cheap: customs, all papers, print label
    abroad, dear: customs, insurance, all papers, hand over, print label
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wbengine import engines, task
from wbengine.examples import _kinds
from wbengine.patterns import graph_flow

STEPS = ["customs", "insurance", "all papers", "hand over", "print label"]


class Order(task.Task):
    default_provides = {"abroad", "dear"}

    def execute(self, country: str, price: int) -> dict[str, bool]:
        return {"abroad": country != "here", "dear": price > 100}


class Step(task.Task):
    def execute(self) -> None:
        pass


def is_abroad(history: Mapping[str, Any]) -> bool:
    return bool(history["order"]["abroad"])


def is_dear(history: Mapping[str, Any]) -> bool:
    return bool(history["order"]["dear"])


def shipping() -> graph_flow.Flow:
    order = Order("order")
    customs, insurance, papers, personally, label = (Step(name) for name in STEPS)
    flow = graph_flow.Flow("shipping").add(order, customs, insurance, papers, personally, label)
    flow.link(order, customs, decider=is_abroad)
    flow.link(order, insurance, decider=is_dear)
    for branch in (customs, insurance):
        flow.link(branch, papers).link(branch, personally).link(branch, label)
    # `personally` keeps the default: it needs both.
    return flow.join(papers, "any").join(label, "none_failed")


def main() -> None:
    orders = [("domestic", "here", 20), ("domestic", "here", 500)]
    orders += [("abroad", "there", 20), ("abroad", "there", 500)]
    with _kinds.chosen(__doc__) as options:
        for where, country, price in orders:
            engine = engines.load(shipping(), store={"country": country, "price": price}, **options)
            engine.run()
            states = engine.storage.get_atoms_states(STEPS)
            done = [name for name, (state, _) in states.items() if state == "SUCCESS"]
            print(f"{where}, {'dear' if price > 100 else 'cheap'}: {', '.join(done)}")


if __name__ == "__main__":
    main()
