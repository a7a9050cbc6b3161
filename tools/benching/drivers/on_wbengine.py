"""wbengine: `engines.run` and `python -m wbengine.worker`.

By default, each flow has its own executor. With the variant `shared`, all flows share an executor,
as other systems reuse their connections. On RabbitMQ, `ledger` adds a ledger in Redis, and with
`transient` requests are not persistent. With `keys` and `roles`, messages are signed.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import place
import recording
from flows import Flows

from wbengine import engines, operations, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends

PACKAGES = ["wbengine", "kombu", "amqp", "redis", "hiredis", "orjson"]


class Nothing(task.Task):
    def execute(self) -> None:
        return None


class Next(task.Task):
    def execute(self, x: int) -> int:
        return x + 1


class Back(task.Task):
    def execute(self, x: str) -> str:
        return x


class Send(task.Task):
    """Return the time at which the engine has the next task."""

    local = True

    def execute(self) -> float:
        return time.time()


class Delay(task.Task):
    """Return the time between sending and execution."""

    def execute(self, sent: float) -> float:
        return time.time() - sent


def approval() -> linear_flow.Flow:
    """Return a flow that waits for a signal."""
    return linear_flow.Flow("approval").add(task.WaitFor("approved"), Nothing("ship"))


def _keys(folder: Path, *, per_role: bool) -> dict[str, str]:
    """Return the key files of engine and worker."""
    from wbengine._security import keys

    contents = keys.new(per_role=per_role)
    for role, content in contents.items():
        keys.write(folder / f"{role}.json", content)
    return {
        role: str(folder / f"{role if role in contents else keys.ANY}.json")
        for role in (keys.ENGINE, keys.WORKER)
    }


class Driver:
    def __init__(self) -> None:
        import on_wbengine

        if place.RECORD:
            recording.install(place.RECORD, place.FOLDER / "engine.calls")
        self._flows = Flows("wbengine", on_wbengine)
        self._workers = self._executor = None
        if place.LOCAL:
            self._options: dict[str, Any] = {"engine": place.MEDIUM}
            if place.MEDIUM == "parallel":
                self._options["max_workers"] = place.SLOTS
            return
        url = place.URL or f"filesystem://{place.FOLDER}/box"
        self._options = {"engine": "worker-based", "url": url}
        ledger = ["--ledger", place.RESULTS] if place.VARIANT == "ledger" else []
        if place.VARIANT in ("keys", "roles"):
            key_files = _keys(Path(place.FOLDER), per_role=place.VARIANT == "roles")
            self._options["keys"], ledger = key_files["engine"], ["--keys", key_files["worker"]]
        starter = "recording.py" if place.RECORD else "-m"
        self._workers = place.Workers(
            [starter, "wbengine.worker", "--topic", "bench", "--tasks", "on_wbengine",
             "--url", url, "--threads", str(place.SLOTS), "--quiet", *ledger]
        )  # fmt: skip
        if place.VARIANT == "ledger":
            self._options["ledger"] = place.RESULTS
        if place.VARIANT == "transient":
            self._options["broker_persistent"] = False
        if place.VARIANT == "shared":
            from wbengine.engines.worker_based import executor

            self._executor = executor.WorkerTaskExecutor("bench", "default", url=url)
            self._executor.start()
            self._options = {"engine": "worker-based", "executor": self._executor}

    def __getattr__(self, case: str) -> Any:
        if case.startswith("_"):
            raise AttributeError(case)
        run = getattr(self._flows, case)
        return lambda *sizes, **named: run(*sizes, **named, **self._options)

    def map(self, tasks: int) -> None:
        items = task.Map(Next("next"), over="numbers", item="x", provides="results")
        flow = linear_flow.Flow("map").add(items)
        results = engines.run(flow, store={"numbers": list(range(tasks))}, **self._options)
        place.check(len(results["results"]), tasks)

    def latency(self, tasks: int) -> list[float]:
        flow = linear_flow.Flow("latency")
        for n in range(tasks):
            flow.add(
                Send(f"s{n}", provides=f"t{n}"),
                Delay(f"n{n}", rebind={"sent": f"t{n}"}, provides=f"r{n}"),
            )
        results = engines.run(flow, **self._options)
        return [results[f"r{n}"] for n in range(tasks)]

    def parked(self, tasks: int) -> None:
        """Park flows, signal all of them, and then finish them."""
        with (
            tempfile.TemporaryDirectory(dir=place.FOLDER) as folder,
            backends.backend(f"sqlite:///{folder}/flows.db") as backend,
        ):
            with backend.get_connection() as connection:
                connection.upgrade()
            uuids = []
            for _ in range(tasks):
                engine = operations.start(backend, "on_wbengine:approval", **self._options)
                engine.park_after = 0.0
                engine.run()
                place.check(engine.parked is not None, True)
                uuids.append(engine.storage.flow_uuid)
            for uuid in uuids:
                operations.signal(backend, uuid, "approved")
            for uuid in uuids:
                engine = operations.resume(backend, uuid)
                engine.run()
                place.check(engine.storage.get_flow_state(), states.SUCCESS)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.stop()
        if self._workers is not None:
            self._workers.close()
