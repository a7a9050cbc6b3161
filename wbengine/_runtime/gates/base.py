"""The interface between the run loop and gates.

A gate delays ready work for one reason: a start time, a signal, a missing permit. Work passes the
gates of a run in two stages:

1. Before it begins: tasks are nodes of the plan, their records are unchanged. A Map begins at once;
   its items pass the second stage only, and so do the steps of workflows.
2. After it began (RUNNING is written) and before an executor receives it: tasks, items of Maps and
   steps are calls.

For the scheduler, tasks that wait at a gate are in flight; waiting retry controllers are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, MutableMapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from wbengine._calls import invocation as calls
from wbengine._runtime import control, inbox
from wbengine._tasks.limit_attributes import Quota
from wbengine.persistence._pauses import TaskPause

__all__ = [
    "MAX_WAITING_ITEMS", "NOTHING", "TASK", "Gate", "Selection", "Work", "part_of",
    "remove_selected",
]  # fmt: skip

#: `part_of` a task of the plan.
TASK: Final = -1

#: Maximum number of items of a Map that wait at one gate. Others are not created yet.
MAX_WAITING_ITEMS: Final = 1024

#: `(node, call)`: whether this work is selected. The call is None for work that has not begun.
Selection = Callable[[int, "calls.Invocation | None"], bool]


def part_of(call: calls.Invocation) -> int:
    """Return a number that identifies a call among those of its node.

    This is the index of the item of a Map, `TASK` for a task, or a lower number for the step of a
    workflow.
    """
    return call.index if call.step is None else TASK - 1 - call.step.position


class Work(NamedTuple):
    """Work that a gate returns: nodes that have not begun, begun calls, and retry controllers."""

    nodes: Sequence[int] = ()
    calls: Sequence[calls.Invocation] = ()
    retries: Sequence[int] = ()


NOTHING = Work()


class Gate:
    """Delays ready work until a condition is met. Only the thread of the run uses it.

    Gates read the time from a clock that they receive, and set their deadlines in the `Timers` of
    the run. The default methods delay nothing.
    """

    #: True: waiting work has not started, and returns to the scheduler if its scope is reverted.
    #: The chain calls `admit_flow`, `admit_nodes`, `on_ended`, `is_full` and `may_delay_items` only
    #: of these gates. False: if its scope is reverted, a waiting call of a task with
    #: `cancel_on_revert` ends as `Cancelled`, and others continue to wait.
    controls_admission: ClassVar[bool] = False

    #: Whether work has to pass the gate. The chain reads it again after `on_event` and
    #: `admit_calls`.
    is_active: bool = True

    #: Number of signals that waiting tasks have discarded during this run.
    discards: int = 0

    @property
    def delays_flow(self) -> bool:
        """Whether the flow itself waits: nothing may begin, except reversions."""
        return False

    def admit_flow(self) -> bool:
        """Return whether the flow itself may begin now.

        :raises Exception: if user code that decides about it raises it.
        """
        return True

    def admit_nodes(self, nodes: Sequence[int]) -> Sequence[int]:
        """Return the nodes that may begin now. The others wait."""
        return nodes

    def admit_retries(self, nodes: Sequence[int]) -> Sequence[int]:
        """Return the retry controllers that may run their flows again now. The others wait."""
        return nodes

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        """Return the calls that may start now. The others wait, or have ended."""
        return tasks

    def release(self, due: Iterable[Hashable]) -> Work:
        """Return the waiting work that may continue. Released calls pass all gates again.

        :param due: keys of the gate's deadlines that have passed.
        """
        return NOTHING

    def on_event(self, event: inbox.Event) -> bool:
        """React to received signals, granted permits or changed pauses.

        :returns: whether work that has not started has to pass the gates again.
        """
        return False

    def on_ended(self, node: int, part: int, spent: float | None) -> None:
        """React to the end, or to the undone begin, of a call (see `part_of`).

        :param spent: the units of its limit that the task has reported, or None.
        """

    def withdraw(self, selects: Selection) -> Work:
        """Remove and return the selected waiting work."""
        return NOTHING

    def is_full(self, node: int) -> bool:
        """Whether `MAX_WAITING_ITEMS` items of a Map wait, so that no more should be created."""
        return False

    def may_delay_items(self, node: int) -> bool:
        """Whether items of this Map may have to wait before they start."""
        return False

    def paused_counts(self) -> Counter[str]:
        """Return the number of waiting tasks and items whose type is paused, by type.

        May be called from any thread.
        """
        return Counter()

    @property
    def parkable(self) -> int | None:
        """Number of waiting tasks that permit to park the flow, because they wait again later.

        None: this gate does not permit to park the flow.
        """
        return 0

    @property
    def waiting_calls(self) -> Collection[calls.Invocation] | None:
        """Calls that wait for signals, times or child flows. None: the gate waits for none."""
        return None

    @property
    def is_awaiting_signal(self) -> bool:
        """Whether a task waits for a signal now. May be read from any thread."""
        return False

    @property
    def delaying_pauses(self) -> tuple[TaskPause, ...]:
        """The pauses for which tasks wait now."""
        return ()

    @property
    def delaying_limit(self) -> tuple[str, float] | None:
        """Name of the limit for which the flow, or all of its ready tasks wait, and their units."""
        return None

    @property
    def flow_limit(self) -> tuple[str, Quota] | None:
        """Name and quota of the limit for which the flow itself has a permit."""
        return None

    @property
    def received_signals(self) -> int | None:
        """Number of signals received so far. None: the gate does not count them."""
        return None

    @property
    def received_ends(self) -> int:
        """Number of these signals that report ends of child flows."""
        return 0

    @property
    def end_delay(self) -> float:
        """Seconds for which the end of a child flow may wait until it ends the parking."""
        return 0.0

    def close(self, parked: control.Parked | None = None) -> None:
        """Release the resources at the end of the run. Idempotent.

        :param parked: what the flow waits for; None: it is not parked.
        """


def remove_selected(
    waiting: MutableMapping[calls.Invocation, Any], selects: Selection
) -> list[calls.Invocation]:
    """Remove the selected calls from the calls that wait at a gate, and return them."""
    selected = [call for call in waiting if selects(call.node, call)]
    for call in selected:
        del waiting[call]
    return selected
