"""The gates of a run, created from the options of an engine and the compiled flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wbengine import states, storage
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._limits.permit_renewer import Member, PermitRenewer
from wbengine._runtime import atom_lifecycle, deadlines, inbox
from wbengine._runtime import plan as plans
from wbengine._runtime.gates import (
    base,
    chain,
    delayed_starts,
    paused_types,
    permits,
    retry_waits,
    signals_and_sleeps,
)
from wbengine.engines import _compilation
from wbengine.persistence._pauses import TaskPause

__all__ = ["make_gates", "make_permit_gate"]


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
    permit_gate: permits.PermitGate | None,
) -> chain.GateChain:
    """Return the gates that the flow needs.

    :param pauses: the pauses in the store; None: there is no store.
    :param received: the signals of the flow; None: no task waits for signals.
    :param permit_gate: None: the flow has no limits.
    """
    end = _end_in(events)
    gates: list[base.Gate] = []
    if compiled.has_start_times or compiled.has_workflows:
        gates.append(
            delayed_starts.StartTimeGate(timers, clock, end, keeps_times=executor.keeps_times)
        )
    if received is not None:
        gates.append(signals_and_sleeps.WaitGate(received, timers, clock, end, lifecycle.record_of))
    if pauses is not None:
        gates.append(
            paused_types.PauseGate(compiled.plan, pauses, timers, clock, _is_running(lifecycle))
        )
    if permit_gate is not None:
        gates.append(permit_gate)
    if compiled.has_retries:
        gates.append(retry_waits.RetryWaitGate(timers, clock, lifecycle.begin_retry))
    return chain.GateChain(gates, timers, clock)


def make_permit_gate(
    compiled: _compilation.Compilation,
    lifecycle: atom_lifecycle.AtomLifecycle,
    events: inbox.Inbox,
    stored: storage.Storage,
    permit_renewer: Callable[[], PermitRenewer],
    member: Member,
    timers: deadlines.Timers,
    clock: clocks.Clock,
    *,
    immediate: bool,
    park_after: float | None,
) -> permits.PermitGate:
    """Return the gate for the limits of a flow.

    :param immediate: tasks run in the thread of the engine, one at a time.
    :param park_after: see `PermitGate`.
    """
    plan = compiled.plan

    def arguments(node: int) -> Mapping[str, Any]:
        item: Any = plan.items[node]
        if plan.kinds[node] == plans.FLOW:
            return stored.inputs()
        return stored.gather(node, item.name, item.rebind, item.optional)

    return permits.PermitGate(
        compiled.limits,
        plan,
        permit_renewer,
        member,
        timers,
        clock,
        arguments=arguments,
        is_running=_is_running(lifecycle),
        fail=lifecycle.fail_before_start,
        end=_end_in(events),
        on_granted=lambda: events.put(inbox.PermitsGranted()),
        max_requests=1 if immediate else None,
        park_after=park_after,
    )


def _is_running(lifecycle: atom_lifecycle.AtomLifecycle) -> Callable[[int], bool]:
    return lambda node: lifecycle.record(node).state == states.RUNNING


def _end_in(events: inbox.Inbox) -> Callable[[calls.Invocation, calls.Outcome], None]:
    return lambda call, outcome: events.put(inbox.Finished(call, outcome))
