"""Instances of pydantic, attrs and msgspec in all stores, brokers and child processes."""

from __future__ import annotations

import contextlib
import decimal
import ipaddress
import pathlib
import uuid
from typing import Any

import pytest

from tests.contract import places
from tests.support import brokers, instance_tasks
from tests.support import value_classes as vc
from wbengine import engines
from wbengine.persistence import base, models
from wbengine.testing import worker_in_thread

VALUES: tuple[Any, ...] = (
    vc.Order(id=uuid.UUID(int=7), total=decimal.Decimal("1.10"), items=[vc.Item(sku="a\0b")]),
    {vc.Point(x=1): vc.Box[int](content=2)},
    vc.Open.model_validate({"known": 2, "more": {1: (2, {3})}}),
    vc.Counter(start=2).count(),
    vc.Owner(pet=vc.Cat()),
    vc.Price(decimal.Decimal(3)),
    (vc.Part("p", 1.5), vc.Key("k"), vc.Frame(1, (vc.Status.PAID,))),
    [pathlib.Path("/a"), ipaddress.ip_interface("::1/64")],
)


def check(values: Any) -> None:
    assert values == VALUES
    for value, original in zip(values, VALUES, strict=True):
        assert type(value) is type(original)
    assert values[0].model_fields_set == VALUES[0].model_fields_set


@places.everywhere
def test_instances_are_stored(backend: base.Backend) -> None:
    engine = engines.load(instance_tasks.hand_on(), {"values": VALUES}, backend=backend)
    engine.run()
    with contextlib.closing(backend.get_connection()) as connection:
        detail = connection.get_flow_details(engine.storage.flow_uuid)
    for atom in detail:
        assert isinstance(atom, models.TaskDetail)
        check(atom.results["values"] if atom.name == models.INJECTOR else atom.results)


def test_child_process_receives_and_returns_instances() -> None:
    check(
        engines.run(
            instance_tasks.hand_on(),
            {"values": VALUES},
            engine="parallel",
            executor="processes",
        )["returned"]
    )


@pytest.mark.parametrize("broker", ["memory", "filesystem", "redis", "rabbitmq"])
def test_worker_receives_and_returns_instances(
    broker: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> None:
    url = brokers.broker_url(broker, request, tmp_path)
    with worker_in_thread(url, instance_tasks):
        values = engines.run(
            instance_tasks.hand_on(), {"values": VALUES}, engine="workers", url=url
        )
    check(values["returned"])
