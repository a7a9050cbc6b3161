"""Records as JSON trees: what was kept comes back equal, and what cannot be kept is named."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import exceptions, states
from wbengine.persistence import models, trees
from wbengine.types import codec
from wbengine.types import failure as ft


@codec.allow
@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    due: dt.date


@codec.allow
class Colour(enum.Enum):
    RED = 1


def failed(error: BaseException) -> ft.Failure:
    failure = ft.Failure.from_exception(error)
    failure.traceback_str  # noqa: B018  (rendered now, so that copies are equal)
    return failure


FAILURES = [
    failed(ValueError("no", 1)),
    failed(KeyError(("a", b"b"))),
    failed(RuntimeError("torn ü")),
    failed(OSError(5, "\x00 and ü")),
]
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=9)
    | st.dates()
    | st.decimals(allow_nan=False)
    | st.just(Colour.RED)
    | st.builds(Order, st.integers(), st.dates())
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)
moments = st.datetimes().map(lambda moment: moment.replace(fold=0))
metas = st.none() | st.dictionaries(st.text(max_size=4), values, max_size=2)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
fails = st.none() | st.sampled_from(FAILURES)
history = st.lists(
    st.tuples(values, st.dictionaries(names, st.sampled_from(FAILURES), max_size=2)), max_size=3
)


@st.composite
def records(draw: Any) -> Any:
    kind = draw(st.sampled_from(["book", "flow", "task", "retry", "item"]))
    record: Any
    if kind == "item":
        record = models.ItemDetail(draw(st.integers(0, 9)), draw(values), draw(st.integers(0, 9)))
        record.order = draw(st.integers(0, 9))
    elif kind in ("book", "flow"):
        record = models.LogBook(draw(names)) if kind == "book" else models.FlowDetail(draw(names))
        record.meta = draw(metas)
        if kind == "book":
            record.updated_at = draw(st.none() | moments)
        else:
            record.state = draw(st.none() | st.sampled_from(sorted(states.FLOW_STATES)))
        return kind, record
    else:
        record = models.RetryDetail(draw(names)) if kind == "retry" else models.TaskDetail("t")
        record.intention = draw(st.sampled_from(states.INTENTIONS))
        record.version = draw(st.none() | st.just("1.2"))
        record.attempt, record.epoch = draw(st.integers(0, 9)), draw(st.integers(0, 9999))
        record.progress = draw(st.none() | st.floats(0, 1))
        record.progress_details = draw(values)
        record.meta = draw(metas)
        record.items = draw(st.none() | st.builds(models.Items, st.integers(1, 9)))
    record.state = draw(st.sampled_from(sorted(states.ATOM_STATES)))
    record.results = draw(history if kind == "retry" else values)
    record.failure, record.revert_failure = draw(fails), draw(fails)
    record.revert_results = draw(values)
    record.worker = draw(st.none() | st.just("w"))
    record.started = draw(st.none() | st.floats(0, 9))
    return kind, record


@given(records())
def test_what_is_kept_comes_back(made: tuple[str, Any]) -> None:
    """Through strict JSON text, for every kind of record: equal, and of the same types.

    A retry's history too: what was provided stays apart from the failures.
    """
    kind, record = made
    tree = trees.tree_of(record)
    assert trees.kind_of(record) == kind
    again = trees.record_of(kind, json.loads(json.dumps(tree, allow_nan=False)))
    assert type(again) is type(record)
    expected, found = record.to_dict(), again.to_dict()
    for told in (expected, found):
        for key in [key for key in told if "fail" in key or (kind == "retry" and key == "results")]:
            told[key] = plain(told[key])
    assert repr(found) == repr(expected)
    if kind in ("task", "retry", "item"):
        mine, theirs = again.failure, record.failure
        assert (mine is None) == (theirs is None) and (mine is None or mine.matches(theirs))


def plain(told: Any) -> Any:
    """Tuples and lists alike."""
    return json.loads(json.dumps(told, default=repr))


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
