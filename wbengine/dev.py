"""All that flows and workers need, in one process and one folder, to try things.

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

from wbengine.conductors import service
from wbengine.engines.worker_based import worker
from wbengine.keys import NONE, Keyring, shared
from wbengine.persistence import backends, base
from wbengine.schedules.ticks import Schedule

if TYPE_CHECKING:
    from wbengine import dashboard

__all__ = ["DevServer"]

#: Seconds that the worker has to begin, and the dashboard to end.
_BEGIN: Final = 10.0
_END: Final = 10.0

#: What the dashboard takes.
_PAGES: Final = ("starlette", "uvicorn", "jinja2", "sse_starlette")


class DevServer:
    """A broker in a folder, a store, a worker with the tasks of `modules`, a conductor that runs
    what is submitted there and fires `schedules`, and a dashboard where that is installed.

    All of it is in `folder`; without one in a temporary folder, which is gone afterwards.  `port`
    is the dashboard's (0: any that is free; None: no dashboard).  `keys` (default: `WBENGINE_KEYS`)
    sign what is said there if they are shared: those of one role cannot speak for all of it.
    A context manager.

    :raises ImportError: a module cannot be imported.
    :raises ValueError: it offers no tasks.
    :raises OSError: the port is taken, or the folder cannot be used.
    :raises InvalidFormat: the key file cannot be used.
    """

    def __init__(
        self,
        *modules: str,
        folder: str | None = None,
        port: int | None = 0,
        topic: str = "dev",
        concurrency: int | None = None,
        schedules: Iterable[Schedule] = (),
        keys: str | Path | Keyring | None = None,
    ) -> None:
        ring = shared(keys)
        signs = ring or NONE
        #: The key file of all of it, as `WBENGINE_KEYS` names it.
        self.keys = NONE if ring is None else str(ring.path or NONE)
        self._temporary = folder is None
        self.folder = os.path.abspath(folder or tempfile.mkdtemp(prefix="wbengine-dev-"))
        self._ends = contextlib.ExitStack()
        if self._temporary:
            self._ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
        os.makedirs(self.folder, exist_ok=True)
        #: Where engines and workers meet.
        self.url = f"filesystem://{self.folder}/broker"
        #: Where flows are kept.
        self.persistence = f"sqlite:///{self.folder}/flows.db"
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
                schedules=schedules,
            )
            self._site = None if port is None else self._make_site(port, backend, ring)
        except BaseException:
            self._ends.close()
            raise

    def _make_site(
        self, port: int, backend: base.Backend, ring: Keyring | None
    ) -> dashboard.Site | None:
        if not all(importlib.util.find_spec(name) for name in _PAGES):
            return None
        # Not on top: there may be none.
        from wbengine import dashboard
        from wbengine.views import fleet

        told = {
            "WBENGINE_URL": self.url,
            "WBENGINE_KEYS": self.keys,
            "WBENGINE_PERSISTENCE": self.persistence,
        }
        return dashboard.Site(
            backend, port=port, allow_actions=True, show_values=True,
            fleet=fleet.Fleet(url=self.url, keys=ring or NONE), runner=dashboard.Runner(told),
        )  # fmt: skip

    @property
    def login_url(self) -> str | None:
        """The address of the dashboard, with what lets a browser in; None: there is none."""
        return None if self._site is None else self._site.login_url

    def begin(self) -> None:
        """Start all of it; returns when it can be used.

        :raises TransportFailure: the folder cannot be used.
        """
        failed: list[BaseException] = []

        def work() -> None:
            try:
                self.worker.run(display_banner=False)
            except BaseException as error:
                failed.append(error)

        self._start("worker", work, self.worker.stop)
        if not self.worker.wait(_BEGIN) and failed:
            raise failed[0]
        self._start("conductor", self._conductor.run, self._conductor.stop)
        if self._site is not None:
            ready = threading.Event()
            run = functools.partial(self._site.run, ready.set)
            self._start("dashboard", run, self._site.stop)
            ready.wait(_BEGIN)

    def _start(self, name: str, run: Callable[[], Any], stop: Callable[[], Any]) -> None:
        """Run it in a thread, until the end."""
        thread = threading.Thread(target=run, name=f"wbengine-dev-{name}", daemon=True)
        thread.start()
        self._ends.callback(thread.join, _END)
        self._ends.callback(stop)

    def end(self) -> None:
        """End all of it: the worker has 10 seconds to finish what runs.  Idempotent."""
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
