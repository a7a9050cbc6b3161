"""Checks of simulated runs. Each check is a function of the record of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wbengine import exceptions, states
from wbengine.testing._crashing.killed import Stuck
from wbengine.testing._crashing.outcome import Event, Outcome
from wbengine.testing._worlds.world import DO, Operation, World

__all__ = ["CHECKS", "COMPARING", "Check", "Expected", "Problem", "problems"]


@dataclass(frozen=True)
class Problem:
    """A promise that a run broke.

    :ivar about: what it is about, to recognize the same problem in other runs.
    :ivar event: index of the event that broke it, or -1.
    """

    check: str
    about: str
    text: str
    event: int = -1
    line: str = ""


@dataclass(frozen=True)
class Expected:
    """What runs without faults did. Two runs show what differs in each run."""

    state: str
    values: Mapping[str, object]
    #: Names of values that are equal in all runs.
    stable: frozenset[str]
    #: By world, the keys of what exists in the end; None: they differ in each run.
    keys: Mapping[str, Counter[str] | None]
    counts: Mapping[str, int]

    @classmethod
    def of(cls, first: Outcome, second: Outcome) -> Expected:
        """Return what two runs without faults have in common."""
        keys = _remaining(first)
        counts = {name: count.total() for name, count in keys.items()}
        alone = cls(first.state, first.values, frozenset(first.values), keys, counts)
        return alone.common_with(second)

    def common_with(self, other: Outcome) -> Expected:
        """Return what is also equal in another run without faults."""
        others = _remaining(other)
        return replace(
            self,
            stable=frozenset(
                name
                for name in self.stable
                if name in other.values and _equal(self.values[name], other.values[name])
            ),
            keys={
                name: count if count == others.get(name) else None
                for name, count in self.keys.items()
            },
        )


#: A check of a run, given what runs without faults did.
Check = Callable[[Outcome, Expected], Iterator[Problem]]


@dataclass
class _Done:
    """An effect that was done, and the executions that did it or found it done."""

    operation: Operation
    event: int
    step: str
    executions: list[tuple[str, int, str]] = field(default_factory=list)


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays and frames have no single truth value
        return repr(one) == repr(other)


def _operations(outcome: Outcome) -> Iterator[tuple[int, Event, Operation]]:
    for number, event in enumerate(outcome.events):
        if event.operation is not None:
            yield number, event, event.operation


def _active(outcome: Outcome) -> dict[tuple[World, str], list[_Done]]:
    """Return what exists outside at the end of a run."""
    active: dict[tuple[World, str], list[_Done]] = {}
    for number, event, operation in _operations(outcome):
        place = operation.world, operation.key
        for key in operation.replaced:
            active[operation.world, key].pop()
        if operation.kind != DO:
            if operation.result == "done":
                active[place].pop()
            continue
        if operation.result == "done":
            active.setdefault(place, []).append(_Done(operation, number, event.step))
        if active.get(place):
            active[place][-1].executions.append(event.execution)
    return {place: done for place, done in active.items() if done}


def _remaining(outcome: Outcome) -> dict[str, Counter[str]]:
    keys: dict[str, Counter[str]] = {}
    for _, _, operation in _operations(outcome):
        keys.setdefault(operation.world.name, Counter())
    for (world, key), done in _active(outcome).items():
        keys[world.name][key] += 1 if world.repeatable else len(done)
    return keys


def _executions(outcome: Outcome, kind: str) -> set[tuple[str, int, str]]:
    """Return the executions of steps that ended with success or failure."""
    return {event.execution for event in outcome.events if event.kind == kind}


def _broken_by(
    check: str, number: int, operation: Operation, text: str, other: str = ""
) -> Problem:
    """Return a problem with an operation.

    :param number: index of the event of the operation.
    :param text: what is wrong; the world and the key of the operation precede it.
    :param other: another key that distinguishes the problem.
    """
    about = f"{operation.world.name} {operation.key} {other}".rstrip()
    text = f"{operation.world.name}: {operation.key!r} {text}"
    return Problem(check, about, text, number, operation.line)


def at_most_once(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that no effect is done again while it exists."""
    existing: Counter[tuple[World, str]] = Counter()
    for number, event, operation in _operations(outcome):
        place = operation.world, operation.key
        if operation.result != "done" or operation.world.repeatable:
            continue
        existing[place] += 1 if operation.kind == DO else -1
        if existing[place] > 1:
            text = (
                f"was done twice, by {event.step or 'the workflow'}. Pass an idempotency key that"
                " is the same when the step runs again, or ask the outside system"
                f" first{_or_never(outcome)}"
            )
            yield _broken_by("at_most_once", number, operation, text)


def _or_never(outcome: Outcome) -> str:
    # A serial engine repeats an interrupted step in any case.
    return ", or set idempotent=False" if outcome.is_remote else ""


