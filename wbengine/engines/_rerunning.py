"""Changes of a flow that does not run, after which it runs again.

The engine of the flow owns it meanwhile, and writes each change at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wbengine import exceptions, states
from wbengine import storage as storage_module
from wbengine._concurrency import clocks
from wbengine._introspection import object_names
from wbengine._runtime import atom_lifecycle, control, retry_decisions, scheduler
from wbengine._runtime import plan as plan_module
from wbengine.engines import _editing, _ownership, _preparation
from wbengine.persistence import _commands, _edits, models

if TYPE_CHECKING:
    from wbengine._runtime.undo_plan import UndoPlan

__all__ = ["Rerun"]

_Lifecycle = atom_lifecycle.AtomLifecycle


class Rerun:
    """Changes after which a flow runs again: new inputs, a retry, a reversion.

    The records of the flow are prepared for the plan, except for `check_edits` and `plan_undo`.

    :param put_pending: puts the flow into PENDING and writes all changes. Its arguments: the
        lifecycle that made them, the reason, and the command that they carry out or None.
    """

    def __init__(
        self,
        flow: Any,
        plan: plan_module.Plan,
        storage: storage_module.Storage,
        clock: clocks.Clock,
        make_lifecycle: Callable[[], _Lifecycle],
        put_pending: Callable[[_Lifecycle, str | None, _commands.FlowCommand | None], object],
    ) -> None:
        self._flow = flow
        self._plan = plan
        self._storage = storage
        self._clock = clock
        self._make_lifecycle = make_lifecycle
        self._put_pending = put_pending

    def edit_fork(self, edits: _edits.Edits, step_results: Mapping[str, Any]) -> None:
        """Replace inputs and results of a new flow that is not stored yet.

        :raises NotFound, InvalidFormat, InvalidState, NotEncodable: as `Engine.edit_fork`.
        """
        plan, storage, lifecycle = self._plan, self._storage, self._make_lifecycle()
        edits = _editing.converted(edits, self._flow)
        for uuid, value in step_results.items():
            record = storage.flow_detail.find(uuid)
            assert record is not None
            record.results = storage.kept(value, "result")
        _editing.check(edits, plan, storage, lifecycle)
        _editing.apply(edits, storage)
        if step_results:
            for node in plan.atoms():
                if plan.kinds[node] == plan_module.TASK:
                    _editing.check_replay(node, plan, storage, lifecycle, edits.inputs)

    def check_edits(self, edits: _edits.Edits, used_inputs: Mapping[str, Collection[str]]) -> None:
        """Check by the records whether these inputs and results can be replaced.

        :param used_inputs: names of the inputs that each atom uses.
        :raises NotFound, InvalidFormat, InvalidState: as `Engine.check_edits`.
        """
        _editing.converted(edits, self._flow)
        edits.check(self._storage.flow_detail, used_inputs)

    def carry_out(self, command: _commands.FlowCommand) -> str | None:
        """Carry out a command, and delete it. Return why it is refused, or None.

        :raises InvalidState: if the command was withdrawn; nothing was written.
        """
        storage, flow = self._storage, self._storage.flow_detail
        state = storage.get_flow_state()
        nodes: Iterable[int] | None = None
        edits: _edits.Edits | None = None
        undo: UndoPlan | None = None
        refusal: str | None = None
        try:
            if command.what == _commands.REVERT:
                undo = self._checked_undo(command)
            else:
                self.check(command.what, state)
            if command.what == _commands.RETRY:
                nodes = _preparation.nodes_to_retry(self._plan, storage)
                if command.edits is not None:
                    edits = self._checked(_editing.read(command.edits, storage.flow_uuid))
        except (
            *(exceptions.InvalidState, exceptions.InvalidFormat, exceptions.NotFound),
            *(exceptions.NotEncodable, exceptions.NotTrusted),
        ) as error:
            refusal = str(error)
        owner = _commands.parent_in(command.by)
        if command.what == _commands.REVERT and owner and flow.parent not in (owner, None):
            flow.meta[models.REVERTING_PARENT] = owner
        if refusal is None and command.what == _commands.REVERT:
            self._begin_revert(command, undo, settled=command)
        elif refusal is None:
            self._restart(nodes, command.describe(), command, edits)
        else:
            is_explained = command.edits is not None or command.what == _commands.REVERT
            if is_explained and state in states.FLOW_ENDED:
                # This write also reports the end of the flow again to a parent that waits.
                storage.explain_flow_state(self._clock.time(), command.refused_text(refusal))
            storage.writer.settle(command)
        return refusal

    def restart(self, reason: str | None) -> None:
        """Reset all atoms."""
        self._restart(self._plan.atoms(), reason)

    def retry_failed(self, reason: str | None, edits: _edits.Edits | None) -> None:
        """Reset the failed atoms, and replace inputs and results.

        :raises NotFound, InvalidFormat, InvalidState: as `Engine.reset`.
        """
        nodes = _preparation.failed_nodes(self._storage)
        self._restart(nodes, reason, edits=self._checked(edits) if edits else None)

    def retry(self) -> None:
        """Reset the failed atoms, or all atoms of a reverted flow.

        :raises InvalidState: if they cannot run again.
        """
        self._restart(_preparation.nodes_to_retry(self._plan, self._storage))

    def revert(self, command: _commands.FlowCommand) -> None:
        """Let the next run revert the flow.

        :raises StateRefused: if the flow is not reverted.
        """
        self._begin_revert(command, self._checked_undo(command))

    def check(self, what: str, state: str) -> None:
        """Check whether a state and the forks of the flow allow a command.

        :raises StateRefused: if they do not.
        """
        flow = self._storage.flow_uuid
        refusal = _commands.refusal(what, flow, state)
        if what == _commands.REVERT and state not in (*states.FLOW_ENDED, states.PENDING):
            refusal = f"Flow {flow} is in {state}: cancel it instead"
        refusal = refusal or self._fork_refusal(what)
        if refusal is not None:
            raise _ownership.StateRefused(refusal)

    def plan_undo(self, at: float | None) -> UndoPlan:
        """Return what a reversion undoes. `at`: time of the request; None: any time."""
        # This module loads flows, so it imports the module of the engine.
        plan_of = object_names.load("wbengine.engines._undoing:plan_of")
        undo: UndoPlan = plan_of(self._plan, self._storage.flow_detail, self._storage.backend, at)
        return undo

    def _checked(self, edits: _edits.Edits) -> _edits.Edits:
        """Return converted edits that may be applied."""
        edits = _editing.converted(edits, self._flow)
        _editing.check(edits, self._plan, self._storage, self._make_lifecycle())
        return edits

    def _fork_refusal(self, what: str) -> str | None:
        """Return why the flow must not run because of its forks, or None."""
        backend, flow = self._storage.backend, self._storage.flow_detail
        if backend is None or (not flow.forks and flow.forked_from is None):
            return None
        # Loaded here, because few flows have forks.
        from wbengine.persistence import _living_forks

        with contextlib.closing(backend.get_connection()) as connection:
            return _living_forks.refusal(connection, flow, what)

    def _checked_undo(self, command: _commands.FlowCommand) -> UndoPlan | None:
        """Return the plan of a complete flow that is to be reverted; None: it is not complete.

        :raises StateRefused: if the flow is not reverted.
        """
        state = self._storage.get_flow_state()
        self.check(_commands.REVERT, state)
        if state != states.SUCCESS:
            return None
        if next(iter(self._plan.atoms()), None) is None:
            refusal: str | None = "there is nothing to revert: it has no tasks"
        else:
            # The time of the parent counts for its children.
            is_of_parent = _commands.parent_in(command.by) is not None
            undo = self.plan_undo(None if is_of_parent else command.at)
            refusal = undo.refusal(command.partial)
        if refusal is not None:
            raise _ownership.StateRefused(f"Flow {self._storage.flow_uuid} is complete: {refusal}")
        return undo

    def _begin_revert(
        self,
        command: _commands.FlowCommand,
        undo: UndoPlan | None,
        settled: _commands.FlowCommand | None = None,
    ) -> None:
        """Store that an ended flow is to be reverted as a whole, and put it into PENDING.

        :param undo: the plan of a complete flow; None: the flow is not complete.
        """
        lifecycle, plan, flow = self._make_lifecycle(), self._plan, self._storage.flow_detail
        lifecycle.retry_reverts()
        schedule = scheduler.Scheduler(
            plan,
            _preparation.saved_states(self._storage),
            _preparation.nodes_not_owned(self._storage),
        )
        schedule.start()
        has_failed = bool(schedule.unresolved())
        intentions = schedule.apply(retry_decisions.everything(plan))
        if command.partial:
            flow.meta[models.PARTIAL] = True
            if undo is None and flow.is_undone:
                flow.add_remaining(self.plan_undo(None).deleted)
        if intentions and not has_failed:
            given_up = control.GivenUp(models.CANCELLED, command.explanation)
            if undo is not None:
                given_up = control.GivenUp(models.UNDONE, command.explanation, undo.remaining)
            lifecycle.give_up(intentions, given_up, self._clock.time())
        else:  # The flow is reverted because of its failures.
            lifecycle.set_intentions(intentions)
        self._restart(None, command.describe(), settled)

    def _restart(
        self,
        nodes: Iterable[int] | None,
        reason: str | None = None,
        settled: _commands.FlowCommand | None = None,
        edits: _edits.Edits | None = None,
    ) -> None:
        """Put the flow into PENDING in one write, which may also settle a command.

        :param nodes: atoms to reset, in a flow that is not given up any more; None: nothing else
            changes.
        :param edits: checked inputs and results to replace.
        :raises InvalidState: if the flow has another command; nothing was written.
        """
        lifecycle = self._make_lifecycle()
        if edits:
            _editing.apply(edits, self._storage)
            reason = f"{edits.describe()}; {reason}" if reason else edits.describe()
        if nodes is not None:
            lifecycle.reset(nodes)
            for key in (*models.GIVEN_UP_KEYS, models.PARTIAL):
                self._storage.flow_meta.pop(key, None)
        self._put_pending(lifecycle, reason, settled)
