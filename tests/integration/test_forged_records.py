"""Somebody may write to the store of flows, and forges records: what runs flows does not call what
they name.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted
from tests.support.waiting import until
from wbengine import engines, exceptions, keys, operations, states
from wbengine.cli import app
from wbengine.conductors import service
from wbengine.engines import allowed
from wbengine.jobs.backends import impl_sql
from wbengine.operations import resuming
from wbengine.persistence import backends, base, models
from wbengine.schedules import Schedule, Schedules
from wbengine.schedules.service import ScheduleService

HERE = conducted.__name__
GREET = conducted.Greet().name
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
    with conducted.running(service.ConductorService(store, flows=[f"{HERE}:greeting"])):
        assert other.result(60)
        until(lambda: caplog.text.count("is not called") >= 2, within=30)
        assert {hostile.state, unlisted.state} == {states.PENDING}
    assert not (here / "called").exists()


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


@pytest.fixture
def signing(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """There are keys, from now on."""
    path = here / "keys.json"
    (content,) = keys.new().values()
    keys.write(path, content)
    monkeypatch.setenv(keys.VARIABLE, str(path))
    return path


def refused(detail: models.FlowDetail, store: base.Backend, words: str) -> None:
    with pytest.raises(exceptions.NotTrusted, match=rf"^flow '{detail.uuid}' .*: .*{words}"):
        engines.load_from_detail(detail, backend=store)


def test_signed_records_are_run(signing: Path, store: base.Backend) -> None:
    """Through the store and back; also of a flow that was submitted, and of one fired."""
    detail = kept(store)
    operations.resume(store, detail.uuid).run()
    submitted = engines.submit(f"{HERE}:greeting", backend=store, inputs={"name": "Ada"})
    with conducted.running(service.ConductorService(store)):
        assert submitted.result(60)["greeting"]
    other = models.FlowDetail("o")
    engines.save_factory_details(other, conducted.greeting, None, None)
    assert engines.flow_from_detail(other).name == "greeting"


def test_what_a_record_calls_is_signed(signing: Path, store: base.Backend) -> None:
    detail = kept(store)
    for forged in ({"name": f"{HERE}.plain"}, {"args": ["x"]}, {"kwargs": {"x": 1}}):
        refused(forge(store, detail, **forged), store, "not have the MAC")
        forge(store, detail, name=f"{HERE}.greeting", args=[], kwargs={})
    engines.load_from_detail(forge(store, detail), backend=store)


def test_a_note_is_of_one_flow_only(signing: Path, store: base.Backend) -> None:
    """That of another flow, with its arguments, is not believed."""
    one, other = kept(store), kept(store)
    refused(forge(store, one, **other.meta[models.FACTORY]), store, "not have the MAC")


def test_a_note_without_a_mac_or_of_another_key_is_refused(
    signing: Path, store: base.Backend
) -> None:
    detail = kept(store)
    refused(forge(store, detail, mac=None), store, "has no MAC")
    refused(forge(store, detail, mac=3), store, "has no MAC")
    refused(forge(store, detail, mac="x.é"), store, "not known")
    signing.unlink()
    (content,) = keys.new().values()
    keys.write(signing, content)
    refused(kept_again(store, detail), store, "not known")


def kept_again(store: base.Backend, detail: models.FlowDetail) -> models.FlowDetail:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(detail.uuid)


def test_inputs_as_given_are_signed(signing: Path, store: base.Backend, here: Path) -> None:
    detail = kept(store)
    with contextlib.closing(sqlite3.connect(here / "flows.db")) as connection, connection:
        found = connection.execute(
            "UPDATE wbe_atomdetails SET results = replace(results, 'Ada', 'Eve')"
        )
        assert found.rowcount == 1
    refused(kept_again(store, detail), store, "input 'name' is another")


def test_inputs_that_conductors_add_are_signed(signing: Path, store: base.Backend) -> None:
    detail = kept(store)
    with contextlib.closing(store.get_connection()) as connection:
        detail.meta["store"] = {"name": "Eve"}
        connection.save_changes(detail, ())
    refused(kept_again(store, detail), store, "store.* is another")
    engines.save_factory_details(detail, conducted.greeting, None, None, backend=store)
    assert engines.load_from_detail(kept_again(store, detail), backend=store)


def test_what_is_injected_later_keeps_a_record_good(signing: Path, store: base.Backend) -> None:
    engine = engines.load_from_factory(f"{HERE}.greeting", inputs={"name": "Ada"}, backend=store)
    engine.storage.inject({"more": 1})
    assert operations.resume(store, engine.storage.flow_uuid)
    engine.prepare()
    engine.storage.inject_atom_args(GREET, {"name": "Bob"}, transient=False)
    operations.resume(store, engine.storage.flow_uuid).run()


@pytest.mark.parametrize("atom", [models.INJECTOR, GREET])
@pytest.mark.parametrize("before", [False, True])
def test_what_is_injected_later_is_signed(
    signing: Path, store: base.Backend, atom: str, before: bool
) -> None:
    """A default's place, or that of a signed input, is taken by nobody who has no keys."""
    engine = engines.load_from_factory(f"{HERE}.greeting", inputs={"name": "Ada"}, backend=store)
    engine.prepare()
    if before:
        engine.storage.inject({"more": 1})
        engine.storage.inject_atom_args(GREET, {"more": 1}, transient=False)
    detail = kept_again(store, engine.storage.flow_detail)
    assert engines.load_from_detail(detail, backend=store)
    (record,) = (each for each in detail if each.name == atom)
    if atom == models.INJECTOR:
        record.results = {**record.results, "note": "Eve"}
    else:
        record.meta["injected"] = {**record.meta.get("injected", {}), "name": "Eve"}
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_changes(detail, [record])
    with pytest.raises(exceptions.NotTrusted, match=r"^what is injected into flow .*MAC"):
        engines.load_from_detail(kept_again(store, detail), backend=store)


