"""Flows that pass values unchanged."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import flow
from wbengine import retry
from wbengine.patterns import linear_flow

UTC = dt.UTC

PLAIN: dict[str, Any] = {
    "none": None,
    "true": True,
    "numbers": [0, -1, 1.5, 2**80, -0.0, math.inf],
    "texts": ["", "ü€𝄞", "nul\0", "line\nbreak", "\ud800"],
    "nested": {"a": {"b": [{"c": []}]}},
}
MOMENTS = {
    "datetime": dt.datetime(2024, 2, 29, 23, 59, 59, 123456),
    "aware": dt.datetime(2024, 7, 1, 12, tzinfo=UTC),
    "east": dt.datetime(2024, 7, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    "date": dt.date(1, 1, 1),
    "time": dt.time(1, 2, 3, tzinfo=UTC),
    "span": dt.timedelta(days=-1, microseconds=1),
}
ODD = {
    "tuple": (1, (2, [3, (4,)]), ()),
    "set": {1, "a", (2, 3)},
    "frozenset": frozenset({b"x"}),
    "bytes": bytes(range(256)),
    "uuid": uuid.UUID(int=7),
    "decimal": decimal.Decimal("1.10"),
    "complex": 1 - 2j,
}
KEYS = {1: "int", (1, 2): "tuple", None: "none", b"k": "bytes", dt.date(2024, 1, 1): "date", "s": 0}


def _through(name: str, value: Any) -> Any:
    """Return a flow that passes a value as argument and result through two tasks."""
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides="first", inject={"value": value}),
        tasks.Give("b", provides=name, rebind={"value": "first"}),
    )


def _both(name: str, value: Any) -> dict[str, Any]:
    return {"results": {"first": value, name: value}}


@flow(">a +a >b +b", **_both("plain", PLAIN))
def plain_values() -> Any:
    return _through("plain", PLAIN)


@flow(">a +a >b +b", **_both("moments", MOMENTS))
def moments() -> Any:
    return _through("moments", MOMENTS)


@flow(">a +a >b +b", **_both("odd", ODD))
def tuples_sets_bytes_and_numbers() -> Any:
    return _through("odd", ODD)


@flow(">a +a >b +b", **_both("keys", KEYS))
def non_string_keys() -> Any:
    return _through("keys", KEYS)


@flow(">a +a >b +b", **_both("big", ["x" * 1_000_000, "ü" * 500_000]))
def megabyte_values() -> Any:
    return _through("big", ["x" * 1_000_000, "ü" * 500_000])


@flow(">a +a >b +b", **_both("many", {n: (n, str(n)) for n in range(5000)}))
def many_small_values() -> Any:
    return _through("many", {n: (n, str(n)) for n in range(5000)})


@flow(">a +a >b +b", store=ODD, results={"a": ODD["tuple"], "b": ODD["set"]})
def values_from_store() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides="a", rebind={"value": "tuple"}),
        tasks.Give("b", provides="b", rebind={"value": "set"}),
    )


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"odd": ODD},
    raises={"b": (ValueError, "b fails")},
    told={"a": [{"result": ODD, "odd": ODD}], "b": ["ValueError(b fails) | b"]},
)
def values_passed_through_revert() -> Any:
    return linear_flow.Flow("f").add(tasks.Carries("a"), tasks.Boom("b"))


@flow(
    ">r +r >a !a <a -a ?r .a >r +r >a +a",
    results={"value": (1, b"2"), "a": (1, b"2")},
    told={"a": ["TypeError(not this one) | a"]},
    history={"r": [(dt.date(2024, 1, 1), "a:TypeError"), ((1, b"2"), "")]},
)
def values_provided_by_retry() -> Any:
    values = [dt.date(2024, 1, 1), (1, b"2")]
    return linear_flow.Flow("f", retry.ForEach(values, "r", provides="value")).add(
        tasks.WantsTuple("a", provides="a")
    )


@flow(
    ">a +a >b +b",
    store={"value": {"shared": [1]}},
    results={"a": {"shared": [1, "changed"]}, "b": {"shared": [1]}},
    kinds=["processes", "memory", "filesystem"],
)
def changed_argument_is_not_visible_to_other_tasks() -> Any:
    """In the process of their engine tasks share arguments and must copy them before a change."""
    return linear_flow.Flow("f").add(
        tasks.Changes("a", provides="a"), tasks.Give("b", provides="b")
    )
