"""Forks: new flows that inherit the results of another flow up to a task or step.

The functions of this module select the results that a fork inherits, and copy them. They read no
store and no clock.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import exceptions, states
from wbengine._introspection import object_names
from wbengine._security import keys
from wbengine.persistence import _macs, _step_notes, models
from wbengine.persistence._step_notes import StepNote, failed_steps, seed_of
from wbengine.types import _outline, _tags
from wbengine.types._outline import Outline

__all__ = [
    "FAILED",
    "Start",
    "Steps",
    "copy_of",
    "inherited_atoms",
    "spellings",
    "start_of",
    "steps_by_workflow",
]

#: Name of the start that is the first failed task or step.
FAILED: Final = "failed"

_INHERITABLE: Final = (states.SUCCESS, states.IGNORE)
_UNDONE: Final = (states.REVERTING, states.REVERTED, states.REVERT_FAILURE)
_REVERT_SCOPE: Final = "revert-scope"


class Start(NamedTuple):
    """The point from which a fork runs again.

    :ivar task: name of the first task that runs again.
    :ivar position: position of the step of this workflow; None: the task runs from its beginning.
    :ivar text: the start for users: the name of the task or step.
    """

    task: str
    position: int | None
    text: str


class Step(NamedTuple):
    record: models.TaskDetail
    note: StepNote

    @property
    def name(self) -> str:
        return self.note.short_name(self.record.name)


class Steps(NamedTuple):
    """The steps of the latest execution of a workflow, by position."""

    workflow: models.AtomDetail
    attempt: int
    steps: Sequence[Step]

    @property
    def is_reverted(self) -> bool:
        """Whether the whole workflow was reverted, or is being reverted."""
        return self.workflow.attempt != self.attempt or self.workflow.state in _UNDONE

    def end_of_history(self, position: int) -> int:
        """Return the number of steps that a fork from this position can inherit.

        The history ends before the first reverted step. It contains steps that the workflow itself
        reverted if the reversion of their scope is a step before this position.
        """
        scopes = [step.note.position for step in self.steps if _is_complete_scope(step)]
        for step in self.steps:
            if step.note.position >= position:
                break
            if step.record.state in _UNDONE and (
                self.is_reverted
                or not any(step.note.position < scope < position for scope in scopes)
            ):
                return step.note.position
        return min(position, len(self.steps))


def _is_complete_scope(step: Step) -> bool:
    return step.note.task == _REVERT_SCOPE and step.note.completed is not None


def steps_by_workflow(flow: models.FlowDetail) -> dict[str, Steps]:
    """Return the steps of workflows that have some, by name of the workflow. O(steps)."""
    by_attempt: defaultdict[tuple[str, int], list[Step]] = defaultdict(list)
    for record in flow:
        note = StepNote.of(record) if record.is_step else None
        if note is not None and isinstance(record, models.TaskDetail):
            by_attempt[note.workflow, note.attempt].append(Step(record, note))
    found = {}
    for record in flow:
        content = record.meta_value(models.WORKFLOW)
        if not isinstance(content, Mapping):
            continue
        attempt = content.get("attempt", record.attempt)
        steps = by_attempt.get((record.uuid, attempt), [])
        steps.sort(key=lambda step: step.note.position)
        if steps and len(steps) == steps[-1].note.position + 1:
            found[record.name] = Steps(record, attempt, steps)
    return found


def start_of(
    text: str, flow: models.FlowDetail, outline: Outline | None, workflows: Mapping[str, Steps]
) -> Start:
    """Return the start for a text of a user.

    :param text: `failed`, or the name of a task, or the name or position of a step, or both
        ('7-charge'), also after the name of its workflow ('order/7'). UUIDs of records are also
        accepted.
    :raises NotFound: if there is no such task or step, or nothing failed.
    :raises MultipleChoices: if several steps have this name.
    """
    tasks = _names(flow, outline)
    named = flow.find(text)
    if named is not None and named.name in tasks:
        text = named.name
    if text in tasks:
        return Start(text, None, text)
    if text == FAILED:
        return _failed(flow, tasks, workflows)
    workflow, _, within = text.rpartition("/")
    among = {workflow: workflows[workflow]} if workflow in workflows else workflows
    matching = [
        (name, step)
        for name, steps in among.items()
        for step in steps.steps
        if (within if among is not workflows else text) in spellings(step)
    ]
    if len(matching) == 1:
        ((name, step),) = matching
        return Start(name, step.note.position, step.name)
    if not matching:
        known = [*tasks, *(step.name for steps in workflows.values() for step in steps.steps)]
        raise exceptions.NotFound(
            f"Flow {flow.uuid} has no task or step {text!r}{object_names.hint(text, known)}"
        )
    choices = [
        f"{f'{name}/' if len(among) > 1 else ''}{step.note.position}-{step.name}"
        for name, step in matching
    ]
    raise exceptions.MultipleChoices(
        f"Flow {flow.uuid} has {len(matching)} steps {text!r}: name one of"
        f" {', '.join(choices[:10])}"
    )


def spellings(step: Step) -> tuple[str, ...]:
    """Return the texts that name a step within its flow."""
    position = str(step.note.position)
    return step.name, position, f"{position}-{step.name}", step.record.name, step.record.uuid


def _names(flow: models.FlowDetail, outline: Outline | None) -> dict[str, None]:
    """Return the names of the tasks, in the order of the outline."""
    nodes = () if outline is None else outline.nodes
    names = [node.name for node in nodes if node.kind in (_outline.TASK, _outline.MAP)]
    recorded = [
        record.name
        for record in flow
        if isinstance(record, models.TaskDetail)
        and not record.is_step
        and record.name != models.INJECTOR
    ]
    return dict.fromkeys([*names, *recorded])


def _failed(flow: models.FlowDetail, tasks: Iterable[str], workflows: Mapping[str, Steps]) -> Start:
    """Return the first failed task, in the order of the flow, or its failed step."""
    records = {record.name: record for record in flow if not record.is_step}
    by_workflow = failed_steps((record for record in flow if record.is_step), flow)
    for name in tasks:
        record = records.get(name)
        if record is None or record.failure is None:
            continue
        if name not in workflows:
            return Start(name, None, name)
        failed_step = by_workflow.get(record.uuid)
        for step in workflows[name].steps:
            if step.record is failed_step:
                return Start(name, step.note.position, step.name)
        # The function itself raised the exception: it continues after its steps.
        return Start(name, len(workflows[name].steps), name)
    raise exceptions.NotFound(f"Flow {flow.uuid} is in {flow.state} and has no failed task or step")


def inherited_atoms(flow: models.FlowDetail, outline: Outline, start: str) -> set[str]:
    """Return the names of the atoms that a fork from a task inherits. O(V+E).

    The fork runs this task again, all atoms without a result, and all atoms that depend on one of
    them. Inside the flow of a retry controller, either all atoms run again or none.
    """
    records = {record.name: record for record in flow if not record.is_step}
    nodes = outline.nodes
    members: dict[int, list[int]] = defaultdict(list)
    after: dict[int, list[int]] = defaultdict(list)
    retried = set()
    for number, node in enumerate(nodes):
        if node.parent is not None:
            members[node.parent].append(number)
            if node.kind == _outline.RETRY:
                retried.add(node.parent)
    for before, following in outline.edges:
        after[before].append(following)
    # Nodes that run again, at least in part; and those that run again as a whole.
    again: set[int] = set()
    whole: set[int] = set()
    pending = [
        (number, True)
        for number, node in enumerate(nodes)
        if node.kind != _outline.FLOW
        and (node.name == start or not _is_inheritable(records.get(node.name)))
    ]
    while pending:
        number, is_whole = pending.pop()
        is_whole = is_whole or number in retried
        if is_whole and number not in whole:
            whole.add(number)
            pending += [(member, True) for member in members[number]]
        if number not in again:
            again.add(number)
            pending += [(following, True) for following in after[number]]
            parent = nodes[number].parent
            if parent is not None:
                pending.append((parent, False))
    return {
        node.name
        for number, node in enumerate(nodes)
        if node.kind != _outline.FLOW and number not in again
    }


def _is_inheritable(record: models.AtomDetail | None) -> bool:
    return record is not None and record.state in _INHERITABLE


class Copied(NamedTuple):
    """The parts of a new fork.

    :ivar flow: the record of the fork, without a MAC.
    :ivar sources: the records of the original flow whose results it inherited.
    :ivar signals: stored names of the signals that inherited steps received or discarded.
    :ivar first_signals: by name, the number of the first signal that the attempts before the last
        one did not receive, if a workflow continued as new.
    """

    flow: models.FlowDetail
    sources: Sequence[models.AtomDetail]
    signals: Collection[str]
    first_signals: Mapping[str, int]


def copy_of(
    flow: models.FlowDetail,
    start: Start,
    inherited: Collection[str],
    workflows: Mapping[str, Steps],
    *,
    owns: bool,
) -> Copied:
    """Return the fork of a flow, with a new uuid.

    :param flow: the flow with its atoms. Values are shared.
    :param inherited: result of `inherited_atoms`.
    :param owns: whether the fork reverts the inherited results instead of the flow.
    """
    return _Copying(flow, start, inherited, workflows, owns).copied()


#: Keys in the `meta` of a flow that are copied to its forks.
_COPIED_KEYS: Final = (
    models.FACTORY, models.ENGINE, models.SUBMITTED, models.UNDO_UNTIL, _tags.GIVEN, _tags.CHANGED,
    "store",
)  # fmt: skip


class _Copying:
    def __init__(
        self,
        flow: models.FlowDetail,
        start: Start,
        inherited: Collection[str],
        workflows: Mapping[str, Steps],
        owns: bool,
    ) -> None:
        self._flow = flow
        self._start = start
        self._inherited = inherited
        self._workflows = workflows
        self._owns = owns
        self._fork = models.FlowDetail(flow.name)
        self._uuids = iter(models.new_uuids(len(flow) + 1))
        self._keyring = keys.keyring(None)
        self._sources: list[models.AtomDetail] = []
        self._signals: dict[str, None] = {}
        self._received: dict[str, int] = {}

    def copied(self) -> Copied:
        fork, flow = self._fork, self._flow
        fork.meta = {key: flow.own_meta[key] for key in _COPIED_KEYS if key in flow.own_meta}
        fork.meta[models.FORKED_FROM] = {
            "flow": flow.uuid,
            "start": self._start.text,
            "own": self._owns,
        }
        for record in flow:
            if record.is_step:
                continue
            if record.name == models.INJECTOR:
                fork.add(self._clone(record))
            elif self._is_inherited(record):
                clone = self._inherit(record)
                workflow = self._workflows.get(record.name)
                if workflow is not None:
                    self._copy_steps(workflow, clone, len(workflow.steps))
                self._copy_continuation(record, clone)
            elif record.name == self._start.task and self._start.position is not None:
                self._continue_workflow(self._workflows[record.name], self._start.position)
            else:
                self._add_untouched(record)
        return Copied(fork, self._sources, self._signals, self._received)

    def _is_inherited(self, record: models.AtomDetail) -> bool:
        """Return whether an atom is inherited: the retry controller of a task follows the task."""
        name = record.meta_value(models.OF_TASK) or record.name
        return name in self._inherited and record.state in _INHERITABLE

    def _clone(self, record: models.AtomDetail) -> models.AtomDetail:
        clone = type(record)(record.name, next(self._uuids))
        uuid = clone.uuid
        clone.update(record)
        clone.uuid = uuid
        clone.incidents = ()
        return clone

    def _inherit(self, record: models.AtomDetail) -> models.AtomDetail:
        clone = self._clone(record)
        clone.intention = states.EXECUTE
        if not record.has_other_owner:  # Otherwise it names the record of that flow.
            clone.meta[models.INHERITED] = [self._flow.uuid, record.uuid]
        if not self._owns and not clone.has_other_owner:
            clone.meta[models.RESULT_OWNER] = self._flow.uuid
        self._sources.append(record)
        self._fork.add(clone)
        return clone

    def _add_untouched(self, record: models.AtomDetail) -> models.AtomDetail:
        """Add the record of an atom that has not begun, with the values injected into it."""
        clone = type(record)(record.name, next(self._uuids))
        clone.state, clone.version = states.PENDING, record.version
        for key in (models.META_INJECTED, models.OF_TASK):
            if record.meta_value(key):
                clone.set_meta_value(key, record.meta_value(key))
        self._fork.add(clone)
        return clone

    def _continue_workflow(self, workflow: Steps, position: int) -> None:
        record = workflow.workflow
        clone = self._add_untouched(record)
        position = workflow.end_of_history(position)
        if position:
            # The next run continues this attempt.
            clone.attempt, clone.epoch = workflow.attempt, 1
            content = record.meta_value(models.WORKFLOW)
            continued = _with_versions_before(content, position)
            continued[_step_notes.ORIGIN] = _origin_of(workflow, position)
            clone.set_meta_value(models.WORKFLOW, continued)
            self._copy_steps(workflow, clone, position)
        self._copy_continuation(record, clone)

    def _copy_continuation(self, record: models.AtomDetail, clone: models.AtomDetail) -> None:
        """Let a workflow that continued as new have the inputs and signals of its last attempt."""
        content = record.meta_value(models.CONTINUED)
        if content is None:
            return
        unsigned = {key: value for key, value in content.items() if key != _macs.MAC}
        clone.meta[models.CONTINUED] = _macs.signed_continuation(self._fork.uuid, clone, unsigned)
        self._received |= content.get("signals", {})

    def _copy_steps(self, workflow: Steps, clone: models.AtomDetail, position: int) -> None:
        """Copy the steps before a position, with consecutive numbers of their completions."""
        steps = workflow.steps[:position]
        complete = [step.note for step in steps if step.note.completed is not None]
        complete.sort(key=lambda note: note.completed or 0)
        numbers = {note.position: number for number, note in enumerate(complete, 1)}
        for record, note in steps:
            number = numbers.get(note.position)
            if number is None:
                copied: models.AtomDetail = models.TaskDetail(record.name, next(self._uuids))
                copied.state, copied.version = states.PENDING, record.version
                note = StepNote(
                    clone.uuid, note.attempt, note.position, note.task, note.digest, note.text,
                    note.arguments, limit=note.limit,
                )  # fmt: skip
                self._fork.add(copied)
            else:
                copied = self._inherit(record)
                note = dataclasses.replace(note, workflow=clone.uuid, completed=number)
                self._signals.update(dict.fromkeys([*note.discarded, *filter(None, [note.signal])]))
            content = note.to_dict()
            if self._keyring is not None:
                content = _macs.signed_step(self._fork.uuid, copied, content, self._keyring)
            copied.set_meta_value(models.STEP, content)


def _origin_of(workflow: Steps, position: int) -> dict[str, Any]:
    """Return the start and the seeds with which a fork repeats the calls of inherited steps.

    From the position on, the fork draws other random values, for example idempotency keys: those of
    the original flow were used, and may have been undone.
    """
    record, attempt = workflow.workflow, workflow.attempt
    origin = record.meta_value(models.WORKFLOW).get(_step_notes.ORIGIN, {})
    seeds: list[tuple[int, str]] = []
    for until, seed in (*origin.get("seeds", ()), (position, seed_of(record.uuid, attempt))):
        seeds.append((min(until, position), seed))
        if until >= position:
            break
    starts = [each.submitted for each in record.all_attempts if each.attempt == attempt]
    return {
        "start": origin.get("start", starts[0] if starts else record.submitted),
        "seeds": seeds,
    }


def _with_versions_before(content: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return the content of a workflow without versions that were decided at or after a position.

    The fork decides these again.
    """
    positions = content.get(_step_notes.VERSION_POSITIONS, {})
    return dict(content) | {
        key: {
            change: value
            for change, value in content[key].items()
            if positions.get(change, -1) < position
        }
        for key in (_step_notes.VERSIONS, _step_notes.VERSION_POSITIONS)
        if key in content
    }
