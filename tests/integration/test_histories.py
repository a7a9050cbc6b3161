"""Flows and requests that each release stored: this release resumes them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.histories import flows, make
from tests.support.workers import worker_in_thread
from wbengine import exceptions, operations, states
from wbengine.persistence import backends, base

ARCHIVES = sorted(make.DATA.glob("*.tar.xz"))
#: Flow -> state after its resumption, and its value `result`.
RESULTS: dict[str, tuple[str, Any]] = {
    "killed": (states.SUCCESS, 21),
    "limited": (states.SUCCESS, 23),
    "mapped": (states.SUCCESS, [n * n for n in range(10)]),
    "retried": (states.SUCCESS, 22),
    "suspended": (states.SUCCESS, 40),
    "waiting": (states.SUCCESS, 40),
}
#: Flow -> its state, and that of its first task.
ENDED = {
    "failed": (states.FAILURE, states.SUCCESS),
    "reverted": (states.REVERTED, states.REVERTED),
    "succeeded": (states.SUCCESS, states.SUCCESS),
}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    return tmp_path


@pytest.fixture(params=make.STORES)
def store(request: pytest.FixtureRequest, history: Path) -> Iterator[base.Backend]:
    with backends.backend(make.STORES[request.param].format(history / request.param)) as backend:
        yield backend


def uuid_of(backend: base.Backend, name: str) -> str:
    with contextlib.closing(backend.get_connection()) as connection:
        (uuid,) = [flow.uuid for flow in connection.list_flows().flows if flow.name == name]
    return uuid


def state(backend: base.Backend, name: str) -> str:
    with contextlib.closing(backend.get_connection()) as connection:
        return str(connection.get_flow_details(uuid_of(backend, name)).state)


def test_history_contains_each_kind_of_flow() -> None:
    assert ARCHIVES
    assert RESULTS.keys() | ENDED.keys() == flows.LOCAL.keys()


@pytest.mark.parametrize("kind", make.STORES)
def test_program_stores_flows_of_a_new_history(tmp_path: Path, kind: str) -> None:
    url = make.STORES[kind].format(tmp_path)
    for name, (expected, _) in ENDED.items():
        make.run_local(url, name)
        with backends.backend(url) as backend:
            assert state(backend, name) == expected


@pytest.mark.parametrize("name", RESULTS)
def test_stored_flow_is_resumed_to_its_result(store: base.Backend, name: str) -> None:
    if name == "waiting":
        operations.signal(store, uuid_of(store, name), flows.SIGNAL, "yes")
    engine = operations.resume(store, uuid_of(store, name))
    engine.run()
    expected, result = RESULTS[name]
    assert state(store, name) == expected
    assert engine.storage.fetch("result") == result


@pytest.mark.parametrize("name", ENDED)
def test_stored_flow_that_ended_keeps_its_state(store: base.Backend, name: str) -> None:
    with contextlib.closing(store.get_connection()) as connection:
        flow = connection.get_flow_details(uuid_of(store, name))
    (first,) = [atom for atom in flow if atom.name == f"{flows.__name__}.Number"]
    assert (flow.state, first.state) == ENDED[name]


def test_stored_reverted_flow_is_retried(store: base.Backend) -> None:
    engine = operations.retry(store, uuid_of(store, "reverted"))
    with pytest.raises(ValueError, match="fails always"):
        engine.run()
    assert state(store, "reverted") == states.REVERTED


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
@pytest.mark.parametrize("kind", make.REMOTE)
def test_stored_requests_are_finished_by_new_workers(
    history: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task with a stored result does not run again."""
    folder = history / f"remote-{kind}"
    finished = json.loads((folder / "finished.json").read_text())
    for name in "abcd":
        (history / f"{name}.ends").touch()
    monkeypatch.setenv(flows.MARKERS_VARIABLE, str(history))
    url = make.STORES["sqlite"].format(folder)
    with make.open_broker(kind, folder) as urls, backends.backend(url) as backend:
        options: dict[str, Any] = {"ledger": urls[1]} if urls[1:] else {}
        with worker_in_thread(urls[0], flows, topic=make.TOPIC, **options):
            engine = operations.resume(
                backend, uuid_of(backend, "remote"), engine="worker-based", url=urls[0],
                topics=[make.TOPIC], **options,
            )  # fmt: skip
            engine.run()
        assert state(backend, "remote") == states.SUCCESS
        results = {name: engine.storage.fetch(f"result-{name}") for name in "abcd"}
        assert results == {name: f"{name} 20" for name in "abcd"}
    assert {path.stem for path in history.glob("*.began")} == set("abcd") - {finished}


@pytest.mark.parametrize("kind", make.STORES)
def test_store_of_unknown_newer_release_is_refused(history: Path, kind: str) -> None:
    (path,) = (history / kind).rglob("*.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE wbe_alembic_version SET version_num = '9999', oldest = '9999'")
        connection.commit()
    with (
        pytest.raises(exceptions.StorageFailure, match="revision 9999"),
        backends.backend(make.STORES[kind].format(history / kind)) as backend,
    ):
        operations.resume(backend, "killed")
