"""What a reversion of a complete flow undoes, and what it cannot undo.

Pure: it reads records and classes of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from wbengine import states
from wbengine._calls import invocation as calls
from wbengine._tasks import commands
from wbengine._text import timestamps
from wbengine.persistence._step_notes import StepNote

__all__ = ["UndoPlan", "effect_of_step", "effect_of_task", "expired", "plan"]

#: The field of `UndoPlan` that contains a task.
Effect = Literal["revert", "none", "irreversible", "missing"]


class UndoPlan(NamedTuple):
    """Names of complete tasks and steps by what their reversion does, in the order of the flow.

    :ivar revert: `revert` is called.
    :ivar none: they have no `revert`, which counts as having no effect.
    :ivar irreversible: tasks with `irreversible`, whose effects remain.
    :ivar missing: steps that had a `revert` when they ran, which the present code lacks.
    :ivar expired: Unix seconds until which the flow could be undone (`undo_until`), or None if it
        still can.
    """

    revert: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    irreversible: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    expired: float | None = None

    def refusal(self, is_partial: bool) -> str | None:
        """Return why the flow is not reverted, or None.

        :param is_partial: whether effects of irreversible tasks may remain.
        """
        if self.expired is not None:
            return f"it could be undone until {timestamps.text_of(self.expired)} (undo_until)"
        if self.missing:
            return (
                f"the code of this process has no revert of {_listed(self.missing)}, which had one"
                " when it ran; restore its code"
            )
        if self.irreversible and not is_partial:
            return (
                f"{_listed(self.irreversible)} cannot be undone; to undo all other tasks, use"
                " --partial or partial=True"
            )
        return None


def plan(effects: Iterable[tuple[str, Effect]], expired_at: float | None) -> UndoPlan:
    """Return the plan for these names with their effects.

    :param expired_at: `expired` of the result.
    """
    names: dict[Effect, list[str]] = {"revert": [], "none": [], "irreversible": [], "missing": []}
    for name, effect in effects:
        names[effect].append(name)
    revert, none, irreversible, missing = map(tuple, names.values())
    return UndoPlan(revert, none, irreversible, missing, expired_at)


def expired(until: float | None, at: float) -> float | None:
    """Return `until` if an undo at this time is too late, otherwise None. Unix seconds."""
    return until if until is not None and until <= at else None


def effect_of_task(task: Any) -> Effect:
    """Return what the reversion of a complete task of a graph does."""
    if task.irreversible:
        return "irreversible"
    return "none" if calls.reverts_nothing(type(getattr(task, "inner", task))) else "revert"


def effect_of_step(note: StepNote, task: Any, state: str | None) -> Effect | None:
    """Return what the reversion of a step does; None: it is not reverted.

    :param task: the task in the present code, or None if this does not contain it.
    """
    if state != states.SUCCESS or note.completed is None:
        return None
    if task is not None and task.irreversible:
        return "irreversible"
    if note.arguments is None:
        return "none"
    if note.task == commands.CHILD_FLOW:  # The child flow is reverted.
        return "revert"
    is_missing = task is None or calls.reverts_nothing(type(task))
    return "missing" if is_missing else "revert"


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return f"{shown} and {len(names) - 3:,} more" if len(names) > 3 else shown
