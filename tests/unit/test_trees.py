"""Records as JSON: special values, unstorable values and invalid records."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from wbengine import exceptions, states
from wbengine.persistence import _trees, models
from wbengine.persistence._commands import FlowCommand
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


def test_values_without_json_form_round_trip() -> None:
    record = models.TaskDetail("t")
    value = {
        1: (2, {3}),
        "when": dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
        "exact": Decimal("1.10"),
        "nan": math.inf,
        "raw": b"\x00\xff",
        "order": Order(1, dt.date(2020, 1, 1)),
        "bad": "\ud800",
    }
    record.results = value
    again = _trees.record_of("task", json.loads(json.dumps(_trees.tree_of(record))))
    assert again.results == value and type(again.results[1]) is tuple


def test_release_0_1_reads_the_history_of_a_flow() -> None:
    """It reads three values of each change, and ignores unknown fields."""
    record = models.FlowDetail("f")
    record.enter(states.RUNNING, 1.0)
    record.enter(states.FAILURE, 2.0, "ValueError: no", "ValueError")
    tree = json.loads(json.dumps(_trees.tree_of(record)))
    assert tree["history"] == [["RUNNING", 1.0, None], ["FAILURE", 2.0, "ValueError: no"]]
    assert _trees.record_of("flow", tree).history == record.history
    assert models.FlowDetail.from_dict(record.to_dict()).history == record.history
    assert record.copy().history == record.history


def test_command_of_release_0_1_is_read() -> None:
    stored = {"what": "cancel", "reason": "late", "by": "Ann", "at": 1.0, "epoch": 0}
    command = FlowCommand.from_dict(stored)
    assert command == FlowCommand("cancel", "late", "Ann", 1.0)


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        (lambda t: setattr(t, "results", {"a": [1, object()]}), "results['a'][1]", "task 'x' cann"),
        (lambda t: setattr(t, "meta", {"k": print}), "meta['k']", "builtin_function_or_method"),
        (lambda t: setattr(t, "revert_results", [iter(())]), "revert_results[0]", "tuple_iterator"),
        (lambda t: setattr(t, "progress_details", {1: {2: open}}), "progress_details[1][2]", ""),
    ],
    ids=["results", "meta", "revert_results", "progress_details"],
)
def test_unstorable_value_error_names_record_path_and_type(
    change: Any, path: str, words: str
) -> None:
    record = models.TaskDetail("x")
    change(record)
    with pytest.raises(exceptions.NotEncodable) as caught:
        _trees.tree_of(record)
    assert caught.value.path == path and caught.value.type_name
    assert words in str(caught.value) and str(caught.value).startswith("task 'x' cannot be saved: ")


def test_unstorable_value_error_names_retries_items_and_books() -> None:
    retry = models.RetryDetail("r")
    retry.results = [(1, {}), (object(), {})]
    for record, words in (
        (retry, "retry 'r' cannot be saved: results: object"),
        (models.ItemDetail(7, object(), 1), "item 7 cannot be saved: value: object"),
        (models.TaskDetail("\ud800"), "cannot be saved: name: str with lone surrogates"),
        (models.LogBook("\udfff"), "cannot be saved: name: str with lone surrogates"),
    ):
        with pytest.raises(exceptions.NotEncodable) as caught:
            _trees.tree_of(record)
        assert words in str(caught.value)


class Odd(Exception):
    """Exception without a readable message or storable arguments."""

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
def test_failures_with_any_exception_can_be_stored(error: BaseException) -> None:
    record = models.TaskDetail("t")
    record.put(states.FAILURE, failed(error))
    text = json.dumps(_trees.tree_of(record), allow_nan=False).encode()
    again = _trees.record_of("task", json.loads(text))
    assert again.failure.check(type(error)) is type(error)


def test_huge_failures_are_shortened_when_stored() -> None:
    """A record could otherwise exceed the limits of a store; in memory nothing is shortened."""
    try:
        raise RuntimeError("short") from ValueError("x" * 10_000_000)
    except RuntimeError as error:
        huge = failed(error)
    task, retry = models.TaskDetail("t"), models.RetryDetail("r")
    task.put(states.FAILURE, huge)
    task.revert_failure = huge
    retry.results = [(1, {"t": huge})]
    for record in (task, retry):
        tree = _trees.tree_of(record)
        assert len(json.dumps(tree)) < 500_000
        again = _trees.record_of(record.kind, tree)
        kept = again.failure if record is task else again.results[0][1]["t"]
        assert kept.causes[0].exception_str.endswith("x... (10000000 characters)")
        assert kept.causes[0].check(ValueError)
    assert len(huge.causes[0].exception_str) == 10_000_000


TASK = _trees.tree_of(models.TaskDetail("t"))


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        pytest.param("task", {}, id="empty"),
        pytest.param("task", None, id="none"),
        pytest.param("task", [], id="list"),
        pytest.param("task", {**TASK, "name": 3}, id="name"),
        pytest.param("task", {**TASK, "state": "HAPPY"}, id="state"),
        pytest.param("task", {**TASK, "state": []}, id="state_list"),
        pytest.param("task", {**TASK, "intention": "MAYBE"}, id="intention"),
        pytest.param("task", {**TASK, "attempt": "1"}, id="attempt"),
        pytest.param("task", {**TASK, "meta": 3}, id="meta_number"),
        pytest.param("task", {**TASK, "meta": [1, 2]}, id="meta_list"),
        pytest.param("task", {**TASK, "results": {"$wbe": "nonsense"}}, id="results"),
        pytest.param("task", {**TASK, "failure": 3}, id="failure_number"),
        pytest.param("task", {**TASK, "failure": {"version": 1}}, id="failure_dict"),
        pytest.param("task", {**TASK, "items": 3}, id="items_number"),
        pytest.param("task", {**TASK, "items": {"resumed": 1}}, id="items_dict"),
        pytest.param("retry", {**TASK, "results": [1]}, id="retry_results"),
        pytest.param("retry", {**TASK, "results": [[1, 2]]}, id="retry_result_items"),
        pytest.param("flow", {"name": "f", "uuid": "u", "state": "PENDING!"}, id="flow_state"),
        pytest.param("book", {"name": "b", "uuid": "u", "created_at": "yesterday"}, id="book_time"),
        pytest.param("item", {"value": 1}, id="item_without_index"),
        pytest.param("item", {"index": "0", "attempt": 1, "state": "SUCCESS"}, id="item_index"),
        pytest.param("shelf", {}, id="unknown_kind"),
    ],
)
def test_invalid_record_raises_invalid_format(kind: str, tree: Any) -> None:
    with pytest.raises(exceptions.InvalidFormat):
        _trees.record_of(kind, tree)


def test_unknown_keys_are_ignored_and_missing_ones_have_defaults() -> None:
    again = _trees.record_of("task", {"name": "t", "uuid": "u", "mood": "fine"})
    assert (again.name, again.state, again.attempt) == ("t", None, 0)
