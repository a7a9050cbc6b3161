"""All parts that flows and workers need, in one process and one folder, for experiments.

::

    with DevServer("orders") as server:
        print(server.url, server.persistence, server.login_url)
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wbengine import transports
from wbengine._security.keys import NONE, Keyring, shared
from wbengine.conductors import service
from wbengine.engines.worker_based import worker
from wbengine.persistence import backends, base
from wbengine.schedules._ticks import Schedule

if TYPE_CHECKING:
    from wbengine import dashboard

__all__ = ["DevServer", "check_database"]

#: Maximum time to wait for the start of the worker, and for the end of each thread.
_START_SECONDS: Final = 10.0
_END_SECONDS: Final = 10.0

#: Packages that the dashboard needs.
_DASHBOARD_PACKAGES: Final = ("starlette", "uvicorn", "jinja2", "sse_starlette")


def check_database(url: str) -> None:
    """Check that a URL is that of a database in PostgreSQL, without connecting.

    :raises ValueError: if it is not.
    """
    target = transports.resolve(url)
    if target.system != "postgresql":
        raise ValueError(f"must be the URL of a PostgreSQL database, got {target.shown}")


class DevServer:
    """A complete installation for experiments in one process. Use it as a context manager.

    It consists of a broker and a store, a worker with the tasks of `modules`, a conductor that runs
    submitted flows and fires `schedules`, and a dashboard if its packages are installed.

    :param folder: the folder of all data; default: a temporary folder that is deleted at the end.
    :param postgresql: the URL of the database that is broker and store, in place of a folder.
    :param port: the port of the dashboard (0: any free port; None: no dashboard).
    :param keys: the keys that sign all messages and records; default: `WBENGINE_KEYS`. Only shared
        keys are used, because keys of a single role cannot sign for all parts.
    :raises ImportError: if a module cannot be imported.
    :raises ValueError: if a module contains no tasks.
    :raises OSError: if the port is in use, or the folder cannot be used.
    :raises InvalidFormat: if the key file cannot be used.
    """

    def __init__(
        self,
        *modules: str,
        folder: str | None = None,
        postgresql: str | None = None,
        port: int | None = 0,
        topic: str = "dev",
        concurrency: int | None = None,
        schedules: Iterable[Schedule] = (),
        keys: str | Path | Keyring | None = None,
    ) -> None:
        ring = shared(keys)
        signs = ring or NONE
        #: The key file of all parts, as a value for `WBENGINE_KEYS`.
        self.keys = NONE if ring is None else str(ring.path or NONE)
        self._ends = contextlib.ExitStack()
        #: URLs of the broker and of the store.
        self.url, self.persistence = (
            (postgresql, postgresql) if postgresql is not None else self._in_folder(folder)
        )
        try:
            self.worker = worker.Worker(
                "default",
                topic,
                modules,
                url=self.url,
                pool="threads",
                concurrency=concurrency,
                keys=signs,
            )
            backend = backends.fetch(self.persistence)
            self._ends.callback(backend.close)
            with contextlib.closing(backend.get_connection()) as connection:
                connection.upgrade()
            self._conductor = service.ConductorService(
                backend,
                engine="workers",
                engine_options={"url": self.url, "keys": signs},
                queues=("*",),
                schedules=schedules,
            )
            self._site = None if port is None else self._make_site(port, backend, ring)
        except BaseException:
            self._ends.close()
            raise

    def _in_folder(self, folder: str | None) -> tuple[str, str]:
        path = os.path.abspath(folder or tempfile.mkdtemp(prefix="wbengine-dev-"))
        if folder is None:
            self._ends.callback(shutil.rmtree, path, ignore_errors=True)
        os.makedirs(path, exist_ok=True)
        return f"filesystem://{path}/broker", f"sqlite:///{path}/flows.db"

    def _make_site(
        self, port: int, backend: base.Backend, ring: Keyring | None
    ) -> dashboard.Site | None:
        if not all(importlib.util.find_spec(name) for name in _DASHBOARD_PACKAGES):
            return None
        # Imported here, because the packages may be missing.
        from wbengine import dashboard
        from wbengine.fleet import client as fleets

        site_options = {
            "WBENGINE_URL": self.url,
            "WBENGINE_KEYS": self.keys,
            "WBENGINE_PERSISTENCE": self.persistence,
        }
        return dashboard.Site(
            backend, port=port, allow_actions=True, show_values=True,
            fleet=fleets.Fleet(url=self.url, keys=ring or NONE),
            runner=dashboard.Runner(site_options),
        )  # fmt: skip

    @property
    def login_url(self) -> str | None:
        """The URL of the dashboard with its login token, or None if there is no dashboard."""
        return None if self._site is None else self._site.login_url

    def begin(self) -> None:
        """Start all parts, and return when they are ready.

        :raises TransportFailure: if the folder cannot be used.
        """
        failed: list[BaseException] = []

        def work() -> None:
            try:
                self.worker.run(display_banner=False)
            except BaseException as error:
                failed.append(error)

        self._start("worker", work, self.worker.stop)
        if not self.worker.wait(_START_SECONDS) and failed:
            raise failed[0]
        self._start("conductor", self._conductor.run, self._conductor.stop)
        if self._site is not None:
            ready = threading.Event()
            run = functools.partial(self._site.run, ready.set)
            self._start("dashboard", run, self._site.stop)
            ready.wait(_START_SECONDS)

    def _start(self, name: str, run: Callable[[], Any], stop: Callable[[], Any]) -> None:
        thread = threading.Thread(target=run, name=f"wbengine-dev-{name}", daemon=True)
        thread.start()
        self._ends.callback(thread.join, _END_SECONDS)
        self._ends.callback(stop)

    def end(self) -> None:
        """Stop all parts. Running tasks have 10 seconds to finish. Idempotent."""
        self._ends.close()

    def __enter__(self) -> DevServer:
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()
