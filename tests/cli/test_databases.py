"""The setting `databases`."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Command

PROGRAM = """
import sqlalchemy as sa

from wbengine import task
from wbengine.patterns import linear_flow


@task.task(transaction="shop", provides="receipt")
def charge(connection, order):
    connection.execute(sa.text("INSERT INTO effects VALUES (7)"))
    return order


def make():
    return linear_flow.Flow("f").add(charge())
"""


@pytest.fixture
def shop(home: Path, quiet_store: None) -> str:
    """Return the URL of a database."""
    (home / "orders.py").write_text(PROGRAM)
    with contextlib.closing(sqlite3.connect(home / "shop.db")) as connection:
        connection.execute("CREATE TABLE effects (number INTEGER)")
    return f"sqlite:///{home}/shop.db"


RUN = ("flow", "run", "orders:make", "--inputs", '{"order": 7}')


def test_command_registers_databases_of_its_file(wbengine: Command, shop: str, home: Path) -> None:
    (home / "wbengine.toml").write_text(f'[databases]\nshop = "{shop}"\n')
    answer = wbengine.apart(*RUN)
    assert answer.code == 0, answer
    with contextlib.closing(sqlite3.connect(home / "shop.db")) as connection:
        assert connection.execute("SELECT number FROM effects").fetchall() == [(7,)]


def test_unknown_database_ends_the_command(wbengine: Command, shop: str) -> None:
    answer = wbengine.apart(*RUN, env={"WBENGINE_DATABASES": json.dumps({"shops": shop})})
    assert answer.code != 0
    assert "did you mean 'shops'" in answer.err


def test_passwords_of_databases_are_masked(wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text('[databases]\nshop = "postgresql://me:hidden@host/shop"\n')
    for words in (), ("--json",):
        assert "hidden" not in wbengine("config", "show", *words).out
