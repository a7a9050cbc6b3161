"""Commands that use one database as store and broker, from its URL alone."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import ORDER, Command, state
from tests.support import servers
from tests.support import worker_tasks as tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.patterns import linear_flow
from wbengine.persistence.backends._sql import tables
from wbengine.transports import _postgresql_rights

WHERE = linear_flow.Flow("where").add(tasks.Where())
ARGUMENTS = {"inputs": {"rest": 0.0}, "engine": "workers"}


@pytest.fixture
def runtime(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the default folder of brokers is created."""
    folder = home / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture(params=["postgresql", pytest.param("mysql", marks=pytest.mark.slow)])
def database_url(
    request: pytest.FixtureRequest, database_servers: servers.Databases
) -> Iterator[str]:
    with database_servers[request.param].database() as url:
        yield url


def test_commands_meet_in_database_of_flows(
    wbengine: Command, runtime: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_PERSISTENCE", database_url)
    wbengine.begin("worker", "orders", "--tasks", "tests.cli.shop")
    ran = wbengine("flow", "run", ORDER, "--engine", "workers", "--json")
    assert ran.code == 0 and ran.json["results"]["sendd"] == "send", ran
    submitted = wbengine("flow", "submit", ORDER, "--json").json["uuid"]
    wbengine.begin("serve", "--engine", "workers")
    until(lambda: state(wbengine, submitted) == "SUCCESS")
    (worker,) = wbengine("workers", "list", "--json").json["workers"]
    assert worker["topics"] == ["orders"]
    queues = wbengine("queues", "list", "--json").json["queues"]
    assert {queue["kind"] for queue in queues} >= {"requests", "worker"}
    doctor = wbengine("doctor", "--json")
    assert doctor.code == 0, doctor
    texts = [one["text"] for one in doctor.json["findings"] if one["check"] == "broker"]
    shown = f"{database_url.partition(':')[0]}://{database_url.partition('@')[2]}"
    assert len(texts) == 1 and texts[0].startswith(f"connected to {shown}")
    assert list(runtime.iterdir()) == []


def test_engine_uses_database_of_its_backend(
    runtime: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker_in_thread(database_url, tasks, threads_count=1):
        engines.run(WHERE, backend=database_url, **ARGUMENTS)
        engines.run(WHERE, backend={"connection": database_url}, **ARGUMENTS)
        monkeypatch.setenv("WBENGINE_PERSISTENCE", database_url)
        engines.run(WHERE, **ARGUMENTS)
    assert list(runtime.iterdir()) == []


def test_engine_with_other_backend_uses_folder(
    home: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_PERSISTENCE", "postgresql://nobody@127.0.0.1:1/none")
    with worker_in_thread(f"filesystem://{runtime}/wbengine", tasks, threads_count=1):
        engines.run(WHERE, backend=f"sqlite:///{home}/flows.db", **ARGUMENTS)


@dataclass(frozen=True)
class Roles:
    """The URLs of a database for its owner and for a role of workers."""

    owner: str
    worker: str
    name: str


@pytest.fixture
def roles(postgresql_server: servers.Server) -> Iterator[Roles]:
    names = [f"{kind}_{uuid.uuid4().hex[:6]}" for kind in ("owner", "Worker")]
    for name in names:
        postgresql_server.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'secret'")
    with postgresql_server.database(f"OWNER {names[0]}") as url:
        place = url.partition("@")[2]
        yield Roles(*(f"postgresql://{name}:secret@{place}" for name in names), names[1])
    for name in names:
        postgresql_server.execute(f'DROP ROLE "{name}"')


def test_role_of_workers_executes_tasks_and_reads_no_flows(
    wbengine: Command, runtime: Path, roles: Roles
) -> None:
    store = ("--persistence", roles.owner)
    created = wbengine("db", "create", "--worker-role", roles.name, "--json", *store)
    assert created.code == 0 and created.json["worker_role"] == roles.name, created
    wbengine.begin("worker", "orders", "--tasks", "tests.cli.shop", "--persistence", roles.worker)
    ran = wbengine("flow", "run", ORDER, "--engine", "workers", "--json", *store)
    assert ran.code == 0 and ran.json["results"]["sendd"] == "send", ran
    with contextlib.closing(ledgers.open_ledger(roles.worker, "worker")) as ledger:
        ledger.sweep(0.0)
    with psycopg.connect(roles.worker, autocommit=True) as connection:
        rows = connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^wbe_[a-z_]+$'"
                                  " AND relkind = 'r'").fetchall()  # fmt: skip
        names = {name for (name,) in rows}
        assert names >= {*_postgresql_rights.TABLES, *tables.METADATA.tables}
        for name in names - {*_postgresql_rights.TABLES}:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT FROM {name}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE wbe_mine()")


def test_worker_without_rights_fails_with_advice(
    wbengine: Command, runtime: Path, roles: Roles
) -> None:
    as_worker = ("--persistence", roles.worker, "--timeout", "1")
    worker = ("worker", "orders", "--tasks", "tests.cli.shop", *as_worker)
    for owner_creates in (False, True):
        if owner_creates:
            assert wbengine("db", "create", "--persistence", roles.owner).code == 0
        answer = wbengine(*worker)
        assert answer.code == 69 and "permission denied for " in answer.error, answer
        findings = wbengine("doctor", "--json", *as_worker).json["findings"]
        (broker,) = (one for one in findings if one["check"] == "broker")
        assert broker["fix"].endswith("wbengine db create --worker-role ROLE")
    answer = wbengine("db", "create", "--worker-role", "nobody", "--persistence", roles.owner)
    assert answer.code == 69 and 'role "nobody" does not exist' in answer.error


def test_db_create_creates_store_without_queues_in_postgresql(
    wbengine: Command, home: Path, runtime: Path
) -> None:
    where = ("--persistence", f"sqlite:///{home}/flows.db", "--ledger", f"sqlite:///{home}/led.db")
    created = wbengine("db", "create", "--json", *where)
    assert created.code == 0 and created.json["store"] == where[1], created
    assert "queues" not in created.json and (home / "led.db").exists()
    assert wbengine("db", "current", "--json", *where).json["usable"] is True
    answer = wbengine("db", "create", "--worker-role", "w", *where)
    assert answer.code == 2 and "--worker-role needs a broker in PostgreSQL" in answer.error
