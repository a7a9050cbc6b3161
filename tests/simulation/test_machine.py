"""Random histories of the simulated world, shrunk by Hypothesis.

`WBENGINE_HISTORIES=N` sets the number of histories of each kind.  `tools/simulate wire` runs many
more schedules, and faster.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.simulation import schedules
from tests.simulation.world import Setting, World
from tests.support.amounts import amount

HISTORIES = amount(15, 150, "WBENGINE_HISTORIES")
STEPS = 30

CHOICES = st.integers(0, 4095)


class Machine(RuleBasedStateMachine):
    """Start a worker and a flow, then apply random steps and faults; finally heal the world."""

    ledger = True

    @initialize(
        broker=st.sampled_from(["amqp", "folder", "kombu"]),
        timeout=st.sampled_from([60.0, 20.0, None]),
        capacity=st.sampled_from([None, 2]),
        worker=CHOICES,
        flow=CHOICES,
    )
    def begin(self, broker: Any, timeout: Any, capacity: Any, worker: int, flow: int) -> None:
        if broker == "folder" and not self.ledger:
            broker = "amqp"
        self.world = World(Setting(broker, self.ledger, timeout, capacity))
        for name, choice in (("worker", worker), ("pass", 1), ("submit", flow)):
            self.world.do(name, choice)

    @rule(name=st.sampled_from(sorted(schedules.CALM)), choice=CHOICES)
    def step(self, name: str, choice: int) -> None:
        self.world.do(name, choice)

    @rule(name=st.sampled_from(sorted(schedules.TROUBLES)), choice=CHOICES)
    def trouble(self, name: str, choice: int) -> None:
        self.world.do(name, choice)

    @rule(often=st.integers(1, 5), choice=CHOICES)
    def some_time(self, often: int, choice: int) -> None:
        for _ in range(often):
            self.world.do("pass", choice)

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is not None:
            world.heal()


class WithoutLedger(Machine):
    ledger = False


@pytest.mark.parametrize("machine", [Machine, WithoutLedger])
def test_random_history_violates_no_invariant(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=HISTORIES, stateful_step_count=STEPS, deadline=None),
    )
