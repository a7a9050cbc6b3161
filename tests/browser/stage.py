"""What a browser is shown: a store, two workers in processes of their own, and dashboards."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.browser import shop_tasks
from tests.dashboard.site import running
from tests.support import workers
from wbengine import dashboard, operations
from wbengine.persistence import backends
from wbengine.views.fleet import Fleet

TASKS = "tests.browser.shop_tasks"
EXCHANGE = "shop"

#: Seconds.
_PATIENCE = 90


class Held(str):
    """The uuid of a flow that waits."""

    gate: Path

    def __new__(cls, uuid: str, gate: Path) -> Held:
        made = super().__new__(cls, uuid)
        made.gate = gate
        return made

    def let_go(self) -> None:
        self.gate.touch()


class Stage:
    """Flows are run by threads of this process, their tasks by the workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite:///{folder / 'flows.db'}"
        self.broker = f"filesystem://{folder / 'broker'}"
        self.backend = backends.fetch(self.store)
        self._threads: dict[str, threading.Thread] = {}

    def begin(self, factory: str, store: dict[str, Any] | None = None) -> str:
        """Start a flow; its uuid."""
        engine = operations.start(
            self.backend,
            f"{TASKS}:{factory}",
            store=store,
            engine="workers",
            url=self.broker,
            exchange=EXCHANGE,
            topics=["shop"],
        )
        thread = threading.Thread(target=self._run, args=(engine,), daemon=True)
        thread.start()
        uuid = str(engine.storage.flow_uuid)
        self._threads[uuid] = thread
        return uuid

    @contextlib.contextmanager
    def held(self, factory: str = "night", *, reached: bool = True) -> Iterator[Held]:
        """A flow of which a task runs (or will, unless that was `reached`) until it is let go, at
        the latest when this ends.
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
        """Wait for these flows, or for all that were started."""
        for uuid in uuids or list(self._threads):
            self._threads[uuid].join(_PATIENCE)
            assert not self._threads[uuid].is_alive()

    @staticmethod
    def _run(engine: Any) -> None:
        with contextlib.suppress(Exception):  # those that are to fail
            engine.run()

    def site(self, **options: Any) -> contextlib.AbstractContextManager[dashboard.Site]:
        """A dashboard of all that."""
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
    """Two workers are ready for as long as it lasts."""
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
