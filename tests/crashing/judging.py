"""Whether what was killed and resumed came to the right end, and what it was that went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.crashing import audit, pictures
from tests.crashing.pictures import Picture


@dataclass
class Cut:
    """What the store said of a flow after somebody was killed, if anybody looked.

    So many deeds were done by then, as somebody may still be at work, and so many at the kill.
    """

    picture: Picture | None
    seen: int
    deeds: int


@dataclass
class Story:
    """All that is known of one flow that was killed and resumed."""

    flow: str
    deeds: Sequence[str]
    end: Picture | None
    cuts: Sequence[Cut] = field(default_factory=list)


@dataclass
class Rules:
    """What may happen.

    `once`: no deed is done twice.  `lost`: a task may be lost with its worker, so that what follows
    happens in a later wave.  `ahead`: what runs is known to the store before.
    """

    once: bool = False
    lost: bool = False
    ahead: bool = True


def problems(story: Story, expected: Story, rules: Rules) -> list[str]:
    """What went wrong; `expected` is the story of the same flow undisturbed."""
    if rules.lost and story.end is not None and _may_differ(story.end, expected):
        found = _twice(story, rules)
    else:
        found = [*_end(story, expected, rules), *_deeds(story, expected, rules)]
    found += [*_saved(story), *_ahead(story, rules)]
    return [f"{story.flow}: {problem}" for problem in found]


def again(story: Story) -> int:
    """How many deeds were done once more than they had to be."""
    return len(story.deeds) - len(set(story.deeds))


def _may_differ(end: Picture, expected: Story) -> bool:
    """Whether the loss of a worker explains an end in which not every task took part."""
    if expected.end is not None and expected.end["state"] == "REVERTED" == end["state"]:
        # It was the last round that the loss put an end to.
        found = {atom["row"]["state"] for atom in end["atoms"].values() if atom["row"]["attempt"]}
        return found <= {"REVERTED", "PENDING"}
    return _is_stuck(end)


def _is_stuck(end: Picture) -> bool:
    """Whether a worker died while it reverted a task: nobody knows how far it came."""
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
        # Of what is lost in the middle, others are reverted that never are otherwise.
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
    """Nothing whose outcome was saved is done again."""
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
    """Nobody runs but under a number that was saved before, and under each number once."""
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
                continue  # an item: it has the number of its Map
            atom = picture["atoms"].get(name)
            attempts = atom["row"]["attempt"] if atom is not None else 0
            if count > attempts:
                found.append(f"{name} ran {count} times, under {attempts} numbers {when}")
    return found


def summary(stories: Mapping[str, Story]) -> str:
    """For people: how much was done, and how much of it again."""
    done = sum(len(story.deeds) for story in stories.values())
    return f"{done} runs, {sum(map(again, stories.values()))} of them again"
