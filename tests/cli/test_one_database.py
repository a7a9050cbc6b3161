"""Commands that use one database as store and broker, from its URL alone."""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.conftest import ORDER, Command, state
from tests.support import servers
from tests.support import worker_tasks as tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines
from wbengine.diagnosis import _broker_checks, _postgresql_checks, _store_checks, findings
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.patterns import linear_flow
from wbengine.persistence.backends._sql import tables
from wbengine.transports._sql import postgresql_rights
from wbengine.transports._sql.postgresql_session import PostgreSQLSession
from wbengine.transports._sql.sql_session import Place

WHERE = linear_flow.Flow("where").add(tasks.Where())
HOST = socket.gethostname()
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


@pytest.mark.slow
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
    if database_url.startswith("postgresql"):
        with psycopg.connect(database_url) as connection:
            names = connection.execute("SELECT DISTINCT application_name FROM pg_stat_activity"
                                       " WHERE datname = current_database()")  # fmt: skip
            programs = {name.rpartition(" ")[0] for (name,) in names if name.endswith(HOST)}
        assert programs == {"wbengine worker", "wbengine serve"}
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
        user, _, place = database_url.rpartition("@")
        user, _, password = user.rpartition(":")
        options = {"engine_args": {"connect_args": {"password": password}}}
        engines.run(WHERE, backend={"connection": f"{user}@{place}", **options}, **ARGUMENTS)
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
        assert names >= {*postgresql_rights.TABLES, *tables.METADATA.tables}
        for name in names - {*postgresql_rights.TABLES}:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT FROM {name}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE wbe_mine()")


def test_doctor_skips_checks_that_the_role_of_workers_does_not_permit(
    wbengine: Command, runtime: Path, roles: Roles
) -> None:
    created = wbengine("db", "create", "--worker-role", roles.name, "--persistence", roles.owner)
    assert created.code == 0, created
    answer = wbengine("doctor", "--json", "--persistence", roles.worker)
    assert answer.code == 0, answer
    skipped = {
        one["check"]: one["text"]
        for one in answer.json["findings"]
        if "rights of workers" in one["text"]
    }
    assert {*skipped} == {"ledger", "round trip", "store"}
    assert "permission denied for table wbe_ledger" in skipped["ledger"]


def advice_of(url: str) -> tuple[str, str]:
    """Return the text and the advice of the only problem that doctor finds in broker and store."""
    place = findings.Place(persistence=url, timeout=1.0)
    found = list(_broker_checks.check_connection(place))
    if all(each.good for each in found):
        found += _broker_checks.check(place)
    (problem,) = (each for each in found if each.good is False)
    assert problem.fix is not None
    for each in _store_checks.check(place):
        if each.good is False and "start the " not in problem.fix:
            assert each.fix == problem.fix
    return problem.text, problem.fix


def test_doctor_names_the_remedy_for_each_fault_of_the_database(
    runtime: Path, roles: Roles, postgresql_server: servers.Server
) -> None:
    address, _, name = roles.owner.rpartition("/")
    faults = [
        (roles.owner.replace(":secret@", ":wrong@"), "correct user and password in the URL"),
        (f"{address}/none", "correct the name of the database in the URL, or create it"),
        (f"postgresql://u@127.0.0.1:1/{name}", "start the broker, or correct host and port"),
        (f"postgresql://u@no.such.host.invalid/{name}", "correct the host name in the URL"),
        (roles.worker, "for a worker, run as the owner: wbengine db create --worker-role ROLE"),
        (f"{roles.owner}?options=-cdefault_transaction_read_only%3Don", "use the primary server"),
    ]
    with contextlib.closing(PostgreSQLSession(Place.parse(roles.owner))) as session:
        for url, advice in faults:
            assert advice in advice_of(url)[1], url
        with postgresql_server.database(
            "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        ) as url:
            assert "create a database with this encoding" in advice_of(url)[1]
        session.run("DROP INDEX wbe_messages_taken")
        text, fix = advice_of(roles.owner)
        assert "wbe_messages_taken is missing" in text
        for statement in fix.partition("tables: ")[2].split(";"):
            session.run(statement)
        assert all(each.good for each in _broker_checks.check(findings.Place(url=roles.owner)))
    owner = roles.owner.removeprefix("postgresql://").partition(":")[0]
    postgresql_server.execute(f"ALTER ROLE {owner} CONNECTION LIMIT 0")
    assert "increase max_connections" in advice_of(roles.owner)[1]


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"fsync": "off"}, "ALTER SYSTEM SET fsync = on"),
        ({"synchronous_commit": "off"}, "ALTER SYSTEM SET synchronous_commit = on"),
        ({"connections": 81}, "increase max_connections"),
        ({"transaction_seconds": 301}, "column xact_start"),
        ({"dead_messages": 100_001}, "VACUUM wbe_messages"),
    ],
)
def test_doctor_reports_state_of_server(changed: dict[str, Any], advice: str) -> None:
    healthy: dict[str, Any] = {
        "fsync": "on", "synchronous_commit": "on", "max_connections": 100, "connections": 80,
        "transaction_seconds": 300, "dead_messages": None, "missing_indexes": [],
    }  # fmt: skip
    assert list(_postgresql_checks._problems(**healthy)) == []
    (problem,) = _postgresql_checks._problems(**{**healthy, **changed})
    assert problem.good is False and advice in str(problem.fix)


def test_doctor_sees_open_transaction_of_this_database_only(
    postgresql_url: str, postgresql_server: servers.Server
) -> None:
    with (
        contextlib.closing(PostgreSQLSession(Place.parse(postgresql_url))) as session,
        postgresql_server.database() as other_url,
    ):

        def age() -> int | None:
            (row,) = session.run(_postgresql_checks._SETTINGS, {"indexes": []})
            seconds: int | None = row[4]
            return seconds

        with psycopg.connect(other_url) as other:
            other.execute("SELECT txid_current()")
            assert age() is None
        with psycopg.connect(postgresql_url) as other:
            other.execute("SELECT txid_current()")
            assert age() == 0


def test_worker_without_rights_fails_with_advice(
    wbengine: Command, runtime: Path, roles: Roles
) -> None:
    as_worker = ("--persistence", roles.worker, "--timeout", "1")
    worker = ("worker", "orders", "--tasks", "tests.cli.shop", *as_worker)
    for owner_creates in (False, True):
        if owner_creates:
            assert wbengine("db", "create", "--persistence", roles.owner).code == 0
        wbengine.fails(69, "permission denied for ", *worker)
        findings = wbengine("doctor", "--json", *as_worker).json["findings"]
        (broker,) = (one for one in findings if one["check"] == "broker")
        assert broker["fix"].endswith("wbengine db create --worker-role ROLE")
    answer = wbengine("db", "create", "--worker-role", "nobody", "--persistence", roles.owner)
    assert answer.code == 69 and 'role "nobody" does not exist' in answer.error


def test_db_create_creates_store_without_queues_in_postgresql(
    wbengine: Command, home: Path, runtime: Path
) -> None:
    where = ("--persistence", f"sqlite:///{home}/flows.db", "--ledger", f"sqlite:///{home}/led.db",
             "--url", "amqp://127.0.0.1:1//")  # fmt: skip
    created = wbengine("db", "create", "--json", *where)
    assert created.code == 0 and created.json["store"] == where[1], created
    assert "queues" not in created.json and (home / "led.db").exists()
    assert wbengine("db", "current", "--json", *where).json["usable"] is True
    answer = wbengine("db", "create", "--worker-role", "w", *where)
    assert answer.code == 2 and "--worker-role needs a broker in PostgreSQL" in answer.error
