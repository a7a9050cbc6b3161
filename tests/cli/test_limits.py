"""`wbengine limits` lists limits and changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command
from wbengine._limits import account_stores
from wbengine._limits.permit_sharing import PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base

FOUR = Quota("100/m", 0.6, 4)


def take(store: account_stores.Store) -> None:
    store.settle({"shop.call[eve]": (FOUR, [PermitRequest("f1", 1, 2, 0, 60)])})
    store.settle({"shop.call[eve]": (FOUR, [PermitRequest("f2", 1, 1, 30, 60)])})
    store.settle({"gone": (FOUR, [PermitRequest("f3", 1, 1, 0, 0.001)])})


@pytest.fixture
def taken(store: base.Backend) -> None:
    take(account_stores.store_of(store))


def test_limits_of_the_store_are_listed(wbengine: Command, taken: None) -> None:
    answer = wbengine("limits")
    assert answer.code == 0
    head, line = answer.out.splitlines()
    assert head.split("  ")[0] == "LIMIT"
    assert line.split() == ["shop.call[eve]", "100/m", "4", "4", "-", "29", "2", "-", "-"]
    document = wbengine("limits", "--json").json
    assert document["schema"] == "wbengine/limits/1"
    (limit,) = document["limits"]
    assert (limit["name"], limit["rate"], limit["concurrency"]) == ("shop.call[eve]", "100/m", 4)
    assert limit["flows"] == [
        {"uuid": "f1", "held": 2, "waiting": 0},
        {"uuid": "f2", "held": 2, "waiting": 29},
    ]


def test_values_of_a_limit_that_only_parked_flows_use_are_unknown(
    wbengine: Command, store: base.Backend
) -> None:
    wbengine("flow", "submit", "tests.cli.shop:order")
    with boards.backend("b", "sql", persistence=store) as board:
        assert isinstance(board, impl_sql.SQLJobBoard)
        (job,) = board.take("c", 1)
        board.park(job, "c", None, None, limit="flow order[ann]")
    _, line = wbengine("limits").out.splitlines()
    assert line.split()[-8:] == ["?", "?", "0", "-", "1", "1", "-", "-"]
    (limit,) = wbengine("limits", "--json").json["limits"]
    assert (limit["parked"], limit["defined"], limit["flows"]) == (1, None, [])


def test_limits_of_a_redis_are_listed(wbengine: Command, redis_url: str) -> None:
    take(account_stores.store_of(redis_url))
    answer = wbengine("limits", "--redis", redis_url)
    assert answer.code == 0 and answer.out.splitlines()[1].split()[:2] == [
        "shop.call[eve]",
        "100/m",
    ]


def test_changed_limit_is_listed_with_user_and_time(wbengine: Command, taken: None) -> None:
    answer = wbengine("limits", "set", "shop.call", "5/s", "--reason", "slow shop")
    assert (answer.code, answer.out.splitlines()[0]) == (0, "shop.call: 5/s")
    assert "no running flow" not in answer.err
    answer = wbengine("limits", "set", "shop.call[eve]", "--concurrency", "9")
    assert answer.out.splitlines()[0] == "shop.call[eve]: 9 at once"
    rows = [line.split() for line in wbengine("limits").out.splitlines()]
    user = rows[1][rows[1].index("by") + 1]
    assert rows[1][:7] == ["shop.call", "5/s", "-", "0", "-", "0", "0"] and rows[1][-2:] == [
        "by",
        user,
    ]
    assert rows[2][:7] == ["shop.call[eve]", "5/s", "9", "4", "-", "29", "2"]
    _, limit = wbengine("limits", "list", "--json").json["limits"]
    assert limit["defined"] == {"rate": "100/m", "concurrency": 4}
    own, common = limit["changes"]
    assert (own["concurrency"], common["rate"], common["reason"]) == (9, "5/s", "slow shop")
    assert own["by"] == common["by"] == user and own["at"] >= common["at"] > 1e9
    assert wbengine("limits", "unset", "shop.call").code == 0
    (limit,) = wbengine("limits", "--json").json["limits"]
    assert (limit["rate"], limit["concurrency"]) == ("100/m", 9)


def test_limit_in_a_redis_is_changed_without_a_store(
    wbengine: Command, redis_url: str, tmp_path: Path
) -> None:
    redis = ("--redis", redis_url, "--persistence", f"sqlite:///{tmp_path}/missing.db")
    assert wbengine("limits", "set", "shop.call", "5/s", *redis).code == 0
    assert wbengine("limits", *redis).out.splitlines()[1].split()[:2] == ["shop.call", "5/s"]
    assert wbengine("limits", "unset", "shop.call", *redis).code == 0
    answer = wbengine("limits", "unset", "shop.call", *redis)
    assert answer.code == 66 and "'shop.call' has not been changed" in answer.err
    assert not (tmp_path / "missing.db").exists()


def test_unused_limit_is_changed_with_a_remark(wbengine: Command, taken: None) -> None:
    answer = wbengine("limits", "set", "shop.cal", "5/s")
    assert answer.code == 0
    assert "no running flow uses limit 'shop.cal' (did you mean 'shop.call'" in answer.err


def test_used_units_of_last_period_are_listed(wbengine: Command, store: base.Backend) -> None:
    request = PermitRequest("f", 1, 0, 2, 60, (40_000.0, 60_000.0))
    account_stores.store_of(store).settle({"tokens": (Quota("90000/m", 1 / 1500), [request])})
    _, line = wbengine("limits").out.splitlines()
    assert line.split()[:7] == ["tokens", "90000/m", "-", "1", "40,000", "1", "1"]
    (limit,) = wbengine("limits", "--json").json["limits"]
    assert limit["used"] == 40_000 and 20 < limit["next_permit"] < 27
