"""The plan for the reversion of a complete flow, from its records and its code."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from wbengine import states
from wbengine._runtime import plan as plan_module
from wbengine._runtime import undo_plan
from wbengine._runtime.workflow_call import latest_execution
from wbengine._runtime.workflows import step_tasks
from wbengine.persistence import models
from wbengine.persistence._step_notes import StepNote

__all__ = ["plan"]


def plan(code: plan_module.Plan, flow: models.FlowDetail, at: float) -> undo_plan.UndoPlan:
    """Return what a reversion of the complete flow undoes, in the order of the flow.

    :param at: time of the request in Unix seconds.
    """
    atoms: dict[str, models.AtomDetail] = {}
    steps = defaultdict[tuple[str, int], list[tuple[models.AtomDetail, StepNote]]](list)
    for record in flow:
        if record.is_reverted_elsewhere:  # by a fork
            continue
        note = StepNote.of(record)
        if note is None:
            atoms[record.name] = record
        else:
            steps[note.workflow, note.attempt].append((record, note))
    effects: list[tuple[str, undo_plan.Effect]] = []
    for node in code.atoms():
        item: Any = code.items[node]
        atom = atoms.get(code.names[node])
        if code.kinds[node] != plan_module.TASK or atom is None or atom.state != states.SUCCESS:
            continue
        if not item.runs_steps:
            effects.append((atom.name, undo_plan.effect_of_task(item)))
            continue
        for step, note in steps[atom.uuid, latest_execution(atom)]:
            task = step_tasks.find(note.task, item.fn)
            effect = undo_plan.effect_of_step(note, task, step.state)
            if effect is not None:
                effects.append((step.name, effect))
    return undo_plan.plan(effects, undo_plan.expired(flow.undo_until, at))
