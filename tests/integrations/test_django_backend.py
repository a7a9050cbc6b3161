"""The backend of Django's tasks, with the framework and a conductor."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.django_project import Project
from tests.support.waiting import until
from wbengine import engines, operations, states
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends

ENQUEUE = """
from datetime import timedelta

from asgiref.sync import async_to_sync
from django.utils import timezone

later = timezone.now() + timedelta(days=1)
result = [
    shown(each)
    for each in (
        tasks.add.enqueue(1, b=2), tasks.mail.enqueue(to="ann"), tasks.report.enqueue(7),
        tasks.query.enqueue(), tasks.unserializable.enqueue(),
        async_to_sync(tasks.add.aenqueue)(5),
        tasks.add.using(run_after=later, priority=-100).enqueue(1), tasks.flaky.enqueue(),
    )
]
"""
READ = "result = [shown(default_task_backend.get_result(id)) for id in {ids}]"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def read(project: Project, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = project.run(READ.format(ids=[each["id"] for each in results]))
    assert isinstance(found, list)
    return found


def test_tasks_run_in_a_conductor_and_their_results_are_read(project: Project) -> None:
    began = time.time()
    enqueued = project.run(ENQUEUE)
    assert {each["status"] for each in enqueued} == {"READY"}
    assert [each["times"][1:] for each in read(project, enqueued)] == [[None] * 3] * 8
    with backends.backend(project.store) as store, project.serving("--queue", "*"):
        until(
            lambda: (
                sum(
                    operations.find(store, each["id"]).state in states.FLOW_ENDED
                    for each in enqueued
                )
                == 7
            )
        )
    added, mailed, reported, queried, failed, async_added, later, flaky = read(project, enqueued)
    assert (added["status"], added["value"], added["args"], added["kwargs"]) == (
        "SUCCESSFUL", 3, [1], {"b": 2}
    )  # fmt: skip
    assert added["times"] == sorted(added["times"]) and began < added["times"][0]
    assert added["attempts"] == 1 and added["times"][-1] < time.time()
    assert (mailed["status"], mailed["queue"], mailed["priority"]) == ("FAILED", "mail", 60)
    ((path, traceback),) = mailed["errors"]
    assert path == "shop.tasks.Declined"
    assert traceback.startswith("Traceback (most recent call last):\n  File ")
    assert traceback.endswith("Declined: no post to ann") and "tasks.py" in traceback
    assert reported["value"] == {"number": 7, "attempt": 1, "id": reported["id"]}
    assert queried["value"] == 42 and async_added["value"] == 5
    assert failed["errors"][0][0] == "builtins.TypeError"
    assert (later["status"], later["run_after"]) == ("READY", enqueued[6]["run_after"])
    assert flaky["status"] == "FAILED" and flaky["errors"][0][0] == "builtins.KeyError"
    assert project.signals().count("enqueued add READY") == 3
    assert {"started mail RUNNING", "finished mail FAILED", "finished add SUCCESSFUL"} < {
        *project.signals()
    }

    retried = project.manage("wbengine", "flow", "retry", flaky["id"])
    assert retried.returncode == 0, retried.stderr
    with backends.backend(project.store) as store, project.serving():
        until(lambda: operations.find(store, flaky["id"]).state == states.SUCCESS)
    (again,) = read(project, [flaky])
    assert (again["status"], again["attempts"], again["value"]) == ("SUCCESSFUL", 2, 2)
    assert again["errors"] == []


def test_priority_queue_and_time_are_those_of_the_job(project: Project) -> None:
    numbers = [-100, -51, -50, -1, 0, 1, 50, 51, 100]
    ids = project.run(
        f"result = [tasks.add.using(priority=number).enqueue(1).id for number in {numbers}]\n"
        "result.append(tasks.mail.enqueue('ann').id)"
    )
    with backends.backend(project.store) as store:
        board = impl_sql.SQLJobBoard("b", persistence=store)
        with contextlib.closing(board):
            board.connect()
            posted = {job.uuid: job for job in board.iterjobs()}
    assert [posted[id].priority.value for id in ids[:-1]] == [
        "VERY_LOW", "VERY_LOW", "LOW", "LOW", "NORMAL", "HIGH", "HIGH", "VERY_HIGH", "VERY_HIGH",
    ]  # fmt: skip
    assert posted[ids[-1]].name == "shop.tasks.mail"


def test_backend_refuses_tasks_that_it_cannot_run(project: Project) -> None:
    reasons = project.run("""
import datetime


def define(**options):
    from django_tasks import task

    @task(**options)
    def local():
        pass


result = [
    caught(define),
    caught(lambda: tasks.add.using(queue_name="other")),
    caught(lambda: tasks.add.using(priority=101)),
    caught(lambda: tasks.add.using(run_after=datetime.datetime(2030, 1, 1))),
    caught(lambda: tasks.direct.using(backend="default").enqueue()),
    caught(lambda: tasks.add.enqueue(datetime.date(2030, 1, 1))),
    caught(lambda: tasks.add.enqueue({1, 2})),
]
""")
    kinds = [reason.partition(":")[0] for reason in reasons]
    assert kinds == ["InvalidTaskError"] * 5 + ["TypeError"] * 2, reasons
    assert "must be a task that was defined for this backend" in reasons[4]


def test_results_of_unknown_flows_do_not_exist(project: Project) -> None:
    with backends.backend(project.store) as store:
        other = engines.submit("tests.operations.flows:steps", backend=store).id
    tasks = project.folder / "shop" / "tasks.py"
    id, *reasons = project.run(f"""
