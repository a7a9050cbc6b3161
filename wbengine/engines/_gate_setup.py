"""The gates of a run, created from the options of an engine and the compiled flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wbengine import states
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._introspection import object_names
from wbengine._runtime import atom_lifecycle, deadlines, inbox
from wbengine._runtime.gates import (
    base,
    chain,
    paused_types,
    retry_waits,
    signals_and_sleeps,
)
from wbengine.engines import _compilation
from wbengine.persistence._pauses import TaskPause

if TYPE_CHECKING:
    from wbengine._runtime.gates.child_flows import Children

__all__ = ["end_in", "is_running", "make_gates"]


def make_gates(
    compiled: _compilation.Compilation,
    lifecycle: atom_lifecycle.AtomLifecycle,
    events: inbox.Inbox,
    clock: clocks.Clock,
    executor: calls.TaskExecutor,
    timers: deadlines.Timers,
    *,
    pauses: tuple[TaskPause, ...] | None,
    received: signals_and_sleeps.ReceivedSignals | None,
    make_children: Callable[[], Children] | None,
    permit_gate: base.Gate | None,
) -> chain.GateChain:
    """Return the gates that the flow needs.

    :param pauses: the pauses in the store; None: there is no store.
    :param received: the signals of the flow; None: no task waits for signals.
    :param make_children: returns the child flows of the flow; None: it has no workflows.
    :param permit_gate: None: the flow has no limits.
    """
    end = end_in(events)
    gates: list[base.Gate] = []
    if compiled.has_start_times or compiled.has_workflows:
        # Loaded here, because most flows have no start times.
        gate = object_names.load("wbengine._runtime.gates.delayed_starts:StartTimeGate")
        gates.append(
            gate(timers, clock, end, lifecycle.record_of, keeps_times=executor.keeps_times)
        )
    if received is not None and make_children is not None:
        # Loaded here, because most flows have no workflows.
        gate = object_names.load("wbengine._runtime.gates.child_flows:ChildGate")
        gates.append(gate(make_children, received, clock, end, lifecycle.record_of))
    if received is not None:
        gates.append(
            signals_and_sleeps.WaitGate(
                received, timers, clock, end, lifecycle.record_of, lifecycle.mark
            )
        )
    if pauses is not None:
        gates.append(
            paused_types.PauseGate(compiled.plan, pauses, timers, clock, is_running(lifecycle))
        )
    if permit_gate is not None:
        gates.append(permit_gate)
    if compiled.has_retries:
        gates.append(retry_waits.RetryWaitGate(timers, clock, lifecycle.begin_retry))
    return chain.GateChain(gates, timers, clock)


def is_running(lifecycle: atom_lifecycle.AtomLifecycle) -> Callable[[int], bool]:
    """Return a function that tells whether a task is running."""
    return lambda node: lifecycle.record(node).state == states.RUNNING


def end_in(events: inbox.Inbox) -> Callable[[calls.Invocation, calls.Outcome], None]:
    """Return a function that ends a call that no executor has received."""
    return lambda call, outcome: events.put(inbox.Finished(call, outcome))
