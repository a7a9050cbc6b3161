"""The checks of flows that were killed and resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.crashing import audit, pictures
from tests.crashing.pictures import Picture


@dataclass
class Cut:
    """The stored records of a flow after a kill, if a later process read them.

    `seen` and `deeds` are the numbers of deeds at the read and at the kill; a worker can continue
    in between.
    """

    picture: Picture | None
    seen: int
    deeds: int


@dataclass
class Story:
    """The recorded history of one flow that was killed and resumed."""

    flow: str
    deeds: Sequence[str]
    end: Picture | None
    cuts: Sequence[Cut] = field(default_factory=list)


@dataclass
class Rules:
    """The permitted effects of kills.

    `once`: no deed is repeated. `lost`: a task can be lost with its worker, so that later deeds are
    in a later wave. `ahead`: the store contains each attempt before it runs.
    """

    once: bool = False
    lost: bool = False
    ahead: bool = True


def problems(story: Story, expected: Story, rules: Rules) -> list[str]:
    """Return the problems of a flow; `expected` is the story of the same flow without kills."""
    if rules.lost and story.end is not None and _may_differ(story.end, expected):
        found = _twice(story, rules)
    else:
        found = [*_end(story, expected, rules), *_deeds(story, expected, rules)]
    found += [*_saved(story), *_ahead(story, rules)]
    return [f"{story.flow}: {problem}" for problem in found]


def again(story: Story) -> int:
    """Return the number of repeated deeds."""
    return len(story.deeds) - len(set(story.deeds))


def _may_differ(end: Picture, expected: Story) -> bool:
    """Return whether the loss of a worker explains an end in which some tasks did not run."""
    if expected.end is not None and expected.end["state"] == "REVERTED" == end["state"]:
        # The loss ended the last round.
        found = {atom["row"]["state"] for atom in end["atoms"].values() if atom["row"]["attempt"]}
        return found <= {"REVERTED", "PENDING"}
    return _is_stuck(end)


def _is_stuck(end: Picture) -> bool:
    """Return whether a worker died during a reversion, so that its progress is unknown."""
    failures = [
        str(record["revert_failure"])
        for atom in end["atoms"].values()
        for record in (atom["row"], *atom["items"])
        if record["state"] == "REVERT_FAILURE"
    ]
    return end["state"] == "FAILURE" and any("WorkerLost" in told for told in failures)


def _end(story: Story, expected: Story, rules: Rules) -> list[str]:
    if story.end is None or expected.end is None:
        return ["it is lost"]
    found = pictures.outline(story.end, timeless=rules.lost)
    wanted = pictures.outline(expected.end, timeless=rules.lost)
    return [
        f"{name or 'the flow'} ended as {found.get(name)!r:.300}, not as {wanted.get(name)!r:.300}"
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name)
    ]


def _deeds(story: Story, expected: Story, rules: Rules) -> list[str]:
    counts = Counter(story.deeds)
    wanted = set(expected.deeds)
    found = []
    if rules.lost:
        left = audit.timeless(wanted) - audit.timeless(counts)
        strange = audit.timeless(counts) - audit.timeless(wanted)
        # After a loss, other tasks are reverted than without kills.
        strange = {deed for deed in strange if not deed.endswith(" revert")}
    else:
        left, strange = wanted - set(counts), set(counts) - wanted
    found += [f"{deed} was never done" for deed in sorted(left)]
    found += [f"{deed} was done" for deed in sorted(strange)]
    return found + _twice(story, rules)


def _twice(story: Story, rules: Rules) -> list[str]:
    most = 1 if rules.once else 1 + len(story.cuts)
    return [
        f"{deed} was done {count} times"
        for deed, count in sorted(Counter(story.deeds).items())
        if count > most
    ]


def _saved(story: Story) -> list[str]:
    """Return the deeds that were repeated after their result was saved."""
    found = []
    for number, cut in enumerate(story.cuts, 1):
        if cut.picture is None:
            continue
        later = Counter(story.deeds[cut.deeds :])
        found += [
            f"{deed} was saved at kill {number}, and done again"
            for deed in sorted(pictures.saved(cut.picture))
            if later[deed]
        ]
    return found


def _ahead(story: Story, rules: Rules) -> list[str]:
    """Return the tasks that ran more often than the attempts that were saved before."""
    if not rules.ahead:
        return []
    found = []
    looks = [(f"at kill {n}", cut.picture, cut.seen) for n, cut in enumerate(story.cuts, 1)]
    for when, picture, deeds in [*looks, ("in the end", story.end, len(story.deeds))]:
        if picture is None:
            continue
        runs = Counter(deed.partition(" ")[0] for deed in story.deeds[:deeds])
        for name, count in sorted(runs.items()):
            if name.endswith("]"):
                continue  # an item has the attempt of its Map
            atom = picture["atoms"].get(name)
            attempts = atom["row"]["attempt"] if atom is not None else 0
            if count > attempts:
                found.append(f"{name} ran {count} times, under {attempts} numbers {when}")
    return found


def summary(stories: Mapping[str, Story]) -> str:
    """Return a line of text with the numbers of deeds and of repetitions."""
    done = sum(len(story.deeds) for story in stories.values())
    return f"{done} runs, {sum(map(again, stories.values()))} of them again"
