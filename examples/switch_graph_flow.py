"""Deciders on links choose a branch while the flow runs.

A parcel is weighed. Each link from `Weigh` has a decider, which receives the results of the linked
tasks and decides whether its target runs. If a target does not run, everything after it is ignored
too.

Prints::

    2 kg: courier, then a signature (freight: IGNORE, loading ramp: IGNORE)
    200 kg: freight, then a loading ramp (courier: IGNORE, signature: IGNORE)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from examples import kinds
from wbengine import engines, task
from wbengine.patterns import graph_flow


class Weigh(task.Task):
    default_provides = "weight"

    def execute(self, parcel: int) -> int:
        return parcel


class Step(task.Task):
    def execute(self) -> None:
        pass


def is_light(history: Mapping[str, Any]) -> bool:
    return bool(history["weigh"] < 30)


def is_heavy(history: Mapping[str, Any]) -> bool:
    return not is_light(history)


def shipping() -> graph_flow.Flow:
    weigh = Weigh("weigh")
    courier, signature = Step("courier"), Step("signature")
    freight, ramp = Step("freight"), Step("loading ramp")
    flow = graph_flow.Flow("shipping").add(weigh, courier, signature, freight, ramp)
    flow.link(weigh, courier, decider=is_light).link(courier, signature)
    flow.link(weigh, freight, decider=is_heavy).link(freight, ramp)
    return flow


def main() -> None:
    with kinds.chosen(__doc__) as options:
        for weight in (2, 200):
            engine = engines.load(shipping(), inputs={"parcel": weight}, **options)
            engine.run()
            names = ["courier", "signature", "freight", "loading ramp"]
            states = {name: engine.storage.get_atom_state(name) for name in names}
            path = ", then a ".join(name for name in names if states[name] == "SUCCESS")
            rest = [f"{name}: {states[name]}" for name in names if states[name] != "SUCCESS"]
            print(f"{weight} kg: {path} ({', '.join(rest)})")


if __name__ == "__main__":
    main()
