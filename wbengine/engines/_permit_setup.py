"""The gate for the limits of a run. Imported only for flows with limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wbengine import storage
from wbengine._concurrency import clocks
from wbengine._limits import account_stores, manual_renewer, permit_renewer
from wbengine._runtime import atom_lifecycle, deadlines, inbox
from wbengine._runtime import plan as plans
from wbengine._runtime.gates import permits
from wbengine.engines import _compilation, _gate_setup
from wbengine.persistence import base as persistence

__all__ = ["make_permit_gate"]


def make_permit_gate(
    compiled: _compilation.Compilation,
    lifecycle: atom_lifecycle.AtomLifecycle,
    events: inbox.Inbox,
    stored: storage.Storage,
    place: str | persistence.Backend | None,
    epoch: int,
    lease_seconds: float,
    timers: deadlines.Timers,
    clock: clocks.Clock,
    *,
    immediate: bool,
    park_after: float | None,
) -> permits.PermitGate:
    """Return the gate for the limits of a flow.

    :param place: where the limits are stored, as in the option `limits`.
    :param epoch: epoch of the lease, or 0.
    :param immediate: tasks run in the thread of the engine, one at a time.
    :param park_after: see `PermitGate`.
    """
    plan = compiled.plan

    def renewer() -> permit_renewer.PermitRenewer:
        if clock.is_real:
            return permit_renewer.of_process()(place)
        return manual_renewer.of_clock(clock)

    def arguments(node: int) -> Mapping[str, Any]:
        item: Any = plan.items[node]
        if plan.kinds[node] == plans.FLOW:
            return stored.inputs()
        return stored.gather(node, item.name, item.rebind, item.optional)

    return permits.PermitGate(
        compiled.limits,
        plan,
        renewer,
        permit_renewer.Member(
            stored.flow_uuid, epoch, lease_seconds, account_stores.home_of(place, stored.backend)
        ),
        timers,
        clock,
        arguments=arguments,
        is_running=_gate_setup.is_running(lifecycle),
        fail=lifecycle.fail_before_start,
        end=_gate_setup.end_in(events),
        on_granted=lambda: events.put(inbox.PermitsGranted()),
        max_requests=1 if immediate else None,
        park_after=park_after,
        inherited=stored.flow_detail.inherited_limits,
    )
