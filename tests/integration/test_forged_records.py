"""Somebody may write to the store of flows, and forges records: what runs flows does not call what
they name.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine.cli import app
from wbengine.conductors import service
from wbengine.engines import allowed
from wbengine.jobs.backends import impl_sql
from wbengine.operations import resuming
from wbengine.persistence import backends, base, models
from wbengine.schedules import Schedule, Schedules
from wbengine.schedules.service import ScheduleService

HERE = conducted.__name__
EVIL: dict[str, Any] = {"name": "os.mkdir", "args": ["called"], "kwargs": {}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `called` must not appear."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(allowed, "_named", set())
    monkeypatch.setattr(allowed, "_of_process", None)
    return tmp_path


@pytest.fixture
def store(here: Path) -> Iterator[base.Backend]:
    with contextlib.closing(backends.fetch(f"sqlite:///{here}/flows.db")) as made:
        with contextlib.closing(made.get_connection()) as connection:
            connection.upgrade()
        yield made


def kept(store: base.Backend) -> models.FlowDetail:
    engine = engines.load_from_factory(f"{HERE}.greeting", inputs={"name": "Ada"}, backend=store)
    return engine.storage.flow_detail


def forge(store: base.Backend, detail: models.FlowDetail, **noted: Any) -> models.FlowDetail:
    """The record with a note of somebody else's about what made it."""
    with contextlib.closing(store.get_connection()) as connection:
        found = connection.get_flow_details(detail.uuid)
        found.meta[models.FACTORY] = {**found.meta[models.FACTORY], **noted}
        connection.save_changes(found, ())
        return connection.get_flow_details(detail.uuid)


@pytest.mark.parametrize("operation", ["resume", "retry", "revert"])
def test_no_command_calls_what_a_record_names(
    operation: str, store: base.Backend, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = forge(store, kept(store), **EVIL)
    with contextlib.closing(store.get_connection()) as connection:
        detail.state = states.SUSPENDED
        connection.save_changes(detail, ())
    at = f"--persistence=sqlite:///{here}/flows.db"
    assert app.main([at, "flow", operation, detail.uuid, "--yes"]) == 1
    told = capsys.readouterr().err
    assert "Flow factory 'os.mkdir' is not called: it is of Python's standard library" in told
    assert not (here / "called").exists()
    # To look at it is harmless.
    assert app.main([at, "flow", "show", detail.uuid]) == 0
    assert app.main([at, "flow", operation, detail.uuid, "--dry-run"]) == 0


def test_the_caretaker_of_the_guide_calls_nothing(store: base.Backend, here: Path) -> None:
    forge(store, kept(store), **EVIL)
    for detail in base.unfinished_flows(store):
        with pytest.raises(exceptions.NotTrusted):
            engines.load_from_detail(detail, backend=store)
    assert not (here / "called").exists()


def test_a_command_makes_flows_by_what_is_listed(
    store: base.Backend, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uuid = kept(store).uuid
    words = [f"--persistence=sqlite:///{here}/flows.db", "flow", "resume", uuid]
    assert app.main([*words, "--flows", f"{HERE}:greetin"]) == 1
    told = capsys.readouterr().err
    assert f"not among the flows that are allowed (did you mean '{HERE}.greetin'?)" in told
    assert app.main([*words, "--flows", "os"]) == 2
    assert "--flows: flows: 'os' is of Python's standard library" in capsys.readouterr().err
    (here / "wbengine.toml").write_text(f'flows = ["{HERE}:greeting"]\n')
    assert app.main(words) == 0


def test_a_conductor_leaves_alone_what_it_must_not_call(
    store: base.Backend, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its job stays for another one, which may; and flows of others are run."""
    given: dict[str, Any] = {"backend": store, "inputs": {"name": "Ada"}}
    hostile = engines.submit(f"{HERE}:greeting", **given)
    forge(store, hostile._read(), **EVIL)
    other = engines.submit(f"{HERE}:greeting", **given)
    unlisted = engines.submit(f"{HERE}:plain", backend=store, inputs={"folder": "", "mark": ""})
    with conducted_by(service.ConductorService(store, flows=[f"{HERE}:greeting"])):
        assert other.result(60)
        until(lambda: caplog.text.count("is not called") >= 2, within=30)
        assert {hostile.state, unlisted.state} == {states.PENDING}
    assert not (here / "called").exists()


@contextlib.contextmanager
def conducted_by(made: service.ConductorService) -> Iterator[None]:
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield
    finally:
        made.stop()
        thread.join()


def test_a_schedule_in_the_store_fires_nothing_else(store: base.Backend, here: Path) -> None:
    board = impl_sql.SQLJobBoard("b", persistence=store)
    board.connect()
    schedules = Schedules(store, clock=lambda: 0.0)
    told: dict[str, Any] = {"every": 60, "inputs": {"name": "Ada"}}
    for name in ("listed", "other", "evil"):
        schedules.add(Schedule(name=name, factory=f"{HERE}:greeting", **told))
    with contextlib.closing(sqlite3.connect(here / "flows.db")) as connection, connection:
        for name, factory in (("other", f"{HERE}:plain"), ("evil", "os.mkdir")):
            connection.execute(
                "UPDATE wbe_schedules SET definition = replace(definition, ?, ?) WHERE name = ?",
                (f"{HERE}:greeting", factory, name),
            )
    ScheduleService(store, board, clock=lambda: 120.0, flows=[f"{HERE}:greeting"]).fire_due()
    assert schedules.get("listed").last_flow is not None
    assert {schedules.get(name).last_flow for name in ("other", "evil")} == {None}
    assert "NotTrusted" in str(schedules.get("evil").trouble)


def test_a_record_says_not_which_broker_inputs_go_to(store: base.Backend) -> None:
    detail = kept(store)
    detail.meta[models.ENGINE] = "parallel:?max_workers=99"
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_changes(detail, ())
    assert operations.resume(store, detail.uuid).storage.flow_uuid == detail.uuid
    assert resuming.kind(store, detail.uuid) == "parallel"
