"""Connections of Django around the code of flows in `manage.py wbengine serve`, on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.integrations.django_project import Project
from tests.support import servers
from tests.support.waiting import MARGIN, until
from wbengine import engines
from wbengine.persistence import backends

#: Each function of a flow uses the connection of its thread.
FLOWS = """
from asgiref.sync import sync_to_async
from django.db import connection

from wbengine import engines, retry, task
from wbengine.patterns import linear_flow


def query():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 42")
        return cursor.fetchone()[0]


@task.task(provides="value")
def read():
    return query()


@task.task(provides="value")
async def aread():
    return await sync_to_async(query)()


@read.revert
def undo():
    query()


@task.task
def fail():
    raise KeyError("unknown product")


class Retry(retry.Retry):
    def execute(self, history):
        query()

    def on_failure(self, history):
        query()
        return retry.REVERT

    def revert(self, history):
        query()


@task.workflow
def read_in_step(steps):
    return steps.run(read)


def plain():
    return linear_flow.Flow("plain").add(read())


def asynchronous():
    return linear_flow.Flow("asynchronous").add(aread())


def reverted():
    return linear_flow.Flow("reverted", Retry("retry")).add(read("read"), fail("fail"))


def made():
    return linear_flow.Flow(f"made {query()}").add(read())


@task.task
def run_inner():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(7)")
        engines.run(plain())
        # Other databases of the server also have locks.
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
            " AND pid = pg_backend_pid()")
        if cursor.fetchone() != (1,):
            raise RuntimeError("the connection was closed")


def outer():
    return linear_flow.Flow("outer").add(run_inner())


def workflow():
    return linear_flow.Flow("workflow").add(read_in_step("steps"))
"""


@pytest.fixture
def project(tmp_path: Path, postgresql_url: str) -> Project:
    created = Project(tmp_path)
    created.use_postgresql(postgresql_url)
    (created.folder / "shop" / "flows.py").write_text(FLOWS)
    return created


def submit(project: Project, *names: str) -> list[str]:
    ids = project.run(f"""
from wbengine import engines
from wbengine.integrations.django import backend

result = [engines.submit(f"shop.flows:{{name}}", backend=backend()).id for name in {names}]
""")
    assert isinstance(ids, list)
    return ids


def connections(server: servers.Server, url: str) -> int:
    """Return the number of connections whose latest query is that of the flows."""
    where = f"query = 'SELECT 42' AND datname = '{sa.make_url(url).database}'"
    return int(server.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {where}")[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_connections_are_closed_after_all_code_of_flows(
    engine: str, project: Project, postgresql_server: servers.Server
) -> None:
    names = ["plain", "asynchronous", "reverted", "made", "workflow"]
    ids = submit(project, *names)
    with backends.backend(project.store) as store, project.serving("--engine", engine):
        handles = [engines.handle(id, backend=store) for id in ids]
        assert all(handle.wait(MARGIN * 3) for handle in handles)
        ends = [handle.state for handle in handles]
        assert ends == ["SUCCESS", "SUCCESS", "REVERTED", "SUCCESS", "SUCCESS"]
        until(lambda: connections(postgresql_server, project.store) == 0)


@pytest.mark.slow
def test_flow_in_a_task_does_not_close_the_connection_of_the_task(
    project: Project, postgresql_server: servers.Server
) -> None:
    (id,) = submit(project, "outer")
    with backends.backend(project.store) as store, project.serving():
        handle = engines.handle(id, backend=store)
        assert handle.wait(MARGIN * 3) and handle.state == "SUCCESS"
        until(lambda: connections(postgresql_server, project.store) == 0)


@pytest.mark.slow
def test_kept_connection_is_replaced_after_a_restart_of_the_database(
    project: Project, postgresql_server: servers.Server
) -> None:
    project.append_settings(
        'DATABASES["default"] |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}'
    )
    with (
        backends.backend(project.store) as store,
        project.serving("--max-simultaneous", "1"),
    ):
        for name in ("plain", "plain", "reverted"):
            (id,) = submit(project, name)
            handle = engines.handle(id, backend=store)
            assert handle.wait(MARGIN * 3)
            assert handle.state == ("REVERTED" if name == "reverted" else "SUCCESS")
            assert connections(postgresql_server, project.store) == 1
            postgresql_server.cut(project.store)
