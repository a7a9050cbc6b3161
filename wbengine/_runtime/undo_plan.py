"""What a reversion of a complete flow undoes, and what it cannot undo.

Pure: it reads records and classes of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from wbengine import states
from wbengine._calls import invocation as calls
from wbengine._tasks import commands, functors
from wbengine._text import timestamps
from wbengine.persistence import _living_forks, _result_users
from wbengine.persistence._step_notes import StepNote

__all__ = ["Effect", "UndoPlan", "effect_of_step", "effect_of_task", "expired", "plan"]

#: The field of `UndoPlan` that contains a task.
Effect = Literal["revert", "none", "irreversible", "missing", "deleted"]


class UndoPlan(NamedTuple):
    """Names of complete tasks and steps by what their reversion does, in the order of the flow.

    :ivar revert: `revert` is called.
    :ivar none: they have no `revert`, which counts as having no effect.
    :ivar irreversible: tasks with `irreversible`, whose effects remain. Those of child flows follow
        the name of their step and " > ", as in the next two fields.
    :ivar missing: tasks and steps that had a `revert` when they ran, which the present code lacks.
    :ivar deleted: steps whose child flow was deleted, so that its effects remain.
    :ivar expired: Unix seconds until which the flow could be undone (`undo_until`), or None if it
        still can.
    :ivar used_by: flows that have not ended and use results of the flow. They do not notice its
        undo. Forks must end before it, unless they own what they inherited.
    """

    revert: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    irreversible: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    expired: float | None = None
    used_by: tuple[_result_users.User, ...] = ()

    @property
    def remaining(self) -> tuple[str, ...]:
        """The names of tasks and steps whose effects remain."""
        return (*self.irreversible, *self.deleted)

    def refusal(self, is_partial: bool) -> str | None:
        """Return why the flow is not reverted, or None.

        :param is_partial: whether effects of irreversible tasks and deleted child flows may remain.
        """
        for user in self.used_by:
            if user.refuses_undo:
                return _living_forks.refusal_text(user.flow)
        if self.expired is not None:
            return f"it could be undone until {timestamps.text_of(self.expired)} (undo_until)"
        if self.missing:
            return (
                f"the code of this process has no revert of {_listed(self.missing)}, which had one"
                " when it ran; restore its code"
            )
        if self.remaining and not is_partial:
            deleted = f" (child flow deleted: {_listed(self.deleted)})" if self.deleted else ""
            return (
                f"{_listed(self.remaining)} cannot be undone{deleted}; to undo all other tasks, use"
                " --partial or partial=True"
            )
        return None


def plan(effects: Iterable[tuple[str, Effect]], expired_at: float | None) -> UndoPlan:
    """Return the plan for these names with their effects.

    :param expired_at: `expired` of the result.
    """
    names: dict[Effect, list[str]] = {
        "revert": [], "none": [], "irreversible": [], "missing": [], "deleted": [],
    }  # fmt: skip
    for name, effect in effects:
        names[effect].append(name)
    revert, none, irreversible, missing, deleted = map(tuple, names.values())
    return UndoPlan(revert, none, irreversible, missing, deleted, expired_at)


def expired(until: float | None, at: float) -> float | None:
    """Return `until` if an undo at this time is too late, otherwise None. Unix seconds."""
    return until if until is not None and until <= at else None


def effect_of_task(task: Any, had_revert: bool) -> Effect:
    """Return what the reversion of a complete task of a graph does.

    :param task: the task in the present code, or None if this does not contain it.
    :param had_revert: whether it had a `revert` when it ran.
    """
    if task is not None and task.irreversible:
        return "irreversible"
    if task is not None and functors.has_revert(task):
        return "revert"
    return "missing" if had_revert else "none"


def effect_of_step(note: StepNote, task: Any, state: str | None) -> Effect | None:
    """Return what the reversion of a step does; None: it is not reverted.

    :param task: the task in the present code, or None if this does not contain it.
    """
    if state not in (states.SUCCESS, states.REVERT_FAILURE) or note.completed is None:
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
