"""Write the history of this release: `python -m tests.histories.make`.

It writes `data/VERSION.tar.xz`, and replaces an older archive. The archive contains stores in
SQLite and a folder, and ledgers in a folder, a database and Redis. Each store contains the flows of
`flows.LOCAL`, in the states in which their processes ended or were killed. Each ledger has a flow
whose engine and worker were killed: one request has an unread result (`finished.json` names its
task), one has an owner that died, and the others wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import redis

import wbengine
from tests.histories import flows
from tests.support import brokers, python
from wbengine import exceptions, operations
from wbengine.persistence import backends

DATA: Final = Path(__file__).with_name("data")
STORES: Final = {"sqlite": "sqlite:///{}/flows.db", "dir": "dir://{}/records"}
#: Broker and ledger of each remote flow.
REMOTE: Final = ("redis", "dir", "sqlite")
TOPIC: Final = "history"
_TASK_START_SECONDS: Final = 60.0


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in STORES:
            _write_store(folder / kind, kind)
        for kind in REMOTE:
            _write_remote(folder / f"remote-{kind}", kind)
        DATA.mkdir(exist_ok=True)
        path = DATA / f"{wbengine.__version__}.tar.xz"
        with tarfile.open(path, "w:xz") as archive:
            archive.add(folder, ".", filter=lambda info: None if info.isfifo() else info)
    print(f"{path}: {path.stat().st_size:,} bytes")


def _write_store(folder: Path, kind: str) -> None:
    folder.mkdir()
    url = STORES[kind].format(folder)
    stored_states = {}
    for name in flows.LOCAL:
        _run("local", url, name)
        stored_states[name] = _state(url, name)
    (folder / "states.json").write_text(json.dumps(stored_states, indent=1))
    _checkpoint(folder)


def _write_remote(folder: Path, kind: str) -> None:
    folder.mkdir()
    (folder / "markers").mkdir()
    with open_broker(kind, folder) as urls:
        url = STORES["sqlite"].format(folder)
        worker = _start(folder, "worker", *urls)
        engine = _start(folder, "remote", url, *urls)
        _await(folder / "markers", "began", 1)
        engine.kill()  # its replies remain unread
        engine.wait()
        first = _began(folder / "markers").pop()
        (folder / "markers" / f"{first}.ends").touch()
        _await(folder / "markers", "began", 2)
        worker.kill()
        worker.wait()
        (folder / "finished.json").write_text(json.dumps(first))
    shutil.rmtree(folder / "markers")
    _checkpoint(folder)


@contextlib.contextmanager
def open_broker(kind: str, folder: Path) -> Iterator[list[str]]:
    """Yield the URL of a broker, and that of its separate ledger if it has one.

    The data is in the folder, except that of the broker with a separate ledger. A Redis is started
    with the data that the folder contains, and copies it back at the end.
    """
    if kind == "redis":
        stored = folder / "redis"
        with brokers.redis(appendonly="yes") as server:
            with contextlib.closing(redis.Redis.from_url(str(server.url()))) as client:
                data = Path(client.config_get("dir")["dir"]) / "appendonlydir"
            if stored.exists():
                server.kill()
                _restore(data, stored)
                server.start()
            yield [str(server.url())]
            shutil.copytree(data, stored, dirs_exist_ok=True)
    elif kind == "dir":
        yield [f"filesystem://{folder}/broker"]
    else:  # The history does not contain the broker.
        with tempfile.TemporaryDirectory() as other:
            yield [f"sqlalchemy+sqlite:///{other}/broker.db", f"sqlite:///{folder}/ledger.db"]


def _restore(target: Path, source: Path) -> None:
    """Replace a folder of another user, who may read and write the new one."""
    shutil.rmtree(target)
    shutil.copytree(source, target)
    for path in (target, *target.iterdir()):
        path.chmod(0o777)


def _run(role: str, *arguments: str) -> None:
    command = ["-m", "tests.histories.make", role, *arguments]
    code = python.run(command, env=os.environ | {flows.KILL_VARIABLE: "1"}).returncode
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{command} ended with {code}")


def _start(folder: Path, role: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = ["-m", "tests.histories.make", role, *arguments]
    environment = os.environ | {flows.MARKERS_VARIABLE: str(folder / "markers")}
    return python.start(command, env=environment)


def _began(folder: Path) -> list[str]:
    return [path.stem for path in folder.glob("*.began")]


def _await(folder: Path, suffix: str, count: int) -> None:
    deadline = time.monotonic() + _TASK_START_SECONDS
    while len(list(folder.glob(f"*.{suffix}"))) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} tasks did not begin within {_TASK_START_SECONDS:.0f} s")
        time.sleep(0.01)


def _state(url: str, name: str) -> str:
    with backends.backend(url) as backend, contextlib.closing(backend.get_connection()) as source:
        return str(source.get_flow_details(flows.uuid_of(name)).state)


def _checkpoint(folder: Path) -> None:
    """Move the log of each SQLite file into the file."""
    for path in folder.rglob("*.db"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


# The processes.


def run_local(url: str, name: str) -> None:
    with backends.backend(url) as backend:
        path = f"{flows.__name__}:{name}"
        inputs = {"items": list(range(10))} if name == "mapped" else None
        engine = operations.start(backend, path, store=inputs, uuid=flows.uuid_of(name))
        if name == "suspended":
            flows.suspend_after_number(engine)
        if name == "waiting":
            engine.park_after = 0.1
        with contextlib.suppress(exceptions.WrappedFailure, ValueError, OSError):
            engine.run()


def run_remote(url: str, broker: str, ledger: str | None = None) -> None:
    options: dict[str, Any] = {"url": broker, "topics": [TOPIC]}
    if ledger is not None:
        options["ledger"] = ledger
    with backends.backend(url) as backend:
        path, uuid = f"{flows.__name__}:remote", flows.uuid_of("remote")
        engine = operations.start(backend, path, engine="worker-based", uuid=uuid, **options)
        engine.run()


def run_worker(broker: str, ledger: str | None = None) -> None:
    from wbengine.engines.worker_based import worker

    options = {} if ledger is None else {"ledger": ledger}
    worker.Worker("default", TOPIC, [flows], url=broker, threads_count=1, **options).run()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        {"local": run_local, "remote": run_remote, "worker": run_worker}[sys.argv[1]](*sys.argv[2:])
