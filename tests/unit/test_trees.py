"""Records as JSON trees: what has no word in JSON, and what cannot be kept, which is named.

That every field comes back is in `tests/contract/test_backends.py`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from wbengine import exceptions, states
from wbengine.persistence import models, trees
from wbengine.types import codec
from wbengine.types import failure as ft


@codec.allow
@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    due: dt.date


def failed(error: BaseException) -> ft.Failure:
    failure = ft.Failure.from_exception(error)
    failure.traceback_str  # noqa: B018  (rendered now, so that copies are equal)
    return failure


def test_everything_json_has_no_word_for() -> None:
    """In a result, one of each."""
    record = models.TaskDetail("t")
    value = {
        1: (2, {3}),
        "when": dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc),
        "exact": Decimal("1.10"),
        "nan": math.inf,
        "raw": b"\x00\xff",
        "order": Order(1, dt.date(2020, 1, 1)),
        "bad": "\ud800",
    }
    record.results = value
    again = trees.record_of("task", json.loads(json.dumps(trees.tree_of(record))))
    assert again.results == value and type(again.results[1]) is tuple


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        (lambda t: setattr(t, "results", {"a": [1, object()]}), "results['a'][1]", "task 'x' cann"),
        (lambda t: setattr(t, "meta", {"k": print}), "meta['k']", "builtin_function_or_method"),
        (lambda t: setattr(t, "revert_results", [iter(())]), "revert_results[0]", "tuple_iterator"),
        (lambda t: setattr(t, "progress_details", {1: {2: open}}), "progress_details[1][2]", ""),
    ],
)
def test_what_cannot_be_kept_is_named(change: Any, path: str, words: str) -> None:
    """The record, the path in it, and the type."""
    record = models.TaskDetail("x")
    change(record)
    with pytest.raises(exceptions.NotEncodable) as caught:
        trees.tree_of(record)
    assert caught.value.path == path and caught.value.type_name
    assert words in str(caught.value) and str(caught.value).startswith("task 'x' cannot be kept: ")


def test_other_records_are_named_too() -> None:
    retry = models.RetryDetail("r")
    retry.results = [(1, {}), (object(), {})]
    for record, words in (
        (retry, "retry 'r' cannot be kept: results: object"),
        (models.ItemDetail(7, object(), 1), "item 7 cannot be kept: value: object"),
        (models.TaskDetail("\ud800"), "cannot be kept: name: str with lone surrogates"),
        (models.LogBook("\udfff"), "cannot be kept: name: str with lone surrogates"),
    ):
        with pytest.raises(exceptions.NotEncodable) as caught:
            trees.tree_of(record)
        assert words in str(caught.value)


class Odd(Exception):
    """Its message cannot be told, its arguments cannot be kept."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    "error",
    [
        Odd(object(), {1: 2}),
        ValueError(10**5000),
        ValueError(float("nan"), {"deep": [[[[[[[[[[1]]]]]]]]]]}),
        RuntimeError("\ud800", b"\xff"),
        KeyboardInterrupt(),
        OSError(5, "\x00"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failures_can_always_be_kept(error: BaseException) -> None:
    """Whatever their exceptions hold."""
    record = models.TaskDetail("t")
    record.put(states.FAILURE, failed(error))
    text = json.dumps(trees.tree_of(record), allow_nan=False).encode()
    again = trees.record_of("task", json.loads(text))
    assert again.failure.check(type(error)) is type(error)


def test_of_huge_failures_the_beginning_is_kept() -> None:
    """Or a record would grow beyond what a store can hold; in memory nothing is cut."""
    try:
        raise RuntimeError("short") from ValueError("x" * 10_000_000)
    except RuntimeError as error:
        huge = failed(error)
    task, retry = models.TaskDetail("t"), models.RetryDetail("r")
    task.put(states.FAILURE, huge)
    task.revert_failure = huge
    retry.results = [(1, {"t": huge})]
    for record in (task, retry):
        tree = trees.tree_of(record)
        assert len(json.dumps(tree)) < 500_000
        again = trees.record_of(record.kind, tree)
        kept = again.failure if record is task else again.results[0][1]["t"]
        assert kept.causes[0].exception_str.endswith("x... (10000000 characters)")
        assert kept.causes[0].check(ValueError)
    assert len(huge.causes[0].exception_str) == 10_000_000


TASK = trees.tree_of(models.TaskDetail("t"))


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        ("task", {}),
        ("task", None),
        ("task", []),
        ("task", {**TASK, "name": 3}),
        ("task", {**TASK, "state": "HAPPY"}),
        ("task", {**TASK, "state": []}),
        ("task", {**TASK, "intention": "MAYBE"}),
        ("task", {**TASK, "attempt": "1"}),
        ("task", {**TASK, "meta": 3}),
        ("task", {**TASK, "meta": [1, 2]}),
        ("task", {**TASK, "results": {"$wbe": "nonsense"}}),
        ("task", {**TASK, "failure": 3}),
        ("task", {**TASK, "failure": {"version": 1}}),
        ("task", {**TASK, "items": 3}),
        ("task", {**TASK, "items": {"resumed": 1}}),
        ("retry", {**TASK, "results": [1]}),
        ("retry", {**TASK, "results": [[1, 2]]}),
        ("flow", {"name": "f", "uuid": "u", "state": "PENDING!"}),
        ("book", {"name": "b", "uuid": "u", "created_at": "yesterday"}),
        ("item", {"value": 1}),
        ("item", {"index": "0", "attempt": 1, "state": "SUCCESS"}),
        ("shelf", {}),
    ],
)
def test_what_is_no_record_is_refused(kind: str, tree: Any) -> None:
    """With one typed error, whatever is wrong."""
    with pytest.raises(exceptions.InvalidFormat):
        trees.record_of(kind, tree)


def test_keys_of_later_versions_are_left_alone() -> None:
    """And missing ones keep their defaults."""
    again = trees.record_of("task", {"name": "t", "uuid": "u", "mood": "fine"})
    assert (again.name, again.state, again.attempt) == ("t", None, 0)
