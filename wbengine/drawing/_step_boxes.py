"""Boxes for the steps of workflows. Their positions follow those of the outline."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from wbengine.types import _outline as outlines
from wbengine.views import _formatting
from wbengine.views._atoms import AtomView, AttemptView, FailureView, StepsView, StepView
from wbengine.views._structure import WORKFLOW, NodeView

__all__ = ["with_steps"]

#: Maximum number of boxes for the steps of a workflow: the latest ones.
_MAX_BOXES: Final = 40


def with_steps(root: NodeView, first: int) -> tuple[NodeView, Sequence[tuple[int, int]]]:
    """Return a copy of a tree in which workflows contain their steps, and the arrows between these.

    A tree without steps is returned unchanged.

    :param first: the position of the first box.
    """
    arrows: list[tuple[int, int]] = []
    copies: dict[int, NodeView] = {}
    nodes = list(root.walk())
    if all(node.atom is None or node.atom.steps is None for node in nodes):
        return root, arrows
    # Children follow their parents.
    for node in reversed(nodes):
        if node.atom is None or node.atom.steps is None:
            children = [copies[child.node] for child in node.children]
            copies[node.node] = dataclasses.replace(node, children=children)
            continue
        steps = node.atom.steps
        boxes = _boxes(node.atom, steps, first)
        first += len(boxes)
        arrows += _arrows(boxes)
        copies[node.node] = dataclasses.replace(
            node,
            kind=WORKFLOW,
            counts=steps.shown_counts,
            atom_counts=steps.shown_counts,
            children=[box for box, _ in boxes],
        )
    return copies[root.node], arrows


def _boxes(
    workflow: AtomView, steps: StepsView, first: int
) -> list[tuple[NodeView, StepView | None]]:
    """Return the boxes with their steps; None for a box that represents omitted steps."""
    boxes: list[tuple[NodeView, StepView | None]] = []
    latest = steps.shown[-_MAX_BOXES:]
    omitted = latest[0].position if len(latest) < len(steps.shown) else latest[0].omitted
    for step in latest:
        omitted = omitted or step.omitted
        if omitted:
            name = f"… {_formatting.count(omitted, 'more step')}"
            box = NodeView(first + len(boxes), name, outlines.TASK, "", {}, {})
            boxes.append((box, None))
        boxes.append((_box(workflow, step, first + len(boxes)), step))
        omitted = 0
    return boxes


def _box(workflow: AtomView, step: StepView, number: int) -> NodeView:
    failure = None
    if step.error is not None:
        kind, _, message = step.error.partition(": ")
        failure = FailureView(kind, message, "")
    is_reverted = step.reversion_runtime is not None
    attempt = AttemptView(
        step.executions, "execute", step.worker, step.started, step.ended, step.submitted
    )
    atom = AtomView(
        workflow.node,
        step.uuid,
        step.name,
        outlines.TASK,
        (*workflow.path, workflow.name),
        None,
        step.shown_state,
        action="revert" if is_reverted else "execute",
        worker=step.worker,
        submitted=step.submitted,
        started=step.started,
        ended=step.ended,
        attempts=() if is_reverted else (attempt,),
        executions=step.executions,
        reversions=int(is_reverted),
        failure=failure,
        waiting=step.waiting,
    )
    repeated = f" x {step.repeated:,}" if step.repeated > 1 else ""
    name = f"{step.position} {step.name}{repeated}"
    counts = {step.shown_state: 1}
    return NodeView(number, name, outlines.TASK, step.shown_state, counts, counts, atom)


def _arrows(boxes: Sequence[tuple[NodeView, StepView | None]]) -> list[tuple[int, int]]:
    """Return arrows from each group of parallel steps to the next one.

    A step belongs to the group before it if it was called before any step of the group completed.
    """
    arrows: list[tuple[int, int]] = []
    previous: list[int] = []
    group: list[int] = []
    first_completion = -math.inf
    for box, step in boxes:
        called = None if step is None else step.called
        if called is None or called >= first_completion:
            previous, group, first_completion = group, [], math.inf
        arrows += [(before, box.node) for before in previous]
        group.append(box.node)
        completed = math.inf if step is None or step.completed is None else step.completed
        first_completion = min(first_completion, -math.inf if called is None else completed)
    return arrows
