"""`wbengine limits` lists the limits in use."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from wbengine._limits import shared_accounts
from wbengine._limits.permit_rules import PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.persistence import backends

FOUR = Quota("100/m", 0.6, 4)


def take(store: shared_accounts.Store) -> None:
    store.settle({"shop.call[eve]": (FOUR, [PermitRequest("f1", 1, 2, 0, 60)])})
    store.settle({"shop.call[eve]": (FOUR, [PermitRequest("f2", 1, 1, 30, 60)])})
    store.settle({"gone": (FOUR, [PermitRequest("f3", 1, 1, 0, 0.001)])})


def test_limits_of_the_store_are_listed(wbengine: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    with backends.backend(url) as backend:
        take(shared_accounts.store_of(backend))
    answer = wbengine("limits", "--persistence", url)
    assert answer.code == 0
    head, line = answer.out.splitlines()
    assert head.split("  ")[0] == "LIMIT"
    assert line.split() == ["shop.call[eve]", "100/m", "4", "4", "29", "2"]
    document = wbengine("limits", "--persistence", url, "--json").json
    assert document["schema"] == "wbengine/limits/1"
    (limit,) = document["limits"]
    assert (limit["name"], limit["rate"], limit["concurrency"]) == ("shop.call[eve]", "100/m", 4)
    assert limit["flows"] == [
        {"uuid": "f1", "held": 2, "waiting": 0},
        {"uuid": "f2", "held": 2, "waiting": 29},
    ]


def test_limits_of_a_redis_are_listed(wbengine: Command, redis_url: str) -> None:
    take(shared_accounts.store_of(redis_url))
    answer = wbengine("limits", "--redis", redis_url)
    assert answer.code == 0 and answer.out.splitlines()[1].split()[:2] == [
        "shop.call[eve]",
        "100/m",
    ]


def test_url_that_is_not_redis_is_refused(wbengine: Command) -> None:
    answer = wbengine("limits", "--redis", "amqp://x")
    assert answer.code == 2 and "must be the URL of a Redis" in answer.err