id = tasks.add.enqueue(1).id
result = [
    id,
    caught(lambda: default_task_backend.get_result("no-such-id")),
    caught(lambda: default_task_backend.get_result({other!r})),
    caught(lambda: tasks.query.get_result(id)),
]
""")
    assert reasons[:2] == ["TaskResultDoesNotExist: no-such-id", f"TaskResultDoesNotExist: {other}"]
    assert reasons[2].startswith("TaskResultMismatch: ")
    get = f"result = caught(lambda: default_task_backend.get_result({id!r}))"
    assert project.run(get).startswith("TaskResult(")
    assert project.run(get, WBENGINE_FLOWS="json").startswith("ValueError: flows must not contain")
    assert project.run(get, WBENGINE_FLOWS="shop.other").startswith("ValueError")
    tasks.write_text(tasks.read_text().replace("def add(", "def added("))
    assert project.run(get).startswith("ImportError: ")


def test_task_is_enqueued_when_the_transaction_is_committed(project: Project) -> None:
    project.run("""
import functools

from django.db import transaction

with transaction.atomic():
    transaction.on_commit(functools.partial(tasks.add.enqueue, 1))
try:
    with transaction.atomic():
        transaction.on_commit(functools.partial(tasks.add.enqueue, 2))
        raise ValueError
except ValueError:
    result = None
""")
    assert project.signals() == ["enqueued add READY"]


def test_task_belongs_to_a_transaction_of_the_same_database(project: Project) -> None:
    url = f"sqlite:///{project.folder}/app.db"
    project.append_settings("TASKS['default']['OPTIONS'] = {}")
    kept, outside = project.run("""
from django.db import transaction

with transaction.atomic():
    kept = tasks.add.enqueue(1)
try:
    with transaction.atomic():
        tasks.add.enqueue(2)
        raise ValueError
except ValueError:
    outside = tasks.add.enqueue(3)
result = [kept.id, outside.id]
""")
    with (
        backends.backend(url) as store,
        contextlib.closing(store.get_connection()) as connection,
    ):
        assert {row.uuid for row in connection.list_flows().flows} == {kept, outside}


def test_store_is_used_first_in_a_transaction_that_has_written(project: Project) -> None:
    """SQLite locks the file then, also for the process itself."""
    project.append_settings("TASKS['default']['OPTIONS'] = {}")
    program = """
from django.core.management import call_command
from django.db import connection, transaction

if {migrates}:
    call_command("migrate", verbosity=0)
    result = None
else:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TABLE own (number)")
        result = tasks.add.enqueue(1).id
"""
    project.run(program.format(migrates=True))
    kept = project.run(program.format(migrates=False))
    with (
        backends.backend(f"sqlite:///{project.folder}/app.db") as store,
        contextlib.closing(store.get_connection()) as connection,
    ):
        assert [row.uuid for row in connection.list_flows().flows] == [kept]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("TASKS['default']['OPTIONS'] = {'persistence': 'memory://'}", "got the names ['persiste"),
        ("TASKS['default']['OPTIONS'] = {'database': 'none'}", "DATABASES must contain 'none'"),
        ("DATABASES['flows']['NAME'] = ':memory:'", "must be a file, got ':memory:'; for tests"),
        ("DATABASES['flows']['OPTIONS'] = {'color': 'red'}", "known to wbengine, got color"),
    ],
)
@pytest.mark.parametrize("app", [True, False])
def test_wrong_settings_are_reported(
    setting: str, reason: str, app: bool, project: Project
) -> None:
    project.append_settings(setting, "" if app else "INSTALLED_APPS.remove('django_tasks')")
    checked = project.manage("check")
    assert checked.returncode == 1 and reason in checked.stderr, checked.stderr
    served = project.manage("wbengine", "serve")
    assert served.returncode == 1 and reason in served.stderr, served.stderr
    assert "Traceback" not in served.stderr


OTHER = """TASKS["other"] = {
    "BACKEND": "wbengine.integrations.django.WbengineBackend", "OPTIONS": {"database": "default"}
}"""


def test_command_uses_the_backend_that_is_named(project: Project) -> None:
    project.append_settings(OTHER)
    migrated = project.manage("migrate")  # This creates the tables in the database "default".
    assert migrated.returncode == 0, migrated.stderr
    id = project.run("result = tasks.add.enqueue(1).id")
    unnamed = project.manage("wbengine", "flow", "list")
    assert unnamed.returncode == 1
    assert "use --backend with one of default, other" in unnamed.stderr
    unknown = project.manage("wbengine", "--backend", "mail", "flow", "list")
    assert "must be one of default, other, got 'mail'" in unknown.stderr
    for words, flows in ((("--backend", "default"), [id]), (("--backend=other",), [])):
        listed = project.manage("wbengine", *words, "flow", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        assert [flow["uuid"] for flow in json.loads(listed.stdout)["flows"]] == flows
        assert "backends of database '" in listed.stderr


def test_command_uses_the_only_database_of_several_backends(project: Project) -> None:
    project.append_settings(OTHER.replace("default", "flows"))
    id = project.run("result = tasks.add.enqueue(1).id")
    listed = project.manage("wbengine", "flow", "list", "--json")
    assert [flow["uuid"] for flow in json.loads(listed.stdout)["flows"]] == [id]
    assert "backends of database 'flows': default, other" in listed.stderr


def test_manage_runs_commands_with_the_store_of_the_backend(project: Project) -> None:
    id = project.run("result = tasks.add.enqueue(1).id")
    listed = project.manage("wbengine", "flow", "list", "--json")
    (flow,) = json.loads(listed.stdout)["flows"]
    assert (flow["uuid"], flow["name"]) == (id, "shop.tasks.add")
    assert project.manage("wbengine", "flow", "show", "none").returncode == 66
