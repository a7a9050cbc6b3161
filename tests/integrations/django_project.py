"""Projects of Django, in folders and processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.support import python
from tests.support.waiting import MARGIN

_SETTINGS = """
SECRET_KEY = "test"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django_tasks", "wbengine.integrations.django", "shop"]
DATABASES = {{
    "default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{folder}/app.db"}},
    "flows": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{folder}/flows.db"}},
}}
TASKS = {{
    "default": {{
        "BACKEND": "wbengine.integrations.django.WbengineBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {{"database": "flows"}},
    }},
    "direct": {{"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"}},
}}
"""
_MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
execute_from_command_line(sys.argv)
"""
_TASKS = '''
import pathlib

from django.db import connection
from django.dispatch import receiver
from django_tasks import task
from django_tasks.signals import task_enqueued, task_finished, task_started


class Declined(Exception):
    """An exception of the project."""


@task
def add(a, b=0):
    return a + b


@task(queue_name="mail", priority=60)
def mail(to):
    raise Declined(f"no post to {to}")


@task(takes_context=True)
async def report(context, number):
    return {"number": number, "attempt": context.attempt, "id": context.task_result.id}


@task(takes_context=True)
def flaky(context):
    if context.attempt == 1:
        raise KeyError("once")
    return context.attempt


@task
def query():
    with connection.cursor() as cursor:
        return cursor.execute("SELECT 40 + 2").fetchone()[0]


@task
def unserializable():
    return object()


@task(backend="direct")
def direct():
    return None


def note(kind, task_result):
    with pathlib.Path("signals").open("a") as file:
        file.write(f"{kind} {task_result.task.name} {task_result.status}\\n")
    raise RuntimeError("a receiver fails")


@receiver(task_enqueued)
def note_enqueued(sender, task_result, **kwargs):
    note("enqueued", task_result)


@receiver(task_started)
def note_started(sender, task_result, **kwargs):
    note("started", task_result)


@receiver(task_finished)
def note_finished(sender, task_result, **kwargs):
    note("finished", task_result)
'''
#: Begin of the programs that `Project.run` runs.
_PROGRAM = """
import json

import django

django.setup()

from django_tasks import default_task_backend
from shop import tasks


def caught(work):
    try:
        return repr(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def shown(result):
    value = result.return_value if result.status == "SUCCESSFUL" else None
    times = [result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at]
    return {
        "id": result.id, "status": result.status, "value": value, "attempts": result.attempts,
        "errors": [[each.exception_class_path, each.traceback] for each in result.errors],
        "times": [time and time.timestamp() for time in times],
        "args": result.args, "kwargs": result.kwargs, "name": result.task.name,
        "queue": result.task.queue_name, "priority": result.task.priority,
        "run_after": result.task.run_after and result.task.run_after.isoformat(),
    }


"""


class Project:
    """A project with the application `shop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite:///{folder}/flows.db"
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        (folder / "shop" / "tasks.py").write_text(_TASKS)
        (folder / "settings.py").write_text(_SETTINGS.format(folder=folder))
        (folder / "manage.py").write_text(_MANAGE)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "WBENGINE_PERSISTENCE"},
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONPATH": f"{folder}{os.pathsep}{python.REPOSITORY}",
        }

    def use_postgresql(self, url: str) -> None:
        """Let the tables of the project and the flows be in this database."""
        parsed = sa.make_url(url)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parsed.database,
            "USER": parsed.username,
            "PASSWORD": parsed.password,
            "HOST": parsed.host,
            "PORT": parsed.port,
            "OPTIONS": {"application_name": "shop"},
        }
        self.append_settings(
            f"DATABASES['default'] = {database!r}", "TASKS['default']['OPTIONS'] = {}"
        )
        self.store = url

    def append_settings(self, *lines: str) -> None:
        with (self.folder / "settings.py").open("a") as settings:
            settings.write("\n".join(lines) + "\n")

    def run(self, program: str, **variables: str) -> Any:
        """Run a program that assigns `result`, and return this value."""
        words = ("-c", f"{_PROGRAM}{program}\nprint(json.dumps(result))")
        done = self._python(*words, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._python("manage.py", *words)

    @contextlib.contextmanager
    def serving(self, *words: str) -> Iterator[None]:
        """Run `manage.py wbengine serve` in a `with` block."""
        with (self.folder / "log").open("a") as log:
            options: dict[str, Any] = {"stdout": log, "stderr": log, **self._options()}
            command = ("manage.py", "wbengine", "serve", *words)
            with python.start(command, **options) as process:
                try:
                    yield
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(MARGIN * 20) == 0, (self.folder / "log").read_text()
                finally:
                    process.kill()

    def signals(self) -> list[str]:
        return sorted((self.folder / "signals").read_text().splitlines())

    def _options(self, **variables: str) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {**self._environment, **variables}}

    def _python(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        options = self._options(**variables)
        return python.run(words, capture_output=True, text=True, **options)
