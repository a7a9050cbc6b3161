"""Stores in databases of Django."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa
from django import db
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.utils import ConnectionHandler

from tests.integrations.django_project import Project
from tests.support import servers
from wbengine.integrations.django import _databases

MYSQL, POSTGRESQL = "django.db.backends.mysql", "django.db.backends.postgresql"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that sets the database of the alias 'default'."""
    if not settings.configured:
        settings.configure(LOGGING_CONFIG=None)
    pymysql.install_as_MySQLdb()
    monkeypatch.setattr(pymysql, "version_info", (2, 2, 1, "final", 0))

    def use(engine: str, **values: Any) -> None:
        databases = {"default": {"ENGINE": engine, **values}}
        monkeypatch.setattr(db, "connections", ConnectionHandler(databases))

    yield use


@pytest.mark.parametrize(
    ("engine", "values", "url"),
    [
        (POSTGRESQL, {"NAME": "shop"}, "postgresql:///shop"),
        (
            POSTGRESQL,
            {"NAME": "shop", "USER": "a@b", "PASSWORD": "p@:/?#%", "HOST": "db", "PORT": "5433"},
            "postgresql://a%40b:p%40%3A%2F%3F%23%25@db:5433/shop",
        ),
        (
            POSTGRESQL,
            {"NAME": "shop", "OPTIONS": {
                "sslmode": "require", "connect_timeout": 5, "pool": True, "isolation_level": 4,
                "server_side_binding": True, "options": "-c search_path=flows",
            }},
            "postgresql:///shop?connect_timeout=5&options=-c+search_path%3Dflows&sslmode=require",
        ),
        (
            POSTGRESQL,
            {"NAME": "shop", "HOST": "/run/postgresql", "PORT": 5433},
            "postgresql://:5433/shop?host=%2Frun%2Fpostgresql",
        ),
        (
            POSTGRESQL,
            {"NAME": "shop", "HOST": "one,two", "PORT": "1,2"},
            "postgresql:///shop?host=one%2Ctwo&port=1%2C2",
        ),
        (
            MYSQL,
            {"NAME": "shop", "USER": "me", "HOST": "db", "OPTIONS": {
                "charset": "utf8mb4", "init_command": "SET sql_mode='ANSI'",
                "isolation_level": "read committed", "ssl": {"ca": "/ca.pem"},
            }},
            "mysql://me@db/shop?ssl_ca=%2Fca.pem",
        ),
        (
            MYSQL,
            {"NAME": "shop", "HOST": "/run/mysql.sock"},
            "mysql:///shop?unix_socket=%2Frun%2Fmysql.sock",
        ),
        (
            "django.db.backends.sqlite3",
            {"NAME": "/srv/shop.db", "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"}},
            "sqlite:////srv/shop.db",
        ),
        ("django.db.backends.sqlite3", {"NAME": Path("a?b.db")}, "sqlite:///a%3Fb.db"),
    ],
)  # fmt: skip
def test_settings_of_django_become_a_url(
    engine: str, values: dict[str, Any], url: str, use: Any
) -> None:
    use(engine, **values)
    translated = sa.make_url(_databases.url_of("default"))
    assert translated == sa.make_url(url)


@pytest.mark.parametrize(
    ("engine", "values", "reason"),
    [
        (POSTGRESQL, {"OPTIONS": {"service": "shop"}}, "NAME must be set"),
        (POSTGRESQL, {"NAME": "s", "OPTIONS": {"assume_role": "boss"}}, "assume_role"),
        (POSTGRESQL, {"NAME": "s", "OPTIONS": {"sslmod": "require"}}, "sslmod"),
        (POSTGRESQL, {"NAME": "s", "OPTIONS": {"context": object()}}, "got context"),
        (MYSQL, {"NAME": "s", "OPTIONS": {"ssl_mode": "REQUIRED"}}, "ssl_mode"),
        ("django.db.backends.sqlite3", {"NAME": "file:x?mode=memory"}, "must be a file"),
    ],
)
def test_settings_without_an_equivalent_are_reported(
    engine: str, values: dict[str, Any], reason: str, use: Any
) -> None:
    use(engine, **values)
    with pytest.raises(ImproperlyConfigured, match=reason) as error:
        _databases.url_of("default")
    assert str(error.value).startswith("DATABASES['default'] cannot contain flows: ")


def test_unknown_alias_is_reported(use: Any) -> None:
    use(POSTGRESQL, NAME="shop")
    with pytest.raises(ImproperlyConfigured, match="DATABASES must contain 'other'"):
        _databases.url_of("other")


TESTS = """
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from shop import tasks
from wbengine import engines, testing
from wbengine.integrations.django import backend


def tables():
    return {name for name in connection.introspection.table_names() if name.startswith("wbe_")}


class Transactions(TransactionTestCase):
    def setUp(self):
        with backend().get_connection() as store:
            store.clear_all()

    def test_flows_are_in_the_database_of_the_tests(self):
        result = tasks.add.enqueue(1, b=2)
        assert tasks.add.get_result(result.id).status == "READY"
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM wbe_jobs")
            assert cursor.fetchone() == (1,)

    def test_flow_belongs_to_the_transaction_of_the_test_database(self):
        with transaction.atomic():
            handle = engines.submit(
                "shop.flows:add", backend=backend(), connection=connection
            )
        assert handle.state == "PENDING"

    def test_submitted_flows_and_tasks_run_in_the_thread_of_the_test(self):
        result = tasks.query.enqueue()
        with transaction.atomic():
            engines.submit("shop.flows:add", backend=backend(), connection=connection)
        first, second = testing.run_submitted(backend())
        assert (first.id, second.state) == (result.id, "SUCCESS")
        assert tasks.query.get_result(result.id).return_value == 42
        assert testing.run_submitted(backend()) == []


class InTransaction(TestCase):
    def test_task_is_enqueued_in_the_transaction_of_the_test(self):
        assert "wbe_jobs" in tables()
        tasks.add.enqueue(1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM wbe_jobs")
            assert cursor.fetchone() == (1,)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_suites_of_django_use_the_database_of_the_tests(
    kind: str, project: Project, request: pytest.FixtureRequest
) -> None:
    (project.folder / "shop" / "tests.py").write_text(TESTS)
    (project.folder / "shop" / "flows.py").write_text(
        "from wbengine import task\n\n\n@task.task\ndef add():\n    return 1\n"
    )
    if kind == "postgresql":
        server: servers.Server = request.getfixturevalue("postgresql_server")
        project.use_postgresql(request.getfixturevalue("postgresql_url"))
    else:
        project.append_settings(
            "TASKS['default']['OPTIONS'] = {}",
            f"DATABASES['default']['TEST'] = {{'NAME': '{project.folder}/test.db'}}",
        )
    tested = project.manage("test")
    assert tested.returncode == 0, tested.stderr
    assert "Ran 4 tests" in tested.stderr
    if kind == "postgresql":
        name = sa.make_url(project.store).database
        tables = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'wbe_%'"
        assert server.execute(tables, name) == [(0,)]
        assert not server.execute(f"SELECT 1 FROM pg_database WHERE datname = 'test_{name}'")
    else:
        assert not (project.folder / "test.db").exists()
        assert not (project.folder / "app.db").exists()
