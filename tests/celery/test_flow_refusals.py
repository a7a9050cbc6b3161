"""Flows whose broker, or the Redis of their results, refuses who asks: nobody waits for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import engines, exceptions
from wbengine.interop.celery.client import absence, link
from wbengine.interop.celery.client.task import CeleryTask
from wbengine.patterns import linear_flow


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    link.close_all()


def wrong(url: Any) -> str:
    """The same place, for somebody with another password."""
    scheme, _, rest = str(url).partition("://")
    user, _, where = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:wrong@{where}"


@pytest.mark.parametrize(
    ("refuses", "engine"), [("redis", "parallel"), ("rabbitmq", "serial"), ("results", "parallel")]
)
def test_a_wrong_password_is_told_at_once(
    refuses: str, engine: str, broker_servers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Authentication that failed is not tried again for as long as a broker may be away."""
    of_broker, of_results = ("rabbitmq", "redis") if refuses == "results" else (refuses, None)
    with broker_servers[of_broker].place() as url, broker_servers["redis"].place() as store:
        if of_results is None:
            broker, backend = wrong(url), "rpc://"
        else:
            broker, backend = str(url), wrong(store)
        flow = linear_flow.Flow("f").add(CeleryTask("x", broker, result_backend=backend))
        with pytest.raises(exceptions.TransportFailure, match="refuses this user or password"):
            engines.run(flow, engine=engine)
    # Whoever tries again says so first.
    told = [one.getMessage() for one in caplog.records if one.name == absence.LOG.name]
    assert not [line for line in told if "cannot be reached" in line]
