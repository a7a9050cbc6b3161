"""The gates of a run, in the order in which work passes them."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Final

from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._runtime import deadlines, inbox
from wbengine._runtime.control import Parked
from wbengine._runtime.gates import base
from wbengine._tasks.limit_attributes import Quota

__all__ = ["MAX_STORED_WAITS", "GateChain"]

#: Maximum number of waiting tasks that the record of a flow lists.
MAX_STORED_WAITS: Final = 20


class GateChain:
    """The gates and the deadlines of one run.

    :param timers: the deadlines; gates use the key `(gate, key)`.
    """

    def __init__(
        self, gates: Sequence[base.Gate], timers: deadlines.Timers, clock: clocks.Clock
    ) -> None:
        self._gates = tuple(gates)
        self.timers = timers
        self._clock = clock
        self._signal_gates = tuple(gate for gate in gates if gate.waiting_calls is not None)
        #: Whether a task of the flow may wait for signals.
        self.may_await_signals = bool(self._signal_gates)
        # Calls that `changed_waits` returned last. None: an earlier run may have stored some.
        self._stored_waits: list[calls.Invocation] | None = None
        # Discarded signals at that time.
        self._stored_discards = 0
        self._read_active()

    def _read_active(self) -> None:
        #: Active gates whose waiting work has not started (`Gate.controls_admission`).
        self.admission = tuple(
            gate for gate in self._gates if gate.controls_admission and gate.is_active
        )
        #: Whether calls have to pass a gate.
        self.has_call_gates = any(
            gate.is_active and type(gate).admit_calls is not base.Gate.admit_calls
            for gate in self._gates
        )

    @property
    def delays_flow(self) -> bool:
        return any(gate.delays_flow for gate in self.admission)

    def admit_flow(self) -> bool:
        return all(gate.admit_flow() for gate in self.admission)

    def admit_nodes(self, nodes: Sequence[int]) -> Sequence[int]:
        for gate in self.admission:
            nodes = gate.admit_nodes(nodes)
        return nodes

    def admit_retries(self, nodes: Sequence[int]) -> Sequence[int]:
        for gate in self._gates:
            nodes = gate.admit_retries(nodes)
        return nodes

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        for gate in self._gates:
            if tasks:
                was_active = gate.is_active
                tasks = gate.admit_calls(tasks)
                if gate.is_active != was_active:
                    self._read_active()
        return tasks

    def release(self) -> base.Work:
        """Return the work that the gates release now. Released nodes have passed all gates."""
        due: defaultdict[base.Gate, list[Hashable]] = defaultdict(list)
        for gate, key in self.timers.pop(self._clock.monotonic()):
            due[gate].append(key)
        nodes: list[int] = []
        released_calls: list[calls.Invocation] = []
        retries: list[int] = []
        for position, gate in enumerate(self._gates):
            if not (gate.controls_admission or gate in due):
                continue
            work = gate.release(due.get(gate, ()))
            released_nodes = work.nodes
            for later in self._gates[position + 1 :]:
                released_nodes = later.admit_nodes(released_nodes)
            nodes += released_nodes
            released_calls += work.calls
            retries += work.retries
        return base.Work(nodes, released_calls, retries)

    def on_event(self, event: inbox.Event) -> bool:
        """Pass an event to all gates. See `Gate.on_event`."""
        has_closed = [gate.on_event(event) for gate in self._gates]
        self._read_active()
        return any(has_closed)

    def on_ended(self, call: calls.Invocation) -> None:
        part, spent = base.part_of(call), call.spent
        if spent is None:  # Another process sent it.
            spent = getattr(call.events, "spent", None)
        for gate in self.admission:
            gate.on_ended(call.node, part, spent)

    def withdraw_unstarted(self, scope: range) -> base.Work:
        """Remove and return the work in `scope` that waits at a gate and has not started."""
        return self._withdraw(lambda node, call: node in scope, admission=True)

    def withdraw_calls(self, selects: base.Selection | None = None) -> Sequence[calls.Invocation]:
        """Remove and return the selected calls that wait at other gates (None: all)."""
        return self._withdraw(selects or _all, admission=False).calls

    def _withdraw(self, selects: base.Selection, *, admission: bool) -> base.Work:
        nodes: list[int] = []
        withdrawn: list[calls.Invocation] = []
        for gate in self._gates:
            if gate.controls_admission == admission:
                work = gate.withdraw(selects)
                nodes += work.nodes
                withdrawn += work.calls
        return base.Work(nodes, withdrawn)

    def is_full(self, node: int) -> bool:
        return any(gate.is_full(node) for gate in self.admission)

    def may_delay_items(self, node: int) -> bool:
        return any(gate.may_delay_items(node) for gate in self.admission)

    @property
    def may_change_waits(self) -> bool:
        """Whether a call waits for a signal, or waited for one at the latest `changed_waits`."""
        return self._stored_waits != [] or self.is_awaiting_signal()

    def changed_waits(self, in_flight: int) -> list[calls.Invocation] | None:
        """Return the first calls that wait for signals if nothing else is in flight.

        Return None if neither they nor the signals that they discarded have changed since the
        latest call.
        """
        waiting = [gate.waiting_calls or () for gate in self._signal_gates]
        waits: list[calls.Invocation] = []
        if sum(map(len, waiting)) == in_flight:
            waits = list(itertools.islice(itertools.chain(*waiting), MAX_STORED_WAITS))
        discards = sum(gate.discards for gate in self._signal_gates)
        if waits == self._stored_waits and discards == self._stored_discards:
            return None
        self._stored_waits, self._stored_discards = waits, discards
        return waits

    def is_awaiting_signal(self) -> bool:
        """Return whether a task waits for a signal now. May be called from any thread."""
        return any(gate.is_awaiting_signal for gate in self._signal_gates)

    def paused_counts(self) -> Counter[str]:
        """Return the number of tasks whose type is paused, by type.

        May be called from any thread.
        """
        return sum((gate.paused_counts() for gate in self._gates), Counter())

    def parked(self, in_flight: int, min_seconds: float) -> Parked | None:
        """Return the condition that ends the parking of the flow, or None if it may not be parked.

        It may not if something runs or is due within `min_seconds`, or the run has a deadline.
        """
        for gate in self._gates:
            parkable = gate.parkable
            if parkable is None:
                return None
            in_flight -= parkable
        if in_flight or self.timers.deadline < math.inf:
            return None
        seconds = self.timers.wait(self._clock.monotonic())
        if seconds is not None and seconds < min_seconds:
            return None
        # A flow without a permit has not read its signals, and waits for none.
        gates = () if self.delays_flow else self._gates
        received = [gate.received_signals for gate in gates]
        limits = (gate.delaying_limit for gate in self._gates)
        limit, units = next((limit for limit in limits if limit is not None), (None, 1.0))
        if limit is not None and seconds is not None:
            return None  # The job can only wait for one of both.
        return Parked(
            seconds,
            next((count for count in received if count is not None), None),
            tuple(pause for gate in self._gates for pause in gate.delaying_pauses),
            limit,
            units,
            has_begun=not self.delays_flow,
            ends=sum(gate.received_ends for gate in self._gates),
            end_delay=max(gate.end_delay for gate in self._gates),
        )

    @property
    def flow_limit(self) -> tuple[str, Quota] | None:
        """Name and quota of the limit for which the flow itself has a permit."""
        limits = (gate.flow_limit for gate in self._gates)
        return next((limit for limit in limits if limit is not None), None)

    def close(self, parked: Parked | None = None) -> None:
        for gate in self._gates:
            gate.close(parked)


def _all(node: int, call: calls.Invocation | None) -> bool:
    return True
