"""Chains, groups and chords of real clients, on our workers and on Celery's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.celery.conftest import Bed, Beds
from tests.celery.journal import lines
from tests.celery.peers import CallFailed
from tests.support.workers import until


def test_a_chain_of_a_hundred(bed: Bed, protocol: int) -> None:
    """In version 1 each is the callback of the one before it: a hundred signatures deep."""
    assert bed.using(task_protocol=protocol).call("chain", 100) == [100, 99]


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "length"), [("processes", 200), ("threads", 320)])
def test_long_chains_of_version_1(beds: Beds, pool: str, length: int) -> None:
    """Up to the longest that Celery's client can write: it has three levels for each task."""
    bed = beds.get("wbengine", "redis", "redis", pool).using(task_protocol=1)
    assert bed.call("chain", length) == [length, length - 1]
    with pytest.raises(CallFailed) as info:
        bed.call("chain", 400)
    assert info.value.told["type"] == "EncodeError"


@pytest.mark.slow
@pytest.mark.parametrize("storing", [("wbengine", "redis", "redis")], indirect=True, ids="-".join)
def test_a_chain_of_three_hundred(storing: Bed) -> None:
    """Each message has the rest of the chain: what all cost grows with the square of its length."""
    assert storing.call("chain", 300) == [300, 299]


def test_a_chain_that_breaks(bed: Bed, tmp_path: Path) -> None:
    told = bed.call("broken_chain", str(tmp_path))
    assert told["first"] == 2
    assert told["failed"]["error"]["args"] == ["broken", 7]
    assert told.get("last", ["ValueError", "FAILURE"]) == ["ValueError", "FAILURE"]
    until(lambda: lines(tmp_path / "bad"))
    assert lines(tmp_path / "bad") == [f"error of {told['failed']['id']}"]
    assert not lines(tmp_path / "good")


def test_groups_maps_and_signatures(bed: Bed, protocol: int) -> None:
    assert bed.using(task_protocol=protocol).call("flows") == {
        "immutable": 22,
        "group": list(range(0, 40, 2)),
        "groups in groups": [2, 4, 6],
        "chains in a group": [20, 400],
        "a group behind": [12, 20],
        "map": [1, "b", [3]],
        "starmap": [3, 7],
        "chunks": [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]],
        "partial": 3,
        "kwargs": "ab",
        "options": 3,
    }


def test_chords(storing: Bed, protocol: int) -> None:
    told = storing.using(task_protocol=protocol).call("chords")
    # Celery's clients give the parts of a group within a group numbers that repeat.
    told["groups as parts"] = sorted(told["groups as parts"])
    expected = {
        "chord": 870,
        "in order": list("abcdefghijklmno"),
        "of one": 2,
        "immutable": "body",
        "upgraded": 106,
        "in the midst": 32,
        "two": 6,
        "chains as parts": [20, 4, 9],
        "groups as parts": [1, 2, 3],
        "chords as parts": [6, 1],
        "a chain as body": 21,
        "a group as body": [3, [1, 2]],
    }
    if protocol == 1:  # it has no numbers of parts
        told, expected = in_order(told), in_order(expected)
    assert told == expected


def in_order(value: Any) -> Any:
    """Lists sorted, within others too."""
    if isinstance(value, dict):
        return {name: in_order(each) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    return sorted((in_order(each) for each in value), key=repr)


@pytest.mark.parametrize("chained", [False, True], ids=["a task", "a chain"])
def test_a_chord_whose_header_fails(storing: Bed, chained: bool, tmp_path: Path) -> None:
    """Its body is not called: its result is a failure, and its errbacks are told."""
    told = storing.call("failing_chord", str(tmp_path), chained)
    assert told["parts"] == ["SUCCESS", "FAILURE", "SUCCESS"]
    assert told["state"] == "FAILURE"
    assert (told["body"]["module"], told["body"]["type"]) == ("celery.exceptions", "ChordError")
    assert "one part" in told["body"]["text"]
    until(lambda: lines(tmp_path / "bad"))
    assert lines(tmp_path / "bad") == [f"error of {told['id']}"]
    assert not lines(tmp_path / "good")
