"""Options that all clients of Redis share: transport, ledger, limits, job board."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest

from wbengine._limits.redis_accounts import RedisStore
from wbengine.jobs.backends.impl_redis import RedisJobBoard
from wbengine.transports import resolve
from wbengine.transports._redis import redis_ledger

URL = "rediss://h:7000/3?socket_timeout=2.5&ssl_min_version=TLSv1_3&client_name=shop"
BOARD = {
    "host": "h",
    "port": 7000,
    "db": 3,
    "ssl": True,
    "socket_timeout": 2.5,
    "client_name": "shop",
}


def of_limits(url: str) -> Any:
    return RedisStore(url)._client.connection_pool.connection_kwargs


def of_board(options: dict[str, Any]) -> Any:
    return RedisJobBoard("b", options)._client.connection_pool.connection_kwargs


CLIENTS = [
    pytest.param(lambda: resolve(URL, None, {}).place.settings, id="transport"),
    pytest.param(lambda: redis_ledger.check(URL).settings, id="ledger"),
    pytest.param(lambda: of_limits(URL), id="limits"),
    pytest.param(lambda: of_board({**BOARD, "ssl_min_version": "TLSv1_3"}), id="board"),
]


@pytest.mark.parametrize("arguments", CLIENTS)
def test_clients_read_the_same_options(arguments: Callable[[], Any]) -> None:
    found = arguments()
    assert (found["host"], found["port"], found["db"]) == ("h", 7000, 3)
    assert (found["socket_timeout"], found["socket_connect_timeout"]) == (2.5, 5.0)
    assert found["client_name"] == "shop"
    assert found["ssl_min_version"] is ssl.TLSVersion.TLSv1_3
    assert (found["ssl_cert_reqs"], found["ssl_check_hostname"]) == ("required", True)


@pytest.mark.parametrize("name", ["ssl_min_version", "ssl_ca_certs"])
def test_options_of_tls_need_tls(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' requires rediss://, got redis://"):
        RedisStore(f"redis://h/0?{name}=x")


@pytest.mark.parametrize("name", ["", "my shop", "shop\n", "caf\u00e9"])
def test_client_name_is_one_ascii_word(name: str) -> None:
    with pytest.raises(ValueError, match="client_name must "):
        resolve("redis://h", None, {"client_name": name})


def test_name_of_client_is_shown_by_the_server(redis_url: str) -> None:
    store = RedisStore(f"{redis_url}?client_name=limits-of-shop")
    assert "limits-of-shop" in {each["name"] for each in store._client.client_list()}
    store.close()


def test_board_without_tls_ignores_its_options() -> None:
    assert not [name for name in of_board({"ssl_min_version": "TLSv1_2"}) if "ssl" in name]


def test_options_of_redis_py_stay_possible_in_limits() -> None:
    found = of_limits("redis://h/0?client_name=shop&socket_timeout=1")
    assert (found["client_name"], found["socket_timeout"]) == ("shop", 1.0)
    with pytest.raises(ValueError, match="Unknown option 'client_nam' of limits"):
        RedisStore("redis://h/0?client_nam=shop")
