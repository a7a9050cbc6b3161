"""`run_iter` hands the control back at every state of the run loop, so one thread runs many flows.

Three counters of different length are driven in turns.  Each loop goes through the same states;
`close()`, or `send(True)`, would suspend a flow between two of them.

Prints::

    blue: RESUMING SCHEDULING WAITING ANALYZING SUCCESS
    green: RESUMING SCHEDULING WAITING ANALYZING SCHEDULING WAITING ANALYZING SUCCESS
    both end in SUCCESS
"""

from __future__ import annotations

from wbengine import engines, task
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow


class Tick(task.Task):
    def execute(self) -> None:
        pass


def ticks(name: str, count: int) -> linear_flow.Flow:
    return linear_flow.Flow(name).add(*(Tick(f"{name} {number}") for number in range(count)))


def main() -> None:
    with _kinds.chosen(__doc__, _kinds.LOCAL) as options:
        flows = [ticks("blue", 1), ticks("green", 2)]
        loaded = {flow.name: engines.load(flow, **options) for flow in flows}
        running = {name: engine.run_iter() for name, engine in loaded.items()}
        seen: dict[str, list[str]] = {name: [] for name in running}
        while running:
            for name, states in list(running.items()):
                state = next(states, None)
                if state is None:
                    del running[name]
                else:
                    seen[name].append(state)
    for name, story in seen.items():
        print(f"{name}: {' '.join(story)}")
    (end,) = {engine.storage.get_flow_state() for engine in loaded.values()}
    print("both end in", end)


if __name__ == "__main__":
    main()
