"""Those who judge flows that were killed see what went wrong, whatever it is."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crashing import audit, children, engines, judging, pictures, points
from tests.crashing.judging import Cut, Rules, Story


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    return engines.expected(tmp_path_factory.mktemp("crash") / "expected", ["main", "undone"])


def problems(story: Story, expected: dict[str, Story], **rules: bool) -> list[str]:
    return judging.problems(story, expected[story.flow], Rules(**rules))


def middle(story: Story, deeds: int) -> Cut:
    """The flow was killed after so many deeds, all of them saved."""
    done = story.deeds[:deeds]
    names = Counter(deed.partition(" ")[0] for deed in done)
    atoms = {
        name: {"row": {"attempt": count, "results": [deed for deed in done if name in deed]}}
        for name, count in names.items()
    }
    return Cut({"state": "RUNNING", "atoms": atoms}, deeds, deeds)


def attempts(story: Story, name: str, count: int) -> Any:
    """The end of a flow, with another number of attempts of a task."""
    end = copy.deepcopy(story.end)
    assert end is not None
    end["atoms"][name]["row"]["attempt"] = count
    return end


@pytest.mark.parametrize("flow", ["main", "undone"])
def test_nothing_is_wrong_with_what_nobody_disturbs(flow: str, expected: dict[str, Story]) -> None:
    story = expected[flow]
    for rules in ({}, {"once": True}, {"once": True, "lost": True}):
        assert problems(story, expected, **rules) == []
    assert len(story.deeds) == len(set(story.deeds)) > 15
    assert pictures.saved(story.end) <= set(story.deeds)


def test_every_part_of_the_flows_takes_part(expected: dict[str, Story]) -> None:
    main, undone = expected["main"], expected["undone"]
    states = {name: atom["row"]["state"] for name, atom in main.end["atoms"].items()}
    assert (states["skipped"], states["after"], states["taken"]) == ("IGNORE", "IGNORE", "SUCCESS")
    assert "shaky execute 1.1" in main.deeds and "shaky execute 1.2" in main.deeds
    assert "before revert 1.1" in main.deeds
    assert "each[4] execute 1.2" in main.deeds
    assert main.end["state"] == "SUCCESS" and undone.end["state"] == "REVERTED"
    assert {"first revert 1.0", "each[0] revert 2.0"} <= set(undone.deeds)


def test_a_lost_flow_is_seen(expected: dict[str, Story]) -> None:
    assert problems(replace(expected["main"], end=None), expected) == ["main: it is lost"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_deed_that_was_never_done_is_seen(lost: bool, expected: dict[str, Story]) -> None:
    deeds = [deed for deed in expected["main"].deeds if not deed.startswith("taken ")]
    (found,) = problems(replace(expected["main"], deeds=deeds), expected, lost=lost)
    assert found.startswith("main: taken execute") and found.endswith("was never done")


def test_a_deed_that_nobody_asked_for_is_seen(expected: dict[str, Story]) -> None:
    deeds = [*expected["main"].deeds, "skipped execute 1.0"]
    for lost in (False, True):
        found = problems(replace(expected["main"], deeds=deeds), expected, lost=lost)
        assert found[0].startswith("main: skipped execute") and found[0].endswith("was done")
        assert found[1:] == ["main: skipped ran 1 times, under 0 numbers in the end"]


def test_what_runs_twice_is_seen(expected: dict[str, Story]) -> None:
    story = expected["main"]
    twice = replace(story, deeds=[*story.deeds, "left execute 1.0"])
    assert problems(twice, expected) == [
        "main: left execute 1.0 was done 2 times",
        "main: left ran 2 times, under 1 numbers in the end",
    ]
    # Where a task may run again that was not saved, it may once for each kill.
    killed = replace(twice, cuts=[Cut(None, 0, 3)], end=attempts(story, "left", 2))
    assert problems(killed, expected) == []
    assert problems(killed, expected, once=True) == ["main: left execute 1.0 was done 2 times"]
    assert judging.again(killed) == 1


def test_what_was_saved_and_runs_again_is_seen(expected: dict[str, Story]) -> None:
    story = expected["main"]
    cut = middle(story, 3)
    assert problems(replace(story, cuts=[cut]), expected) == []
    name = story.deeds[1].partition(" ")[0]
    redone = replace(
        story, deeds=[*story.deeds, story.deeds[1]], cuts=[cut], end=attempts(story, name, 2)
    )
    assert problems(redone, expected) == [
        f"main: {story.deeds[1]} was saved at kill 1, and done again"
    ]


def test_what_ran_before_it_was_saved_is_seen(expected: dict[str, Story]) -> None:
    story = expected["main"]
    cut = middle(story, 3)
    last = story.deeds[2].partition(" ")[0]
    assert cut.picture is not None
    cut.picture["atoms"][last]["row"].update(attempt=0, results=None)
    assert problems(replace(story, cuts=[cut]), expected) == [
        f"main: {last} ran 1 times, under 0 numbers at kill 1"
    ]
    del cut.picture["atoms"][last]
    assert len(problems(replace(story, cuts=[cut]), expected)) == 1


def _flag(row: dict[str, object], atoms: dict[str, object]) -> None:
    row["state"] = "SUCCESS"


def _value(row: dict[str, object], atoms: dict[str, object]) -> None:
    row["results"] = "another"


def _missing(row: dict[str, object], atoms: dict[str, object]) -> None:
    del atoms["left"]


@pytest.mark.parametrize(
    ("name", "spoil"), [("skipped", _flag), ("left", _value), ("sum", _value), ("left", _missing)]
)
@pytest.mark.parametrize("lost", [False, True])
def test_a_wrong_end_is_seen(
    name: str, spoil: Callable[..., None], lost: bool, expected: dict[str, Story]
) -> None:
    end = copy.deepcopy(expected["main"].end)
    assert end is not None
    spoil(end["atoms"][name]["row"], end["atoms"])
    found = problems(replace(expected["main"], end=end), expected, lost=lost)
    assert found[0].startswith(f"main: {name} ended as ")
    assert len(found) == 1 or spoil is _missing


def test_a_wrong_item_is_seen(expected: dict[str, Story]) -> None:
    end = copy.deepcopy(expected["main"].end)
    assert end is not None
    end["atoms"]["each"]["items"][2]["results"] = "another"
    (found,) = problems(replace(expected["main"], end=end), expected)
    assert found.startswith("main: each ended as ")


def test_a_later_round_is_as_good_where_tasks_are_lost(expected: dict[str, Story]) -> None:
    def later(text: str) -> str:
        return text.replace(" 1.0", " 2.0").replace(" 1.2", " 2.3")

    story = expected["main"]
    atoms = {
        name: eval(later(repr(atom)), {"__builtins__": {}})
        for name, atom in story.end["atoms"].items()
    }
    atoms["begin"]["row"]["attempt"] = 3
    lost = replace(
        story,
        deeds=["begin execute 1.0", "begin revert 1.0", *map(later, story.deeds)],
        end={**story.end, "atoms": atoms},
    )
    assert problems(lost, expected, lost=True, once=True) == []
    assert problems(lost, expected) != []


def test_a_reversion_that_is_lost_is_an_end_too(expected: dict[str, Story]) -> None:
    end = copy.deepcopy(expected["main"].end)
    assert end is not None
    end["state"] = "FAILURE"
    row = end["atoms"]["before"]["row"]
    row["state"] = "REVERT_FAILURE"
    story = replace(expected["main"], end=end, deeds=["before revert 1.1"])
    assert problems(story, expected, lost=True) != []
    row["revert_failure"] = {"exc_type_names": ["wbengine.exceptions.WorkerLost"]}
    assert problems(story, expected, lost=True) == []
    assert problems(story, expected) != []
    story = replace(story, deeds=["before revert 1.1"] * 2)
    assert problems(story, expected, lost=True) == ["main: before revert 1.1 was done 2 times"]


def test_deeds_are_found_in_whatever_tells_of_them() -> None:
    told = "{'a': ['each[3] revert 1.2', \"x\"], 'b': 'left execute 12.0'} " + "y" * 100_000
    assert audit.deeds_in(told) == {"each[3] revert 1.2", "left execute 12.0"}


def test_points_are_read_out_of_the_source(tmp_path: Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "_crash.py").write_text("crashpoint('no.place')\n")
    (package / "a.py").write_text(
        "def f():\n    crashpoint('a.before-b')\n    _crash.crashpoint('w.c')\n"
    )
    assert [(point.name, point.place) for point in points.find(package)] == [
        ("a.before-b", "p/a.py:2"),
        ("w.c", "p/a.py:3"),
    ]
    (package / "b.py").write_text("crashpoint(f'{x}')\n")
    with pytest.raises(ValueError, match=r"p/b\.py:1: the name of a crash point is a string"):
        points.find(package)


def test_a_process_dies_where_it_is_to(tmp_path: Path) -> None:
    # Forked by a process of its own: this one may have threads.
    ended = subprocess.run(
        [sys.executable, "-c", _DIES, str(tmp_path / "log")],
        capture_output=True, text=True, timeout=100, cwd=points.PACKAGE.parent,
    )  # fmt: skip
    assert ended.stdout.strip() == str(-signal.SIGKILL), ended.stderr
    assert (tmp_path / "log").read_text().split() == ["a", "b", "a", "b"]


_DIES = """
import sys
from pathlib import Path
sys.path.insert(0, "")
from tests.crashing import children
from wbengine import _crash

def work():
    children.Hits(children.Kill("b", 2)).install()
    for name in ("a", "b", "a", "b", "c"):
        print(name, flush=True)
        _crash.crashpoint(name)

print(children.wait(children.fork(work, Path(sys.argv[1]))))
"""


def test_a_log_with_a_traceback_is_seen(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("WARNING x: y\n")
    assert children.Clean.problems({"log": log}) == []
    log.write_text("WARNING x: y\nTraceback (most recent call last):\n")
    assert children.Clean.problems({"log": log}) == ["log says: Traceback (most recent call last):"]