def test_second_record_of_inputs_is_not_believed(signing: Path, store: base.Backend) -> None:
    detail = kept(store)
    second = models.TaskDetail(models.INJECTOR)
    second.results = {"name": "Eve"}
    detail.add(second)
    with pytest.raises(exceptions.NotTrusted, match="has no MAC"):
        engines.load_from_detail(detail, backend=store)


def test_keys_are_asked_for_when_a_flow_is_run_and_not_to_look_at_it(
    signing: Path, store: base.Backend, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = forge(store, kept(store), mac="0")
    at = f"--persistence=sqlite:///{here}/flows.db"
    assert app.main([at, "flow", "show", detail.uuid]) == 0
    assert app.main([at, "flow", "ls"]) == 0
    capsys.readouterr()
    assert app.main([at, "flow", "resume", detail.uuid]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_records_of_before_there_were_keys(
    here: Path, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are taken until a time that the key file tells; a wrong MAC is not."""
    detail = kept(store)
    (content,) = keys.new().values()
    path = here / "keys.json"
    keys.write(path, {**content, "accept_unsigned_until": time.time() + 1000})
    monkeypatch.setenv(keys.VARIABLE, str(path))
    assert engines.load_from_detail(kept_again(store, detail), backend=store)
    refused(forge(store, detail, mac="0"), store, "not known")
    path.unlink()
    keys.write(path, {**content, "accept_unsigned_until": time.time() - 1000})
    forge(store, detail, mac=None)
    refused(kept_again(store, detail), store, "has no MAC")
    # Its own program can sign it.
    detail = kept_again(store, detail)
    engines.save_factory_details(detail, conducted.greeting, None, None, backend=store)
    assert engines.load_from_detail(kept_again(store, detail), backend=store)


def test_details_of_jobs_are_signed(
    signing: Path, store: base.Backend, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They say which flow is run, with which inputs more."""
    board = impl_sql.SQLJobBoard("b", persistence=store)
    board.connect()
    book = models.LogBook("b")
    uuids = []
    for name in ("Ada", "Bob"):
        engine = engines.load_from_factory(f"{HERE}.greeting", book=book, backend=store)
        uuids.append(engine.storage.flow_uuid)
        details = {"flow_uuid": uuids[-1], "store": {"name": name}}
        board.post("greeting", book, details)
    with contextlib.closing(sqlite3.connect(here / "flows.db")) as connection, connection:
        found = connection.execute("UPDATE wbe_jobs SET details = replace(details, 'Bob', 'Eve')")
        assert found.rowcount == 2
    with conducted.running(service.ConductorService(store, board=board)):
        until(lambda: "job " in caplog.text and "not to be run" in caplog.text, within=30)
        until(lambda: kept_again_state(store, uuids[0]) == states.SUCCESS, within=30)
    assert kept_again_state(store, uuids[1]) in (None, states.PENDING)


def kept_again_state(store: base.Backend, uuid: str) -> str | None:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(uuid, lazy=True).state


def test_schedules_are_signed(signing: Path, store: base.Backend, here: Path) -> None:
    board = impl_sql.SQLJobBoard("b", persistence=store)
    board.connect()
    schedules = Schedules(store, clock=lambda: 0.0)
    told: dict[str, Any] = {"factory": f"{HERE}:greeting", "every": 60}
    for name in ("good", "bad"):
        schedules.add(Schedule(name=name, inputs={"name": "Ada"}, **told))
    kept = schedules.declare(Schedule(name="good", inputs={"name": "Ada"}, **told))
    assert kept.revision == schedules.get("bad").revision  # it is the same
    with contextlib.closing(sqlite3.connect(here / "flows.db")) as connection, connection:
        connection.execute(
            "UPDATE wbe_schedules SET definition = replace(definition, 'Ada', 'Eve')"
            " WHERE name = 'bad'"
        )
    ScheduleService(store, board, clock=lambda: 120.0).fire_due()
    assert schedules.get("good").last_flow is not None
    assert schedules.get("bad").last_flow is None
    assert "schedule 'bad' is not to be run" in str(schedules.get("bad").trouble)
    assert {each.name for each in schedules.all()} == {"good", "bad"}  # to look is harmless


def test_a_command_takes_keys_by_its_option(
    signing: Path, store: base.Backend, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it was told holds for it alone."""
    good, bad = kept(store).uuid, forge(store, kept(store), mac="0").uuid
    monkeypatch.delenv(keys.VARIABLE)
    words = [f"--persistence=sqlite:///{here}/flows.db", "flow", "resume", f"--keys={signing}"]
    more = ["--flows", HERE]
    assert app.main([*words, bad, *more]) == 1
    assert app.main([*words, good, *more]) == 0
    assert keys.VARIABLE not in os.environ
    assert allowed.of_process().names == ()