def undone(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that nothing remains if the flow is reverted."""
    if outcome.state != states.REVERTED:
        return
    failures = _executions(outcome, "failure")
    for (world, _), done in _active(outcome).items():
        if world.permanent:
            continue
        latest = done[-1]
        if outcome.is_final(latest.step):
            continue
        how = f"no revert of {latest.step or 'the workflow'} undid it"
        if any(each in failures for each in latest.executions):
            how = (
                f"{latest.step} failed after its effect, and {how}. The revert of a function is"
                " called after an exception only with revert(failed=True)"
            )
        text = f"remains, although the flow was reverted: {how}"
        yield _broken_by("undone", latest.event, latest.operation, text)


def undone_in_order(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that what was done first is undone last, if one depends on the other."""
    done: list[tuple[World, str, str]] = []
    for number, event, operation in _operations(outcome):
        if operation.result != "done":
            continue
        place = operation.world, operation.key
        if operation.kind == DO:
            done.append((*place, event.step))
            continue
        index = next((i for i in reversed(range(len(done))) if done[i][:2] == place), None)
        if index is None:
            continue
        if not event.step.startswith("revert of "):  # A step may end what another one began.
            del done[index]
            continue
        step = done[index][2]
        if _starts_later(outcome, step, number):  # It undoes a try, before the next one.
            del done[index]
            continue
        for world, key, later in done[index + 1 :]:
            is_ordered = outcome.is_before(step, later)
            if world.permanent or world.repeatable or not is_ordered:
                continue
            text = f"was undone before {key!r}, which was done after it"
            yield _broken_by("undone_in_order", number, operation, text, key)
        del done[index]


def _starts_later(outcome: Outcome, step: str, number: int) -> bool:
    return any(event.kind == "step" and event.step == step for event in outcome.events[number:])


def nothing_missing(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that nothing is undone that does not exist."""
    for number, event, operation in _operations(outcome):
        if operation.result == "missing" and not operation.is_accepted:
            text = (
                f"was undone by {event.step or 'the workflow'}, but does not exist (any more). Ask"
                " the outside system first: a revert can run twice, and after an execution that had"
                " no effect"
            )
            yield _broken_by("nothing_missing", number, operation, text)


def known_effects_exist(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that no idempotency key is used again after its effect was undone."""
    for number, event, operation in _operations(outcome):
        if operation.result == "undone_before":
            text = (
                f"was not done by {event.step}, because its idempotency key is that of an effect"
                " that was undone. Use another key after an undo, such as self.request.id, or ask"
                " the outside system first"
            )
            yield _broken_by("known_effects_exist", number, operation, text)


def same_state(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that the flow ends as without kills, lost workers and an unreachable store."""
    if not _has_to_be_equal(outcome) or outcome.state == expected.state:
        return
    if outcome.is_endless or isinstance(outcome.error, exceptions.NonDeterministicWorkflow):
        return  # another check
    why = "" if outcome.error is None else f": {type(outcome.error).__name__}: {outcome.error}"
    yield Problem(
        "same_state",
        f"{outcome.state} {type(outcome.error).__name__}",
        f"the flow ended in {outcome.state}, without these faults in {expected.state}{why:.300}",
    )


def same_result(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that the results are those of a run without such faults."""
    if not _has_to_be_equal(outcome) or outcome.state != expected.state:
        return
    for name in sorted(expected.stable):
        value, wanted = outcome.values.get(name), expected.values[name]
        if not _equal(value, wanted):
            yield Problem(
                "same_result",
                name,
                f"the value {name!r} is {value!r:.100}, without these faults {wanted!r:.100}",
            )


def same_effects(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that the same exists outside as without such faults."""
    if not _has_to_be_equal(outcome) or outcome.state != expected.state:
        return
    found = _remaining(outcome)
    for name, count in expected.counts.items():
        keys, wanted = found.get(name, Counter()), expected.keys[name]
        if wanted is None:
            if keys.total() != count:
                yield Problem(
                    "same_effects",
                    name,
                    f"{name}: {keys.total()} effects exist in the end, without these faults"
                    f" {count}. Their keys differ in each run: use values that are stored, such as"
                    " steps.uuid4() or self.request.id",
                )
            continue
        for key in sorted((wanted - keys) | (keys - wanted)):
            found_times, wanted_times = _times(keys[key]), _times(wanted[key])
            text = f"exists {found_times} in the end, without these faults {wanted_times}"
            yield Problem("same_effects", f"{name} {key}", f"{name}: {key!r} {text}")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def failed_steps_leave_nothing(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that no effect of a failed step remains if the flow succeeds."""
    if outcome.state != states.SUCCESS:
        return
    failures = _executions(outcome, "failure")
    for (world, _), all_done in _active(outcome).items():
        if world.permanent or world.repeatable:
            continue
        for done in all_done:
            if _succeeds_later(outcome, done):
                continue
            if done.executions and all(each in failures for each in done.executions):
                advice = "Undo it: an exception does not show that nothing was done"
                if outcome.has_failed_reversion:
                    advice = "A revert failed: do not catch its exception around steps.scope()"
                how = f"{done.step} failed and the flow went on without it. {advice}"
                text = f"remains, although {how}"
                yield _broken_by("failed_steps_leave_nothing", done.event, done.operation, text)


def _succeeds_later(outcome: Outcome, done: _Done) -> bool:
    """Return whether a later execution succeeded, and did nothing because the effect existed."""
    later = outcome.events[done.event :]
    succeeded = {
        event.execution for event in later if event.step == done.step and event.kind == "success"
    }
    world = done.operation.world
    did = {
        event.execution
        for event in later
        if event.operation is not None and event.operation.world is world
    }
    return bool(succeeded - did)


def failures_are_reported(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that a step whose call outside failed does not succeed without it."""
    if outcome.state != states.SUCCESS:
        return
    exists = {(world.name, key) for world, key in _active(outcome)}
    did = {event.execution for _, event, operation in _operations(outcome)}
    succeeded = _executions(outcome, "success")
    for number, event in enumerate(outcome.events):
        if event.kind != "refused" or event.execution not in succeeded or event.execution in did:
            continue
        assert event.refused is not None
        world, key = event.refused
        if (world.name, key) not in exists and not world.permanent and not world.repeatable:
            yield Problem(
                "failures_are_reported",
                f"{world.name} {key}",
                f"{world.name}: {key!r} failed, and {event.step} succeeded without it",
                number,
                event.line,
            )


def in_steps(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that all effects are done by steps."""
    for number, event, operation in _operations(outcome):
        if not event.step:
            yield Problem(
                "in_steps",
                f"{operation.world.name} {operation.key}",
                f"{operation.world.name}: the {operation.kind} of {operation.key!r} is not in a"
                " step: it runs again in each replay of the workflow, and is not undone",
                number,
                operation.line,
            )


def replayable(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that a workflow function repeats its recorded steps."""
    error = outcome.error
    if isinstance(error, exceptions.NonDeterministicWorkflow):
        yield Problem("replayable", error.workflow, f"the workflow cannot be replayed: {error}")


def reversible(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that no revert raises an exception."""
    if outcome.state != states.FAILURE or expected.state == states.FAILURE:
        return
    if isinstance(outcome.error, exceptions.NonDeterministicWorkflow):
        return
    failed = [
        (number, event)
        for number, event in enumerate(outcome.events)
        if event.kind == "failure" and event.step.startswith("revert of ")
    ]
    if failed:
        number, event = failed[-1]
        text = (
            f"{event.step} {event.text:.1000}: the flow remains in FAILURE. The result of a step"
            " can be a failure: a revert should use the arguments of the step"
        )
        yield Problem("reversible", event.step, text, number)


def ends(outcome: Outcome, expected: Expected) -> Iterator[Problem]:
    """Check that the flow ends, and does not wait forever with work that others need."""
    if outcome.is_endless:
        yield Problem("ends", "endless", f"the flow does not end: {outcome.error or outcome.state}")
    elif isinstance(outcome.error, Stuck) and outcome.state == states.WAITING:
        held = [f"{world.name}: {key!r}" for world, key in _active(outcome) if not world.permanent]
        if held:
            yield Problem(
                "ends", "waits", f"{outcome.error}, and keeps {', '.join(sorted(held)):.300}"
            )


def _has_to_be_equal(outcome: Outcome) -> bool:
    return outcome.schedule.is_transparent and not outcome.has_lost_step


#: All checks by name.
CHECKS: Final[Mapping[str, Check]] = {
    check.__name__: check
    for check in (
        at_most_once, undone, undone_in_order, nothing_missing, known_effects_exist,
        same_state, same_result, same_effects, failed_steps_leave_nothing, failures_are_reported,
        in_steps, replayable, reversible, ends,
    )
}  # fmt: skip


#: Names of checks that compare values and effects with those of runs without faults.
COMPARING: Final = frozenset({"same_result", "same_effects"})

#: Checks that also find what other checks explain better.
_GENERAL: Final = frozenset({same_state, same_result, same_effects, undone_in_order})


def problems(outcome: Outcome, expected: Expected, checks: Sequence[Check]) -> list[Problem]:
    """Return the problems of a run, each once.

    General checks are made only if the others find nothing.
    """
    found: dict[tuple[str, str], Problem] = {}
    for name, text in outcome.failed_checks.items():
        found[name, ""] = Problem(name, "", text)
    for check in sorted(checks, key=_GENERAL.__contains__):
        if found and check in _GENERAL:
            break
        for problem in check(outcome, expected):
            found.setdefault((problem.check, problem.about), problem)
    return list(found.values())
