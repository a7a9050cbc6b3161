"""The broker that is used if none is set."""

from __future__ import annotations

import pytest

from wbengine import transports
from wbengine._configuration import default_broker

STORE = "postgresql://u:p@host:5433/flows?max_pool_size=2"
OTHER = "postgresql://other/flows"
IN_FOLDER = (None, "filesystem")


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WBENGINE_URL", raising=False)
    monkeypatch.delenv("WBENGINE_PERSISTENCE", raising=False)


@pytest.mark.parametrize(
    ("store", "url"),
    [
        (STORE, STORE),
        ("postgresql+psycopg://u:p@host/flows", "postgresql://u:p@host/flows"),
        ("postgres:///flows?host=/run/postgresql", "postgresql:///flows?host=/run/postgresql"),
        ("mysql://u:p@host/flows", "mysql://u:p@host/flows"),
        ("mariadb+pymysql://u:p@host:3307/flows?a=b", "mysql://u:p@host:3307/flows?a=b"),
        ("sqlite:////srv/flows.db", None),
        ("dir:///srv/postgresql://flows", None),
        ("memory", None),
        ("postgresql", None),
        ("", None),
        (None, None),
    ],
)
def test_only_store_on_database_server_is_default_broker(
    store: str | None, url: str | None
) -> None:
    expected = IN_FOLDER if url is None else (url, None)
    assert default_broker.choose(None, None, None, store) == expected


@pytest.mark.parametrize(
    ("conf", "url"),
    [
        ({"connection": STORE}, STORE),
        ({"connection": STORE, "max_pool_size": "2"}, STORE),  # `fetch` adds the query.
        ({"connection": STORE, "max_pool_size": 7}, STORE.replace("=2", "=7")),
        (
            {"connection": "postgresql:///f?host=a&host=b", "host": "a", "checkout_ping": False},
            "postgresql:///f?host=a&host=b&checkout_ping=False",
        ),
        (
            {"connection": OTHER, "engine_args": {"connect_args": {"password": "a b&c"}}},
            f"{OTHER}?password=a%20b%26c",
        ),
        ({"connection": OTHER, "engine_args": {"echo": True}, "idle_timeout": None}, OTHER),
        ({"connection": "memory"}, "memory"),
        ({}, ""),
    ],
)
def test_url_of_store_contains_the_other_options_of_its_dict(
    conf: dict[str, object], url: str
) -> None:
    assert default_broker.store_url(conf) == url


def test_address_and_variable_precede_store(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = default_broker.choose
    assert choose("redis://queues/0", None, None, STORE) == ("redis://queues/0", None)
    assert choose(None, "memory", None, STORE) == (None, "memory")
    folders = {"data_folder_in": "/srv/broker", "data_folder_out": "/srv/broker"}
    assert choose(None, None, folders, STORE) == IN_FOLDER
    monkeypatch.setenv("WBENGINE_URL", "redis://queues/1")
    assert choose(None, None, None, STORE) == ("redis://queues/1", None)


def test_given_store_precedes_those_of_process_and_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WBENGINE_PERSISTENCE", STORE)
    assert default_broker.choose(None, None, None) == (STORE, None)
    assert transports.resolve().shown == "postgresql://host:5433/flows"
    try:
        default_broker.set_store_of_process("sqlite:////srv/flows.db")
        assert default_broker.choose(None, None, None) == IN_FOLDER
        default_broker.set_store_of_process(OTHER)
        assert default_broker.choose(None, None, None) == (OTHER, None)
        assert default_broker.choose(None, None, None, STORE) == (STORE, None)
        assert default_broker.choose(None, None, None, "memory") == IN_FOLDER
    finally:
        default_broker.set_store_of_process(None)
    assert default_broker.choose(None, None, None) == (STORE, None)
