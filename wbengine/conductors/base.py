"""The base class of conductors, which makes the engine for the flow of a job."""

from __future__ import annotations

import abc
import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final

from wbengine import engines, exceptions
from wbengine._compat.types import entity
from wbengine._introspection import object_names
from wbengine.engines import _allowed, _engine_choice
from wbengine.jobs import base as jobs
from wbengine.listeners import base as listeners
from wbengine.persistence import base as persistence_base
from wbengine.persistence import models
from wbengine.types import notifier

__all__ = ["Conductor"]


class Conductor(abc.ABC):
    """Claims jobs from `jobboard` and runs their flows.

    :param name: owner of its claims. Several conductors may have the same name.
    :param engine: kind or URI of the engines, with `engine_options`.
    :param flows: allowed factories (see `engines.flow_from_detail`).
    :raises TypeError: if `jobboard` is not a board, or `persistence` is not a backend.
    :raises NotFound: if the kind of engine is unknown.
    :raises ValueError: if an option of the engine, or a name in `flows`, is invalid.
    """

    #: Kind of the entity that is registered at the board.
    ENTITY_KIND: Final = "conductor"

    def __init__(
        self,
        name: str,
        jobboard: jobs.JobBoard,
        persistence: persistence_base.Backend | None = None,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        *,
        flows: _allowed.Flows = None,
    ) -> None:
        if not isinstance(jobboard, jobs.JobBoard):
            # Without the value, because a URI may contain a password.
            raise TypeError(
                f"jobboard must be a JobBoard, got {type(jobboard).__name__}; create one with"
                " jobs.backends.fetch"
            )
        if not isinstance(persistence, persistence_base.Backend | None):
            raise TypeError(
                f"persistence must be a Backend, got {type(persistence).__name__}; create one with"
                " persistence.backends.fetch"
            )
        _engine_choice.check_engine(engine, engine_options or {})
        self._name = object_names.check_length("Conductor name", name)
        self._jobboard = jobboard
        self._persistence = persistence
        self._engine = engine
        self._engine_options = dict(engine_options or {})
        self._flows = _allowed.of_process(flows)
        self._lock = threading.RLock()
        self._notifier = notifier.Notifier()

    @property
    def conductor(self) -> entity.Entity:
        host, pid = socket.gethostname(), os.getpid()
        name = f"{self._name}@{host}:{pid}"
        return entity.Entity(self.ENTITY_KIND, name, {"hostname": host, "pid": pid})

    @property
    def notifier(self) -> notifier.Notifier:
        """Notifier of the conductor's events; its class documents them."""
        return self._notifier

    def _flow_detail_from_job(self, job: jobs.Job) -> models.FlowDetail:
        """Return the record of `details['flow_uuid']`, or of the only flow in its logbook.

        :raises JobFailure: if the details of the job are not a dict.
        :raises NotFound: if there is no such flow.
        :raises MultipleChoices: if its logbook has several flows and the job names none.
        """
        if not isinstance(job.details, Mapping):
            raise exceptions.JobFailure(
                f"details of {job} must be a dict, got {type(job.details).__name__}"
            )
        uuid = job.details.get("flow_uuid")
        if uuid is not None and self._persistence is not None:
            with contextlib.closing(self._persistence.get_connection()) as connection:
                return engines.read_flow_detail(connection, uuid, self._flows)
        book = job.book
        if book is None:
            raise exceptions.NotFound(f"{job} has no logbook, or its job board has no store")
        if uuid is not None:
            flow = book.find(uuid)
            if flow is None:
                raise exceptions.NotFound(f"Logbook of {job} does not contain flow {uuid}")
            return flow
        flows = list(book)
        if not flows:
            raise exceptions.NotFound(f"Logbook of {job} must contain a flow, got none")
        if len(flows) > 1:
            raise exceptions.MultipleChoices(
                f"Logbook of {job} contains {len(flows)} flows; set details['flow_uuid']"
            )
        return flows[0]

    def _engine_from_job(self, job: jobs.Job) -> engines.Engine:
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
        return []

    def connect(self) -> None:
        """Connect the board if it is not connected."""
        with self._lock:
            if not self._jobboard.connected:
                self._jobboard.connect()

    def close(self) -> None:
        """Close the board."""
        with self._lock:
            self._jobboard.close()

    @abc.abstractmethod
    def run(self, max_dispatches: int | None = None) -> None:
        """Claim jobs and run them, until `stop` is called or `max_dispatches` jobs were started.

        Connects the board, and waits while it is unavailable. An interruption of this thread (for
        example Ctrl-C) stops the conductor, and is raised after all claims are released.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Claim no more jobs, suspend running flows, and abandon their jobs, without waiting.

        Thread-safe, and safe in signal handlers.
        """

    @abc.abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until `run` has ended. Return whether it has."""
