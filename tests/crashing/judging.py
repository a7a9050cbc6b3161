"""The checks of flows that were killed and resumed."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.crashing import audit, snapshots
from tests.crashing.snapshots import Snapshot
from wbengine.persistence import models

_REVERSION_OF_STEP = re.compile(r"/\S+ revert ")


@dataclass
class Cut:
    """The stored records of a flow after a kill, if a later process read them.

    :ivar effects: number of effects when the process was killed.
    :ivar seen: number of effects when the records were read. A worker can continue in between.
    """

    snapshot: Snapshot | None
    seen: int
    effects: int


@dataclass
class FlowHistory:
    """The recorded history of one flow that was killed and resumed."""

    flow: str
    effects: Sequence[str]
    end: Snapshot | None
    cuts: Sequence[Cut] = field(default_factory=list)


@dataclass
class Rules:
    """The permitted consequences of kills.

    `once`: no effect is repeated. `lost`: a worker can be lost with its task; the retry then
    produces the effects in a later wave. `ahead`: the store contains each attempt before it runs.
    """

    once: bool = False
    lost: bool = False
    ahead: bool = True


def problems(history: FlowHistory, expected: FlowHistory, rules: Rules) -> list[str]:
    """Return the problems of a flow; `expected` is the history of the same flow without kills."""
    if rules.lost and history.end is not None and _may_differ(history.end, expected):
        texts = _twice(history, rules)
    else:
        texts = [*_end(history, expected, rules), *_effects(history, expected, rules)]
    texts += [*_saved(history), *_ahead(history, rules), *_order(history)]
    return [f"{history.flow}: {problem}" for problem in texts]


def again(history: FlowHistory) -> int:
    """Return the number of repeated effects."""
    return len(history.effects) - len(set(history.effects))


def _may_differ(end: Snapshot, expected: FlowHistory) -> bool:
    """Return whether the loss of a worker explains an end in which some tasks did not run."""
    if expected.end is not None and expected.end["state"] == "REVERTED" == end["state"]:
        # The loss ended the last round.
        final_states = {
            atom["row"]["state"] for atom in end["atoms"].values() if atom["row"]["attempt"]
        }
        return final_states <= {"REVERTED", "PENDING"}
    return _is_stuck(end)


def _is_stuck(end: Snapshot) -> bool:
    """Return whether a worker died during a reversion, so that its progress is unknown."""
    failures = [
        str(record["revert_failure"])
        for atom in end["atoms"].values()
        for record in (atom["row"], *atom["items"])
        if record["state"] == "REVERT_FAILURE"
    ]
    return end["state"] == "FAILURE" and any("WorkerLost" in text for text in failures)


def _end(history: FlowHistory, expected: FlowHistory, rules: Rules) -> list[str]:
    if history.end is None or expected.end is None:
        return ["it is lost"]
    actual = snapshots.outline(history.end, timeless=rules.lost)
    wanted = snapshots.outline(expected.end, timeless=rules.lost)
    return [
        f"{name or 'the flow'} ended as {actual.get(name)!r:.300}, not as {wanted.get(name)!r:.300}"
        for name in sorted({*actual, *wanted})
        if actual.get(name) != wanted.get(name)
    ]


def _effects(history: FlowHistory, expected: FlowHistory, rules: Rules) -> list[str]:
    counts = Counter(history.effects)
    wanted = set(expected.effects)
    texts = []
    if rules.lost:
        left = audit.timeless(wanted) - audit.timeless(counts)
        strange = audit.timeless(counts) - audit.timeless(wanted)
        # After a loss, other tasks are reverted than without kills.
        strange = {effect for effect in strange if not effect.endswith(" revert")}
    else:
        left, strange = wanted - set(counts), set(counts) - wanted
    texts += [f"{effect} was never done" for effect in sorted(left)]
    texts += [f"{effect} was done" for effect in sorted(strange)]
    return texts + _twice(history, rules)


def _twice(history: FlowHistory, rules: Rules) -> list[str]:
    return [
        f"{effect} was done {count} times"
        for effect, count in sorted(Counter(history.effects).items())
        if count > _max_count(effect, history, rules)
    ]


def _max_count(effect: str, history: FlowHistory, rules: Rules) -> int:
    if rules.lost and _REVERSION_OF_STEP.search(effect):
        # If a worker is lost during the reversion of a scope, that of the workflow repeats it.
        return 2
    return 1 if rules.once else 1 + len(history.cuts)


def _saved(history: FlowHistory) -> list[str]:
    """Return the effects that were repeated after their result was saved."""
    texts = []
    for number, cut in enumerate(history.cuts, 1):
        if cut.snapshot is None:
            continue
        later = Counter(history.effects[cut.effects :])
        texts += [
            f"{effect} was saved at kill {number}, and done again"
            for effect in sorted(snapshots.saved(cut.snapshot))
            if later[effect]
        ]
    return texts


def _ahead(history: FlowHistory, rules: Rules) -> list[str]:
    """Return the tasks that ran more often than the attempts that were saved before."""
    if not rules.ahead:
        return []
    texts = []
    looks = [(f"at kill {n}", cut.snapshot, cut.seen) for n, cut in enumerate(history.cuts, 1)]
    for when, snapshot, effects in [*looks, ("in the end", history.end, len(history.effects))]:
        if snapshot is None:
            continue
        runs = Counter(effect.partition(" ")[0] for effect in history.effects[:effects])
        for name, count in sorted(runs.items()):
            if name.endswith("]"):
                continue  # an item has the attempt of its Map
            atom = snapshot["atoms"].get(name)
            attempts = atom["row"]["attempt"] if atom is not None else 0
            if count > attempts:
                texts.append(f"{name} ran {count} times, under {attempts} numbers {when}")
    return texts


def _order(history: FlowHistory) -> list[str]:
    """Return the steps that were reverted before a step that completed later."""
    if history.end is None:
        return []
    steps: dict[str, dict[str, int]] = defaultdict(dict)
    for name, atom in history.end["atoms"].items():
        note = atom["row"]["meta"].get(models.STEP)
        if note is not None and note.get("completed"):
            steps[f"{note['workflow']} {note['attempt']}"][name] = note["completed"]
    first: dict[str, int] = {}
    for index, effect in enumerate(history.effects):
        first.setdefault(effect.rpartition(" ")[0], index)
    never = len(history.effects)
    return [
        f"{name} was reverted before {later}, which completed after it"
        for completed in steps.values()
        for name, later in itertools.permutations(completed, 2)
        if completed[name] < completed[later]
        and first.get(f"{later} execute", never)
        < first.get(f"{name} revert", never)
        < first.get(f"{later} revert", never)
    ]


def summary(histories: Mapping[str, FlowHistory]) -> str:
    """Return a line of text with the numbers of effects and of repetitions."""
    done = sum(len(history.effects) for history in histories.values())
    return f"{done} runs, {sum(map(again, histories.values()))} of them again"
