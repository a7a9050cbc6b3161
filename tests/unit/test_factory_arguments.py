"""Arguments of flow factories: conversion of JSON, and checks of callers in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import typed_orders
from tests.support.typed_orders import JSON_ORDER, ORDER, Order, Speed
from wbengine import engines, exceptions, testing
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.engines._input_types import InvalidInputs
from wbengine.persistence import backends, base, models

BILLING = f"{typed_orders.__name__}:billing"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


def flow_count(store: base.Backend) -> int:
    with contextlib.closing(store.get_connection()) as connection:
        connection.upgrade()
        return len(connection.list_flows(limit=10).flows)


def save(factory: Any, args: Any, kwargs: Any, *, backend: base.Backend) -> None:
    book, detail = models.LogBook("b"), models.FlowDetail("f")
    book.add(detail)
    try:
        engines.save_factory_details(detail, factory, args, kwargs)
    finally:
        assert (models.FACTORY in detail.meta) is False


@pytest.mark.parametrize("call", [engines.submit, engines.load_from_factory, save])
@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ([JSON_ORDER], None, r"arguments\['order'\]: expected Order"),
        (None, {"order": ORDER, "speed": "fast"}, r"arguments\['speed'\]: expected Speed"),
    ],
)
def test_python_must_pass_instances_and_nothing_is_stored(
    store: base.Backend, call: Callable[..., Any], args: Any, kwargs: Any, path: str
) -> None:
    with pytest.raises(TypeError, match=path):
        call(typed_orders.billing, args, kwargs, backend=store)
    assert flow_count(store) == 0


def test_instances_are_stored_as_they_are_passed(store: base.Backend) -> None:
    handle = engines.submit(
        typed_orders.billing, iter([ORDER]), {"speed": Speed.FAST}, backend=store
    )
    with contextlib.closing(store.get_connection()) as connection:
        note = connection.get_flow_details(handle.id).meta[models.FACTORY]
    assert (note["args"], note["kwargs"]) == ([ORDER], {"speed": Speed.FAST})


def test_iterator_of_arguments_is_stored(store: base.Backend) -> None:
    engine = engines.load_from_factory(typed_orders.billing, iter([ORDER]), backend=store)
    assert engine.storage.flow_detail.meta[models.FACTORY]["args"] == [ORDER]


def test_json_is_converted_before_it_is_stored(store: base.Backend) -> None:
    arguments = JsonInputs(order=JSON_ORDER, speed="fast")
    handle = engines.submit(BILLING, factory_kwargs=arguments, backend=store)
    with contextlib.closing(store.get_connection()) as connection:
        note = connection.get_flow_details(handle.id).meta[models.FACTORY]
    assert note["kwargs"] == {"order": ORDER, "speed": Speed.FAST}
    assert isinstance(note["kwargs"]["order"], Order)
    testing.run_submitted(store)
    assert handle.result(10)["bill"] == "bill 7 fast"


def test_all_faults_of_json_are_in_one_error(store: base.Backend) -> None:
    arguments = JsonInputs(order={"number": "7"}, speed="fats")
    with pytest.raises(InvalidInputs) as caught:
        engines.submit(BILLING, factory_kwargs=arguments, backend=store)
    assert str(caught.value) == (
        f"Invalid arguments of flow factory {BILLING!r}: arguments['order'].number: expected int,"
        " got '7'; arguments['order'].lines: missing, expected list[Line]; arguments['speed']:"
        " expected Speed ('slow', 'fast'), got 'fats'"
    )
    assert (caught.value.path, list(caught.value.faults)) == ("arguments", ["order", "speed"])
    assert flow_count(store) == 0


def test_json_and_instances_are_the_same_for_a_unique_key(store: base.Backend) -> None:
    options: dict[str, Any] = {"backend": store, "unique": "7", "unique_for": "1h"}
    handle = engines.submit(BILLING, factory_kwargs={"order": ORDER}, **options)
    again = engines.submit(BILLING, factory_kwargs=JsonInputs(order=JSON_ORDER), **options)
    assert again.id == handle.id
    with pytest.raises(exceptions.UniqueKeyConflict):
        other = JsonInputs(order={**JSON_ORDER, "number": 8})
        engines.submit(BILLING, factory_kwargs=other, **options)


def test_wrong_names_are_errors_of_the_call(store: base.Backend) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'ordr'"):
        engines.submit(BILLING, factory_kwargs=JsonInputs(ordr=JSON_ORDER), backend=store)
