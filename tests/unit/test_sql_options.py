"""The options of SQL databases, and what is made of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import pool

from wbengine import _sql
from wbengine.persistence import backends
from wbengine.persistence.backends import sql

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
def test_the_driver_that_is_meant(url: str, driver: str) -> None:
    """One that is named is kept."""
    assert _sql.parse(url).url.drivername == driver


def test_options_come_from_the_url_too() -> None:
    """Those beside it win; what else is in the query is the driver's."""
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_pool_sise": 1}, ["max_pool_sise", "did you mean 'max_pool_size'"]),
        ({"max_pool_size": "many"}, ["max_pool_size='many'"]),
        ({"max_pool_size": 0}, ["max_pool_size=0"]),
        ({"max_retries": -1}, ["max_retries=-1"]),
        ({"pool_timeout": None}, ["pool_timeout=None"]),
        ({"idle_timeout": "x"}, ["idle_timeout='x'"]),
        ({"isolation_level": "HIGH"}, ["isolation_level='HIGH'", "SERIALIZABLE"]),
        ({"isolation_levels": "HIGH"}, ["isolation_levels='HIGH'", "a dict"]),
        ({"engine_args": 3}, ["engine_args=3"]),
        ({"engine_args": {"no_such": 3}}, ["no_such"]),
        ({"log_statements": "maybe"}, ["log_statements='maybe'"]),
        ({"mysql_sql_mode": 3}, ["mysql_sql_mode=3"]),
        ({"mysql_sql_mode": "'; DROP"}, ["mysql_sql_mode="]),
    ],
)
def test_wrong_options(options: dict[str, Any], words: list[str]) -> None:
    """They are named; the password is not."""
    with pytest.raises(ValueError) as caught:
        backends.fetch({"connection": SERVER, **options})
    assert all(word in str(caught.value) for word in words), caught.value
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["sqlite", "mysql://me:secret@h", "oracle://me:secret@h/d", "postgresql://h:port/d"]
)
def test_wrong_urls(url: str) -> None:
    """So is the form that they should have."""
    with pytest.raises(ValueError, match=r"sqlite:////path/of\.db") as caught:
        _sql.parse(url)
    assert "secret" not in str(caught.value)


def test_an_unknown_driver() -> None:
    """One that does not exist, one that is not installed, and one for asyncio."""
    with pytest.raises(ValueError, match="nothing"):
        _sql.make_engine("postgresql+nothing://h/d")
    with pytest.raises(ImportError, match=r"mysql\+mysqldb.*not installed"):
        _sql.make_engine("mysql+mysqldb://h/d")
    with pytest.raises(ValueError, match="asyncio"):
        _sql.make_engine("postgresql+psycopg_async://h/d")


def test_kinds_of_backends() -> None:
    """A backend of each kind is made without connecting, and says where it is but not how to get
    in."""
    for url in ("sqlite:////no/such/place.db", "mysql://me:secret@127.0.0.1:1/db", SERVER):
        made = backends.fetch(url, max_pool_size=7)
        assert isinstance(made, sql.SQLBackend)
        made.get_connection().close()
        assert made.options.max_pool_size == 7
        assert "secret" not in repr(made) and url.partition("://")[0] in repr(made)
        made.close()
        made.close()


def test_the_pool() -> None:
    """It is as large as it was asked for; a database in memory has one connection."""
    made = _sql.make_engine("sqlite:////tmp/x.db", {"max_pool_size": 3, "max_overflow": 2})
    assert isinstance(made.pool, pool.QueuePool)
    assert made.pool.size() == 3 and made.pool._max_overflow == 2
    alone = _sql.make_engine("sqlite://", {"max_pool_size": 3})
    assert isinstance(alone.pool, pool.QueuePool)
    assert alone.pool.size() == 1 and alone.pool._max_overflow == 0


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("psycopg", "postgresql://h/d", "postgresql"),
        ("pymysql", "mysql://h/d", "mysql"),
    ],
)
def test_a_missing_library(module: str, url: str, extra: str) -> None:
    """The error says what to install."""
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
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f'pip install "wbengine[{extra}]"' in said.stdout and module in said.stdout.lower()
