"""A store, two workers in separate processes, and dashboards for a browser."""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.browser import shop_tasks
from tests.dashboard.site import running
from tests.support import workers
from wbengine import dashboard, operations, states
from wbengine.fleet.client import Fleet
from wbengine.persistence import backends

TASKS = "tests.browser.shop_tasks"
EXCHANGE = "shop"

#: Timeout in seconds.
_PATIENCE = 90


class Held(str):
    """Uuid of a flow that waits for a file."""

    gate: Path

    def __new__(cls, uuid: str, gate: Path) -> Held:
        held = super().__new__(cls, uuid)
        held.gate = gate
        return held

    def let_go(self) -> None:
        self.gate.touch()


class Stage:
    """A store whose flows run in threads of this process and whose tasks run on workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite:///{folder / 'flows.db'}"
        self.broker = f"filesystem://{folder / 'broker'}"
        self.backend = backends.fetch(self.store)
        self._threads: dict[str, threading.Thread] = {}
        self._engines: dict[str, Any] = {}
        # Threads in which the engines executed the command to suspend.
        self._suspending: dict[str, queue.SimpleQueue[threading.Thread]] = {}

    def begin(self, factory: str, store: dict[str, Any] | None = None) -> str:
        """Start a flow and return its uuid."""
        engine = operations.start(
            self.backend,
            f"{TASKS}:{factory}",
            store=store,
            engine="workers",
            url=self.broker,
            exchange=EXCHANGE,
            topics=["shop"],
        )
        uuid = str(engine.storage.flow_uuid)
        self._engines[uuid] = engine
        suspending = self._suspending[uuid] = queue.SimpleQueue()
        engine.notifier.register(
            states.SUSPENDING, lambda *_, **__: suspending.put(threading.current_thread())
        )
        thread = threading.Thread(target=self._run, args=(engine,), daemon=True)
        thread.start()
        self._threads[uuid] = thread
        return uuid

    @contextlib.contextmanager
    def held(self, factory: str = "night", *, reached: bool = True) -> Iterator[Held]:
        """Run a flow with a task that runs until `let_go` is called or the context exits.

        :param reached: Wait until that task runs.
        """
        gate = self.folder / f"gate-{secrets.token_hex(4)}"
        held = Held(self.begin(factory, {"gate": str(gate)}), gate)
        try:
            if reached:
                workers.until(shop_tasks.reached(str(gate)).exists, _PATIENCE)
            yield held
        finally:
            held.let_go()
            self.finish(held)

    def finish(self, *uuids: str) -> None:
        """Wait for these flows, or for all started flows."""
        for uuid in uuids or list(self._threads):
            self._threads[uuid].join(_PATIENCE)
            assert not self._threads[uuid].is_alive()

    def await_suspend_command(self, uuid: str) -> None:
        """Wait until the engine of this flow has executed the command to suspend."""
        thread = self._suspending[uuid].get(timeout=_PATIENCE)
        thread.join(_PATIENCE)
        assert not thread.is_alive()

    def await_cancel_command(self, uuid: str) -> None:
        """Wait until the engine of this flow has executed the command to cancel."""
        workers.until(lambda: self._engines[uuid].is_cancelled, _PATIENCE)

    @staticmethod
    def _run(engine: Any) -> None:
        with contextlib.suppress(Exception):  # some flows fail on purpose
            engine.run()

    def site(self, **options: Any) -> contextlib.AbstractContextManager[dashboard.Site]:
        """Return a dashboard of this store and fleet."""
        fleet = Fleet(EXCHANGE, url=self.broker)
        runner = dashboard.Runner(
            {
                "WBENGINE_PERSISTENCE": self.store,
                "WBENGINE_URL": self.broker,
                "WBENGINE_EXCHANGE": EXCHANGE,
                "WBENGINE_TIMEOUT": str(_PATIENCE),
            }
        )
        return running(self.backend, fleet=fleet, runner=runner, **options)


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Run a stage with two workers that are ready."""
    stage = Stage(folder)
    arguments = [
        "--topic", "shop", "--tasks", TASKS, "--exchange", EXCHANGE, "--url", stage.broker,
        "--threads", "4", "--quiet",
    ]  # fmt: skip
    with workers.workers(folder, *arguments, count=2):
        with Fleet(EXCHANGE, url=stage.broker) as fleet:
            assert len(fleet.workers(least=2, wait=_PATIENCE)) == 2
        try:
            yield stage
        finally:
            stage.finish()
            stage.backend.close()
