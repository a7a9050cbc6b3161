"""Why something does not go on, in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from wbengine import states
from wbengine.runtime.control import PARKED
from wbengine.runtime.waits import WAITS_FOR
from wbengine.types import outline as outlines
from wbengine.views import formatting
from wbengine.views.structure import Structure

__all__ = ["WAITS_FOR", "Blocking", "Situation", "of_atom", "of_flow", "of_limit"]

#: Nothing that comes after these waits for them any more.
SETTLED: Final = frozenset({states.SUCCESS, states.IGNORE})
#: States of atoms that have something to undo, or are doing it.
_TO_UNDO: Final = frozenset({states.SUCCESS, states.FAILURE, states.RUNNING, states.REVERTING})
#: Nobody says of these that they are slow.
_AT_ONCE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Situation:
    """What the flow as a whole is in.

    `owner` is who runs it in words, None: nobody does; `died` says that this one is certainly dead.
    `offered` are the tasks that live workers are known to offer, None: nobody asked them;
    `on_workers`: workers run the tasks, and tell when they begin.
    """

    state: str
    now: float
    owner: str | None
    died: bool
    suspended: str | None = None
    offered: Collection[str] | None = None
    on_workers: bool = True

    @property
    def runs(self) -> bool:
        """Somebody is at it."""
        return self.owner is not None and not self.died

    @property
    def parked(self) -> bool:
        """A conductor goes on with it when what it waits for is there."""
        return self.state == states.SUSPENDED and self.suspended == PARKED


class Blocking:
    """What an atom has to wait for: what is before it and not settled, or after it and not undone.

    `state_of(node)` is that of an atom.  What is found about flows is kept: all of it costs
    O(nodes + edges).
    """

    def __init__(self, structure: Structure, state_of: Callable[[int], str]) -> None:
        self._structure = structure
        self._state_of = state_of
        self._unsettled = self._count(lambda state: state not in SETTLED)
        #: Flow -> what everything in it waits for.  What is around comes before what is in it.
        self._around: dict[int, Sequence[int]] = {-1: ()}
        nodes = structure.outline.nodes
        for number, node in enumerate(nodes):
            if node.kind == outlines.FLOW:
                self._around[number] = self.before(number)
        #: What is said of a flow none of which has begun, if it waits for its limit.
        self.flow_limited: str | None = None
        is_limited = nodes[0].kind == outlines.FLOW and nodes[0].limit is not None
        if is_limited and all(state_of(node) == states.PENDING for node in structure.atoms()):
            self.flow_limited = of_limit(nodes[0])

    def _count(self, counts: Callable[[str], bool]) -> list[int]:
        """Node -> how many atoms in it are so."""
        structure = self._structure
        found = [0] * len(structure)
        nodes, parents = structure.outline.nodes, structure.parents
        for number in range(len(nodes) - 1, -1, -1):
            if nodes[number].kind != outlines.FLOW:
                found[number] = 1 if counts(self._state_of(number)) else 0
            if parents[number] >= 0:
                found[parents[number]] += found[number]
        return found

    def before(self, node: int) -> Sequence[int]:
        """What `node` waits for to be done."""
        if found := [each for each in self._structure.before[node] if self._unsettled[each]]:
            return found
        flow = self._structure.parents[node]
        retry = self._structure.retry[flow] if flow >= 0 else -1
        if retry not in (-1, node) and self._unsettled[retry]:
            return (retry,)
        return self._around[flow]

    @cached_property
    def _to_undo(self) -> Sequence[int]:
        return self._count(lambda state: state in _TO_UNDO)

    def after(self, node: int) -> Sequence[int]:
        """What has to be undone before `node`."""
        for each in (node, *self._structure.flows_around(node)):
            if found := [other for other in self._structure.after[each] if self._to_undo[other]]:
                return found
        return ()

    def limited(self, node: int) -> str | None:
        """What is said of an atom that has to wait for its limit; None: it has none."""
        return of_limit(self._structure.outline.nodes[node])

    def say(self, found: Sequence[int]) -> str:
        """These, in words."""
        node = self._structure.outline.nodes[found[0]]
        name = f"flow {node.name}" if node.kind == outlines.FLOW else node.name
        return name if len(found) == 1 else f"{name} and {len(found) - 1:,} more"


def of_limit(node: outlines.OutlineNode) -> str | None:
    """What is said of something that waits for its limit; None: it has none."""
    if node.limit is None:
        return None
    if node.kind == outlines.FLOW:
        return f"The flow begins as soon as its limit allows it: {node.limit}."
    who = "Its items begin" if node.kind == outlines.MAP else "It begins"
    return f"{who} as soon as its limit allows it: {node.limit}."


def of_atom(
    node: int, record: Any, state: str, task: str | None, blocking: Blocking, at: Situation
) -> str | None:
    """Why an atom does not run, or does not end; None: it does, or has ended."""
    if state in (states.RUNNING, states.REVERTING):
        why = _under_way(record, state, task, at)
        if why is None and (limited := blocking.limited(node)) and _fans_out(record, state, at):
            return limited
        return why
    if state == states.RETRYING:
        return _retrying(record, at)
    if state == states.IGNORE:
        return "A decider said no: it is left out."
    if state in (states.SUCCESS, states.FAILURE):
        return _to_be_undone(node, record, blocking, at)
    if state != states.PENDING:
        return None
    if at.parked and record is not None and (noted := record.noted(WAITS_FOR)):
        return _awaiting(noted, at)
    if at.state in (states.FAILURE, states.REVERTED):
        return "It never began: the flow ended before it."
    if at.state == states.SUCCESS:
        return None
    if blocking.flow_limited is not None:
        return _nobody(at) or blocking.flow_limited
    if found := blocking.before(node):
        return f"It waits for {blocking.say(found)}."
    return _nobody(at) or blocking.limited(node) or "It is ready, and is handed out next."


def _fans_out(record: Any, state: str, at: Situation) -> bool:
    """Whether items of a Map are still to begin."""
    return (
        at.runs
        and state == states.RUNNING
        and record is not None
        and record.items is not None
        and any(item.state == states.PENDING for item in record.items)
    )


def _under_way(record: Any, state: str, task: str | None, at: Situation) -> str | None:
    if record is not None and (noted := record.noted(WAITS_FOR)) and state == states.RUNNING:
        return _awaiting(noted, at)
    if not at.runs:
        done = "ran" if state == states.RUNNING else "was being reverted"
        return f"It {done} when its engine stopped; whoever resumes the flow finds out the rest."
    if record is None or record.started is not None or record.progress is not None:
        return None
    if at.offered is not None and task is not None and task not in at.offered:
        return f"No worker is known that offers {task}."
    if record.submitted is None or not at.on_workers:
        return None
    since = at.now - record.submitted
    if since < _AT_ONCE:
        return None
    ago = f"It was handed out {formatting.seconds(since)} ago"
    if record.worker is not None:
        return f"{ago}; the worker that took it has no slot free for it yet."
    return f"{ago}; no worker has begun it yet."


def _awaiting(noted: Any, at: Situation) -> str:
    """Of a task that waits for a signal."""
    end, when = noted["until"], ""
    if end is not None:
        rest = end - at.now
        left = f"in {formatting.seconds(rest)}" if rest > 0 else "which is over"
        when = f" (until {formatting.clock(end, at.now)}, {left})"
    said = f"It waits for signal {noted['signal']!r}{when}"
    return f"{said}." if at.runs or at.parked else f"{said}; nobody runs the flow."


def _retrying(record: Any, at: Situation) -> str:
    due = record.meta.get("retry_at") if record is not None and record.has_meta else None
    if not isinstance(due, int | float):
        return (
            "What it retries is being reverted, to be tried again."
            if at.runs
            else (_nobody(at) or "It tries again.")
        )
    when = f"Next try at {formatting.clock(due, at.now)}"
    rest = due - at.now
    if not (at.runs or at.parked):
        return f"{when}, as soon as somebody runs the flow."
    return f"{when}, in {formatting.seconds(rest)}." if rest > 0 else f"{when}: it is due."


def _to_be_undone(node: int, record: Any, blocking: Blocking, at: Situation) -> str | None:
    if record is None or record.intention not in (states.REVERT, states.RETRY):
        return None
    if at.state in states.FLOW_ENDED:
        return None
    if found := blocking.after(node):
        return f"It is to be reverted, after {blocking.say(found)}."
    return _nobody(at) or "It is to be reverted next."


def _nobody(at: Situation, flow: str = "the flow") -> str | None:
    """Why nothing of the flow goes on, which is called `flow`."""
    if at.state in states.FLOW_ENDED or at.parked:
        return None
    if at.state == states.SUSPENDED:
        why = f" ({at.suspended})" if at.suspended else ""
        return f"{flow[0].upper()}{flow[1:]} is suspended{why}."
    if at.died:
        return f"Nobody runs {flow}: its owner, {at.owner}, died."
    if at.owner is None:
        if at.state == states.PENDING:
            return f"Nobody has run {flow} yet."
        return f"Nobody runs {flow}: its owner is gone."
    if at.state == states.SUSPENDING:
        return f"{flow[0].upper()}{flow[1:]} is being suspended: nothing new is begun."
    return None


def of_flow(
    at: Situation,
    busy: Sequence[Any],
    resting: Sequence[tuple[str, str]],
    limited: Sequence[tuple[str, str]] = (),
) -> str | None:
    """Why a flow does not go on; None: it does, or has ended.

    `busy` are the views of atoms that are under way, `resting` names of retries that wait and what
    is said of them, `limited` the same of tasks that wait for their limits.
    """
    if at.state in states.FLOW_ENDED:
        return None
    nobody = _nobody(at, "it")
    if at.state == states.SUSPENDING:
        many = formatting.count(len(busy), "task")
        return (
            f"It is being suspended: {many} under way {'is' if len(busy) == 1 else 'are'} ending."
        )
    if nobody is not None:
        return nobody
    stuck = [each for each in busy if each.waiting]
    if busy and len(stuck) == len(busy):
        first = min(stuck, key=lambda each: each.submitted or at.now)
        if len(stuck) == 1:
            return f"{first.name}: {first.waiting}"
        return f"{formatting.count(len(stuck), 'task')} under way; {first.name}: {first.waiting}"
    for kind, waits in (("", limited), ("Retry ", resting)):
        if not busy and waits:
            name, said = waits[0]
            more = f" ({len(waits) - 1:,} more wait)" if len(waits) > 1 else ""
            return f"{kind}{name}: {said}{more}"
    return None
