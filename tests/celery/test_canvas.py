"""Chains, groups and chords of Celery clients, on workers of wbengine and of Celery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.celery.conftest import Bed, Beds
from tests.celery.journal import lines
from tests.celery.peers import CallFailed
from tests.support.workers import until


def test_chain_of_100_tasks_runs(bed: Bed, protocol: int) -> None:
    """In version 1 each task is the callback of the previous one: 100 nested signatures."""
    assert bed.using(task_protocol=protocol).call("chain", 100) == [100, 99]


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "length"), [("processes", 200), ("threads", 320)])
def test_longest_chain_of_protocol_version_1_runs(beds: Beds, pool: str, length: int) -> None:
    """Celery's JSON encoder limits the length: each task adds three levels."""
    bed = beds.get("wbengine", "redis", "redis", pool).using(task_protocol=1)
    assert bed.call("chain", length) == [length, length - 1]
    with pytest.raises(CallFailed) as info:
        bed.call("chain", 400)
    assert info.value.told["type"] == "EncodeError"


@pytest.mark.slow
@pytest.mark.parametrize("storing", [("wbengine", "redis", "redis")], indirect=True, ids="-".join)
def test_chain_of_300_tasks_runs(storing: Bed) -> None:
    """Each message contains the rest of the chain: the total size grows with the square of the
    length.
    """
    assert storing.call("chain", 300) == [300, 299]


def test_chain_stops_at_failed_task_and_calls_errback(bed: Bed, tmp_path: Path) -> None:
    answer = bed.call("broken_chain", str(tmp_path))
    assert answer["first"] == 2
    assert answer["failed"]["error"]["args"] == ["broken", 7]
    assert answer.get("last", ["ValueError", "FAILURE"]) == ["ValueError", "FAILURE"]
    until(lambda: lines(tmp_path / "bad"))
    assert lines(tmp_path / "bad") == [f"error of {answer['failed']['id']}"]
    assert not lines(tmp_path / "good")


def test_groups_maps_and_signatures_return_results(bed: Bed, protocol: int) -> None:
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


def test_chord_bodies_receive_header_results(storing: Bed, protocol: int) -> None:
    answer = storing.using(task_protocol=protocol).call("chords")
    # Celery's clients number the parts of a nested group with duplicates.
    answer["groups as parts"] = sorted(answer["groups as parts"])
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
    if protocol == 1:  # version 1 does not number the parts
        answer, expected = in_order(answer), in_order(expected)
    assert answer == expected


def in_order(value: Any) -> Any:
    """Return the value with all lists sorted."""
    if isinstance(value, dict):
        return {name: in_order(each) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    return sorted((in_order(each) for each in value), key=repr)


@pytest.mark.parametrize("chained", [False, True], ids=["a task", "a chain"])
def test_chord_with_failed_header_fails_and_calls_errback(
    storing: Bed, chained: bool, tmp_path: Path
) -> None:
    answer = storing.call("failing_chord", str(tmp_path), chained)
    assert answer["parts"] == ["SUCCESS", "FAILURE", "SUCCESS"]
    assert answer["state"] == "FAILURE"
    assert (answer["body"]["module"], answer["body"]["type"]) == ("celery.exceptions", "ChordError")
    assert "one part" in answer["body"]["text"]
    until(lambda: lines(tmp_path / "bad"))
    assert lines(tmp_path / "bad") == [f"error of {answer['id']}"]
    assert not lines(tmp_path / "good")
