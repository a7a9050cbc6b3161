"""The backend of tasks for the setting `TASKS` of Django."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django import db
from django.core.exceptions import ImproperlyConfigured
from django.utils import module_loading, timezone

from wbengine import engines, exceptions
from wbengine.integrations.django import _databases, _framework, _results, _tasks
from wbengine.jobs import base as jobs
from wbengine.persistence import models

__all__ = ["WbengineBackend"]

#: The highest priorities of Django for priorities of jobs; higher ones are VERY_HIGH.
_PRIORITIES: Final = (
    (-51, jobs.JobPriority.VERY_LOW),
    (-1, jobs.JobPriority.LOW),
    (0, jobs.JobPriority.NORMAL),
    (50, jobs.JobPriority.HIGH),
)
_DATABASE: Final = "database"


class WbengineBackend(_framework.BaseTaskBackend):  # type: ignore[misc]
    """Submits each task as a flow with one task. The id of a result is the uuid of its flow.

    `OPTIONS` may contain `database`: the alias of the database in `DATABASES` in which conductors
    run flows (default: 'default'). Tasks that are enqueued in its transactions are part of them.
    """

    task_class = _tasks.WbengineTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get(_DATABASE, db.DEFAULT_DB_ALIAS)
        if not {*self.options} <= {_DATABASE} or not isinstance(self.database, str):
            raise ImproperlyConfigured(
                f"OPTIONS of the task backend {alias!r} must be {{'database': ALIAS}} with an alias"
                f" of DATABASES, got the names {sorted(self.options)}"
            )

    def enqueue(
        self, task: _framework.Task, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> _framework.TaskResult:
        """Submit a task, which is stored when this returns.

        In a transaction of its database, it is stored when the transaction is committed.

        A task that the backend does not support raises the `InvalidTaskError` of Django.

        :raises TypeError, ValueError: if an argument cannot be represented in JSON.
        :raises StorageFailure: if the store is unavailable.
        """
        self.validate_task(task)
        _check_importable(task)
        options = _tasks.options_of(task)
        result = _tasks.new_result(task, options, "", args, kwargs)
        handle = engines.submit(
            task.module_path,
            factory_kwargs={_tasks.OPTIONS: options},
            backend=_databases.backend(self.database),
            inputs={"args": result.args, "kwargs": result.kwargs},
            priority=_priority(task.priority),
            eta=_aware(task.run_after),
            queue=task.queue_name,
            connection=self._transaction(),
        )
        _framework.set_fields(result, id=handle.id, enqueued_at=timezone.now())
        _framework.task_enqueued.send_robust(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> _framework.TaskResult:
        """Return the result with this id.

        If there is none, or it was deleted, `TaskResultDoesNotExist` of Django is raised.

        :raises ImportError: if the function of the task does not exist any more.
        :raises NotTrusted: if the function is not among the allowed flows of this process.
        """
        try:
            result = _results.result_of(self._flow(result_id))
        except exceptions.NotFound as error:
            raise _framework.TaskResultDoesNotExist(result_id) from error
        if result is None:
            raise _framework.TaskResultDoesNotExist(result_id)
        return result

    def earlier_workers(self, result_id: str, attempt: int) -> list[str]:
        """Return the workers that executed a task before this attempt of its flow."""
        return _results.workers_of(self._flow(result_id), attempt) if attempt > 1 else []

    def _transaction(self) -> Any:
        """Return the connection of Django whose transaction includes a task, or None."""
        connection = db.connections[self.database]
        return connection if connection.in_atomic_block else None

    def _flow(self, uuid: str) -> models.FlowDetail:
        with contextlib.closing(_databases.backend(self.database).get_connection()) as connection:
            return connection.get_flow_details(uuid)


def _check_importable(task: _framework.Task) -> None:
    if not isinstance(module_loading.import_string(task.module_path), _tasks.WbengineTask):
        raise _framework.InvalidTaskError(
            f"{task.module_path} must be a task that was defined for this backend:"
            f" @task(backend={task.backend!r})"
        )


def _priority(number: int) -> jobs.JobPriority:
    highest = jobs.JobPriority.VERY_HIGH
    return next((priority for limit, priority in _PRIORITIES if number <= limit), highest)


def _aware(moment: datetime | None) -> datetime | None:
    is_naive = moment is not None and timezone.is_naive(moment)
    return timezone.make_aware(moment) if is_naive else moment
