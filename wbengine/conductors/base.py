"""What every conductor is: from a job to the engine that runs its flow."""

from __future__ import annotations

import abc
import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final

from wbengine import engines, exceptions
from wbengine.compat.types import entity
from wbengine.engines import allowed, loading
from wbengine.jobs import base as jobs
from wbengine.listeners import base as listeners
from wbengine.persistence import base as persistence_base
from wbengine.persistence import models
from wbengine.types import notifier

__all__ = ["Conductor"]


class Conductor(abc.ABC):
    """Claims jobs from `jobboard`, and runs their flows.

    `engine` (a kind, or a URI with options) and `engine_options` say how; `persistence` keeps the
    records of the flows.  `name` is the owner of its claims: several conductors may have the same.
    `flows` are what may be called to make flows (see `engines.flow_from_detail`).

    :raises TypeError: `jobboard` is no board, or `persistence` no backend (but a URI, say).
    :raises NotFound: there is no such kind of engine.
    :raises ValueError: the engine has no such option, or the option no such value; or `flows` names
        what makes none.
    """

    #: The kind of entity that a board is told of.
    ENTITY_KIND: Final = "conductor"

    def __init__(
        self,
        name: str,
        jobboard: jobs.JobBoard,
        persistence: persistence_base.Backend | None = None,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        *,
        flows: allowed.Flows = None,
    ) -> None:
        if not isinstance(jobboard, jobs.JobBoard):
            # Without its value: there may be a password in a URI.
            raise TypeError(
                "jobboard must be a JobBoard, which jobs.backends.fetch makes, not a"
                f" {type(jobboard).__name__}"
            )
        if not isinstance(persistence, persistence_base.Backend | None):
            raise TypeError(
                "persistence must be a Backend, which persistence.backends.fetch makes, not a"
                f" {type(persistence).__name__}"
            )
        loading.check_engine(engine, engine_options or {})
        self._name = name
        self._jobboard = jobboard
        self._persistence = persistence
        self._engine = engine
        self._engine_options = dict(engine_options or {})
        self._flows = allowed.of_process(flows)
        self._lock = threading.RLock()
        self._notifier = notifier.Notifier()

    @property
    def conductor(self) -> entity.Entity:
        """What a board is told of it."""
        host, pid = socket.gethostname(), os.getpid()
        name = f"{self._name}@{host}:{pid}"
        return entity.Entity(self.ENTITY_KIND, name, {"hostname": host, "pid": pid})

    @property
    def notifier(self) -> notifier.Notifier:
        """Tells what the conductor does; which events there are says its class."""
        return self._notifier

    def _flow_detail_from_job(self, job: jobs.Job) -> models.FlowDetail:
        """The record of a job's flow: `details['flow_uuid']`, or the only one of its book.

        :raises JobFailure: the details of the job are no dict.
        :raises NotFound: there is none.
        :raises MultipleChoices: its book has several, and the job does not say which.
        """
        if not isinstance(job.details, Mapping):
            raise exceptions.JobFailure(
                f"{job} has details that are a {type(job.details).__name__}, and no dict"
            )
        uuid = job.details.get("flow_uuid")
        if uuid is not None and self._persistence is not None:
            with contextlib.closing(self._persistence.get_connection()) as connection:
                return connection.get_flow_details(uuid)
        book = job.book
        if book is None:
            raise exceptions.NotFound(f"{job} has no log book, or its board no persistence backend")
        if uuid is not None:
            found = book.find(uuid)
            if found is None:
                raise exceptions.NotFound(f"The log book of {job} has no flow {uuid}")
            return found
        flows = list(book)
        if not flows:
            raise exceptions.NotFound(f"The log book of {job} has no flow")
        if len(flows) > 1:
            raise exceptions.MultipleChoices(
                f"The log book of {job} has {len(flows)} flows: say which in details['flow_uuid']"
            )
        return flows[0]

    def _engine_from_job(self, job: jobs.Job) -> engines.Engine:
        """An engine for the flow of a job, with the inputs that its record and the job have."""
        detail = self._flow_detail_from_job(job)
        jobs.verify(job)
        store = {**(detail.meta.get("store") or {}), **(job.details.get("store") or {})}
        return engines.load_from_detail(
            detail,
            store=store,
            engine=self._engine,
            backend=self._persistence,
            flows=self._flows,
            **self._engine_options,
        )

    def _listeners_from_job(
        self, job: jobs.Job, engine: engines.Engine
    ) -> list[listeners.Listener]:
        """Listeners that are registered while `engine` runs; for subclasses to add theirs."""
        return []

    def connect(self) -> None:
        """Connect the board, unless it is."""
        with self._lock:
            if not self._jobboard.connected:
                self._jobboard.connect()

    def close(self) -> None:
        """Close the board."""
        with self._lock:
            self._jobboard.close()

    @abc.abstractmethod
    def run(self, max_dispatches: int | None = None) -> None:
        """Claim jobs and run them, until `stop` is called, or so many jobs were begun.

        Connects the board, unless it is; one that cannot be reached is waited for.

        An interruption of its thread (Ctrl-C, say) stops it, and is raised once no job is claimed.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Claim no more; flows that run are suspended, and their jobs abandoned to others.

        From any thread, and from signal handlers.  Does not wait.
        """

    @abc.abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until `run` has ended, for `timeout` seconds at most; whether it has."""
