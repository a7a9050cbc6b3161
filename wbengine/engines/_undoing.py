"""The plan for the reversion of a complete flow, from its records and its code."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from wbengine import exceptions, states
from wbengine._runtime import compiler, undo_plan
from wbengine._runtime import plan as plan_module
from wbengine._runtime.workflow_call import latest_execution
from wbengine._runtime.workflows import step_tasks
from wbengine._tasks import commands
from wbengine.engines import _loading
from wbengine.engines._child_memory import flow_of
from wbengine.persistence import base, models
from wbengine.persistence._step_notes import StepNote

__all__ = ["plan_of"]

#: Returns the plan of a child flow; None: it was deleted.
_PlanOfChild = Callable[[str], undo_plan.UndoPlan | None]


def _plan(
    code: plan_module.Plan,
    flow: models.FlowDetail,
    had_revert: Collection[str],
    expired: float | None,
    plan_of_child: _PlanOfChild,
) -> undo_plan.UndoPlan:
    """Return what a reversion of the complete flow undoes, in the order of the flow.

    :param had_revert: names of tasks that had a `revert` when they ran (`Outline.reverting`).
    :param expired: as in the result.
    """
    atoms: dict[str, models.AtomDetail] = {}
    steps = defaultdict[tuple[str, int], list[tuple[models.AtomDetail, StepNote]]](list)
    for record in flow:
        if record.has_other_owner:  # by a fork
            continue
        note = StepNote.of(record)
        if note is None:
            atoms[record.name] = record
        else:
            steps[note.workflow, note.attempt].append((record, note))
    effects: list[tuple[str, undo_plan.Effect]] = []
    for node in code.atoms():
        item: Any = code.items[node]
        atom = atoms.pop(code.names[node], None)
        if code.kinds[node] != plan_module.TASK or atom is None or atom.state != states.SUCCESS:
            continue
        if not item.runs_steps:
            effect = undo_plan.effect_of_task(item, atom.name in had_revert)
            effects.append((atom.name, effect))
            continue
        recorded = steps[atom.uuid, latest_execution(atom)]
        effects += _effects_of_steps(recorded, item.fn, plan_of_child)
    for name, atom in atoms.items():  # The present code does not contain them.
        if name in had_revert and atom.state == states.SUCCESS:
            effects.append((name, undo_plan.effect_of_task(None, had_revert=True)))
    return undo_plan.plan(effects, expired)


def _effects_of_steps(
    steps: Iterable[tuple[models.AtomDetail, StepNote]],
    function: Callable[..., Any],
    plan_of_child: _PlanOfChild,
) -> Iterator[tuple[str, undo_plan.Effect]]:
    for step, note in steps:
        effect = undo_plan.effect_of_step(note, step_tasks.find(note.task, function), step.state)
        if effect is None:
            continue
        if effect != "revert" or note.task != commands.CHILD_FLOW:
            yield step.name, effect
            continue
        child = plan_of_child(step.meta[models.CHILD])
        yield step.name, effect if child is not None else "deleted"
        if child is not None:
            of_child: dict[undo_plan.Effect, tuple[str, ...]] = {
                "irreversible": child.irreversible,
                "missing": child.missing,
                "deleted": child.deleted,
            }
            for effect, names in of_child.items():
                yield from ((f"{step.name} > {name}", effect) for name in names)


def plan_of(
    code: plan_module.Plan,
    flow: models.FlowDetail,
    backend: base.Backend | None,
    at: float | None,
) -> undo_plan.UndoPlan:
    """Return the plan of a complete flow; that of its children is read from the store.

    :param at: time of the request in Unix seconds; None: the flow can be undone at any time.
    """

    def plan_of_child(uuid: str) -> undo_plan.UndoPlan | None:
        if backend is None:  # The children are in the memory of this process.
            return undo_plan.UndoPlan()
        try:
            with contextlib.closing(backend.get_connection()) as connection:
                child = _loading.read_flow_detail(connection, uuid)
        except exceptions.NotFound:
            return None
        if child.state != states.SUCCESS:  # It was reverted already, or its reversion continues.
            return undo_plan.UndoPlan(irreversible=child.remaining)
        try:
            compiled = compiler.compile(flow_of(child, backend))
        except Exception as error:  # The code of the user makes the flow.
            text = f"flow {uuid} ({type(error).__name__}: {exceptions.exception_message(error)})"
            return undo_plan.UndoPlan(missing=(text,))
        return plan_of(compiled, child, backend, None)

    had_revert: Collection[str] = ()
    if backend is not None:
        with contextlib.closing(backend.get_connection()) as connection:
            outline = connection.get_outline(flow.uuid)
        had_revert = () if outline is None else set(outline.reverting)
    expired = None if at is None else undo_plan.expired(flow.undo_until, at)
    return _plan(code, flow, had_revert, expired, plan_of_child)
