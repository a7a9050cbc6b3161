"""Options of SQL databases, in URLs and as arguments."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import pool

from tests.support import fresh
from wbengine import _sql
from wbengine.persistence import backends
from wbengine.persistence.backends import _sql as sql

SERVER = "postgresql://me:secret@127.0.0.1:1/db"


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:////tmp/x.db", "sqlite+pysqlite"),
        ("sqlite://", "sqlite+pysqlite"),
        ("mysql://u@h/d", "mysql+pymysql"),
        ("mariadb://u@h/d", "mysql+pymysql"),
        ("mysql+mysqldb://u@h/d", "mysql+mysqldb"),
        ("postgresql://u@h/d", "postgresql+psycopg"),
        ("postgresql+psycopg2://u@h/d", "postgresql+psycopg2"),
    ],
)
def test_default_driver_of_a_url_is_used_unless_one_is_named(url: str, driver: str) -> None:
    assert _sql.parse(url).url.drivername == driver


def test_options_override_the_query_of_the_url() -> None:
    """All other parameters of the query are passed to the driver."""
    url = f"{SERVER}?max_pool_size=3&sslmode=disable&log_statements=yes&idle_timeout=-1"
    given = {
        "sslmode": "disable",
        "max_pool_size": 4,
        "isolation_levels": {"mysql": "SERIALIZABLE"},
    }
    told = _sql.parse(url, given)
    assert (told.max_pool_size, told.log_statements, told.idle_timeout) == (4, True, None)
    assert dict(told.url.query) == {"sslmode": "disable"}
    assert told.isolation_level is None
    levels = {"isolation_levels": {"postgresql": "read_committed"}, "checkin_yield": True}
    assert _sql.parse(SERVER, levels).isolation_level == "READ COMMITTED"


def test_option_of_none_has_its_default() -> None:
    """Programs pass None for options that their own configuration does not set."""
    names = ("max_retries", "max_pool_size", "max_overflow", "pool_timeout", "engine_args")
    assert _sql.parse(SERVER, dict.fromkeys(names)) == _sql.parse(SERVER)
    with_none = _sql.parse(SERVER, {"idle_timeout": None, "mysql_sql_mode": None})
    assert with_none.idle_timeout is None and with_none.mysql_sql_mode is None


@pytest.mark.parametrize(
    ("query", "threshold"),
    [("", "auto"), ("0", 0), ("12", 12), ("none", None), ("None", None)],
)
def test_threshold_of_prepared_statements_is_read_from_the_url(query: str, threshold: Any) -> None:
    url = f"postgresql://me@h/d?prepare_threshold={query}" if query else "postgresql://me@h/d"
    assert _sql.parse(url).prepare_threshold == threshold


@pytest.mark.parametrize("name", ["autocommit", "row_factory", "cursor_factory", "context"])
def test_url_option_whose_value_is_an_object_is_rejected(name: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ValueError, match=f"unknown option '{name}'"):
        backends.fetch(f"postgresql://me@h/d?{name}=1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_pool_sise": 1}, ["max_pool_sise", "did you mean 'max_pool_size'"]),
        ({"max_pool_size": "many"}, ["max_pool_size must be", "got 'many'"]),
        ({"max_pool_size": -1}, ["max_pool_size must be", "got -1"]),
        ({"max_retries": -1}, ["max_retries must be", "got -1"]),
        ({"pool_timeout": "x"}, ["pool_timeout must be", "got 'x'"]),
        ({"idle_timeout": "x"}, ["idle_timeout must be", "got 'x'"]),
        ({"isolation_level": "HIGH"}, ["isolation_level must", "SERIALIZABLE, got 'HIGH'"]),
        ({"isolation_levels": "HIGH"}, ["isolation_levels must be a dict, got 'HIGH'"]),
        ({"engine_args": 3}, ["engine_args must be a dict, got 3"]),
        ({"engine_args": {"no_such": 3}}, ["no_such"]),
        ({"log_statements": "maybe"}, ["log_statements must be true or false"]),
        ({"prepare_threshold": "many"}, ["prepare_threshold must be", "got 'many'"]),
        ({"mysql_sql_mode": 3}, ["mysql_sql_mode must be a list of modes, got 3"]),
        ({"mysql_sql_mode": "'; DROP"}, ["mysql_sql_mode must be a list of modes, got"]),
    ],
)
def test_invalid_option_is_named_without_the_password(
    options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as caught:
        backends.fetch({"connection": SERVER, **options})
    assert all(word in str(caught.value) for word in words), caught.value
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("sqlite:////tmp/x.db?max_retris=1", "max_retries"),
        ("sqlite:////tmp/x.db?timout=1", "timeout"),
        ("mysql://me:secret@h/d?chrset=utf8", "charset"),
        ("postgresql://me:secret@h/d?sslmod=require", "sslmode"),
        ("postgresql://me:secret@h/d?prepare_treshold=0", "prepare_threshold"),
    ],
)
def test_unknown_url_option_is_rejected_with_a_suggestion(url: str, near: str) -> None:
    with pytest.raises(
        ValueError, match=rf"unknown option '.*' \(did you mean '{near}'\?\)"
    ) as caught:
        backends.fetch(url)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match=rf"did you mean '{near}'"):
        args = {"connect_args": {near.replace("e", "", 1): "1"}}
        backends.fetch(url.partition("?")[0], engine_args=args)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////tmp/x.db?timeout=3&check_same_thread=false&max_retries=2",
        "sqlite:///file:x?mode=memory&cache=shared&uri=true",
        "mysql://h/d?charset=utf8mb4&ssl_ca=/ca.pem&ssl_cipher=x&read_timeout=3",
        "postgresql://h/d?sslmode=require&application_name=x&connect_timeout=3&options=-c%20x",
    ],
)
def test_driver_options_are_accepted_in_a_url(url: str) -> None:
    backends.fetch(url).close()


@pytest.mark.parametrize(
    "url", ["sqlite", "mysql://me:secret@h", "oracle://me:secret@h/d", "postgresql://h:port/d"]
)
def test_invalid_url_error_shows_the_format_without_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:////path/of\.db") as caught:
        _sql.parse(url)
    assert "secret" not in str(caught.value)


def test_unknown_missing_and_asyncio_drivers_are_rejected() -> None:
    with pytest.raises(ValueError, match="nothing"):
        _sql.make_engine(_sql.parse("postgresql+nothing://h/d"))
    with pytest.raises(ImportError, match=r"mysql\+mysqldb.*not installed"):
        _sql.make_engine(_sql.parse("mysql+mysqldb://h/d"))
    with pytest.raises(ValueError, match="asyncio"):
        _sql.make_engine(_sql.parse("postgresql+psycopg_async://h/d"))


def test_backend_is_created_without_connecting_or_showing_secrets() -> None:
    for url in ("sqlite:////no/such/place.db", "mysql://me:secret@127.0.0.1:1/db", SERVER):
        made = backends.fetch(url, max_pool_size=7)
        assert isinstance(made, sql.SQLBackend)
        made.get_connection().close()
        assert made.options.max_pool_size == 7
        assert "secret" not in repr(made) and url.partition("://")[0] in repr(made)
        made.close()
        made.close()


def test_connection_pool_has_the_requested_size() -> None:
    """An in-memory database has one connection."""
    made = _sql.make_engine(
        _sql.parse("sqlite:////tmp/x.db", {"max_pool_size": 3, "max_overflow": 2})
    )
    assert isinstance(made.pool, pool.QueuePool)
    assert made.pool.size() == 3 and made.pool._max_overflow == 2
    alone = _sql.make_engine(_sql.parse("sqlite://", {"max_pool_size": 3}))
    assert isinstance(alone.pool, pool.QueuePool)
    assert alone.pool.size() == 1 and alone.pool._max_overflow == 0


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("psycopg", "postgresql://h/d", "postgresql"),
        ("pymysql", "mysql://h/d", "mysql"),
    ],
)
def test_missing_driver_library_error_names_the_extra(module: str, url: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{module!r}] = None
from wbengine.persistence import backends
try:
    with backends.backend({url!r}):
        pass
except ImportError as error:
    print(error)
"""
    said = fresh.run(code)
    assert re.search(rf"pip install .*\[{extra}\]'", said.stdout) and module in said.stdout.lower()
