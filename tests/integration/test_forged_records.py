"""Forged records in the store: no service calls a factory that is not allowed or not signed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted, key_files
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task
from wbengine._cli import app
from wbengine._security import keys
from wbengine.conductors import service
from wbengine.engines import _allowed
from wbengine.jobs.backends import impl_sql
from wbengine.operations import _resuming
from wbengine.persistence import backends, base, models
from wbengine.persistence._edits import Edits
from wbengine.schedules import Schedule, Schedules
from wbengine.schedules._service import ScheduleService
from wbengine.steps import Steps

HERE = conducted.__name__
GREET = conducted.Greet().name
EVIL: dict[str, Any] = {"name": "os.mkdir", "args": ["called"], "kwargs": {}}
PAID: list[str] = []


@task.task
def transfer(to: str, amount: int) -> None:
    """Do nothing."""


@transfer.revert
def refund(to: str, amount: int) -> None:
    PAID.append(f"refund {to} {amount}")


@task.task
def grant(to: str, amount: int) -> None:
    """Do nothing."""


@grant.revert
def revoke(to: str, amount: int) -> None:
    PAID.append(f"revoke {to} {amount}")


@task.workflow
def pay(steps: Steps, amount: int) -> None:
    steps.run(transfer, to="bob", amount=amount)
    steps.wait_for("go")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory, in which a forged factory would create `called`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_allowed, "_used_names", set())
    monkeypatch.setattr(_allowed, "_of_process", None)
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Iterator[base.Backend]:
    with contextlib.closing(backends.fetch(f"sqlite:///{folder}/flows.db")) as made:
        with contextlib.closing(made.get_connection()) as connection:
            connection.upgrade()
        yield made


def stored_greeting(store: base.Backend) -> models.FlowDetail:
    engine = engines.load_from_factory(f"{HERE}.greeting", inputs={"name": "Ada"}, backend=store)
    return engine.storage.flow_detail


def save(store: base.Backend, flow: models.FlowDetail, *records: models.AtomDetail) -> None:
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_changes(flow, records)


def reload(store: base.Backend, detail: models.FlowDetail) -> models.FlowDetail:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(detail.uuid)


def execute(folder: Path, statement: str, *parameters: str) -> int:
    """Execute a statement in the database. Return the number of changed rows."""
    with contextlib.closing(sqlite3.connect(folder / "flows.db")) as connection, connection:
        return connection.execute(statement, parameters).rowcount


def forge(store: base.Backend, detail: models.FlowDetail, **noted: Any) -> models.FlowDetail:
    """Change the stored factory of a flow, and return the changed record."""
    found = reload(store, detail)
    found.meta[models.FACTORY] = {**found.meta[models.FACTORY], **noted}
    save(store, found)
    return reload(store, detail)


@pytest.mark.parametrize("operation", ["resume", "retry", "revert"])
def test_commands_do_not_call_forged_factory_of_a_record(
    operation: str, store: base.Backend, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = forge(store, stored_greeting(store), **EVIL)
    detail.state = states.SUSPENDED
    save(store, detail)
    at = f"--persistence=sqlite:///{folder}/flows.db"
    confirmed = ["--yes"] if operation == "revert" else []
    assert app.main([at, "flow", operation, detail.uuid, *confirmed]) == 1
    told = capsys.readouterr().err
    assert "Flow factory 'os.mkdir' is not allowed: it belongs to Python's standard library" in told
    assert not (folder / "called").exists()
    # Commands that only read do not need the factory.
    assert app.main([at, "flow", "show", detail.uuid]) == 0
    assert app.main([at, "flow", operation, detail.uuid, "--dry-run"]) == 0


def test_load_from_detail_does_not_call_forged_factory(store: base.Backend, folder: Path) -> None:
    forge(store, stored_greeting(store), **EVIL)
    for detail in base.unfinished_flows(store):
        with pytest.raises(exceptions.NotTrusted):
            engines.load_from_detail(detail, backend=store)
    assert not (folder / "called").exists()


def test_resume_command_calls_only_allowed_flows(
    store: base.Backend, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uuid = stored_greeting(store).uuid
    words = [f"--persistence=sqlite:///{folder}/flows.db", "flow", "resume", uuid]
    assert app.main([*words, "--flows", f"{HERE}:plain"]) == 1
    assert "is not among the allowed flows" in capsys.readouterr().err
    assert app.main([*words, "--flows", f"{HERE}:greetin"]) == 2
    assert f"module '{HERE}' has no 'greetin' (did you mean 'greeting'?)" in capsys.readouterr().err
    assert app.main([*words, "--flows", "os"]) == 2
    assert (
        "--flows: flows must not contain 'os': it belongs to Python's standard library"
        in capsys.readouterr().err
    )
    (folder / "wbengine.toml").write_text(f'flows = ["{HERE}:greeting"]\n')
    assert app.main(words) == 0


def test_conductor_does_not_run_flows_that_are_not_allowed(
    store: base.Backend, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job stays for another conductor. Allowed flows run."""
    given: dict[str, Any] = {"backend": store, "inputs": {"name": "Ada"}}
    hostile = engines.submit(f"{HERE}:greeting", **given)
    forge(store, hostile._read(), **EVIL)
    other = engines.submit(f"{HERE}:greeting", **given)
    unlisted = engines.submit(f"{HERE}:plain", backend=store, inputs={"folder": "", "mark": ""})
    with conducted.running(service.ConductorService(store, flows=[f"{HERE}:greeting"])):
        assert other.result(60)
        until(lambda: caplog.text.count("is not allowed") >= 2, within=30)
        assert {hostile.state, unlisted.state} == {states.PENDING}
    assert not (folder / "called").exists()


def forge_schedule(folder: Path, name: str, old: str, new: str) -> None:
    statement = "UPDATE wbe_schedules SET definition = replace(definition, ?, ?) WHERE name = ?"
    assert execute(folder, statement, old, new, name) == 1


def test_forged_schedule_does_not_fire_disallowed_flow(store: base.Backend, folder: Path) -> None:
    board = board_of(store)
    schedules = Schedules(store, clock=lambda: 0.0)
    told: dict[str, Any] = {"every": 60, "inputs": {"name": "Ada"}}
    for name in ("listed", "other", "evil"):
        schedules.add(Schedule(name=name, factory=f"{HERE}:greeting", **told))
    forge_schedule(folder, "other", f"{HERE}:greeting", f"{HERE}:plain")
    forge_schedule(folder, "evil", f"{HERE}:greeting", "os.mkdir")
    ScheduleService(store, board, clock=lambda: 120.0, flows=[f"{HERE}:greeting"]).fire_due()
    assert schedules.get("listed").last_flow is not None
    assert {schedules.get(name).last_flow for name in ("other", "evil")} == {None}
    assert "NotTrusted" in str(schedules.get("evil").trouble)


def test_resume_uses_only_the_engine_kind_of_a_record(store: base.Backend) -> None:
    detail = stored_greeting(store)
    detail.meta[models.ENGINE] = "parallel:?max_workers=99"
    save(store, detail)
    assert operations.resume(store, detail.uuid).storage.flow_uuid == detail.uuid
    assert _resuming.kind(store, detail.uuid) == "parallel"


@pytest.fixture
def signing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a key file, and configure it for this process."""
    return key_files.in_use(folder / "keys.json", monkeypatch)


def assert_rejected(detail: models.FlowDetail, store: base.Backend, words: str) -> None:
    with pytest.raises(exceptions.NotTrusted, match=rf"^flow '{detail.uuid}' .*: .*{words}"):
        engines.load_from_detail(detail, backend=store)


def board_of(store: base.Backend) -> impl_sql.SQLJobBoard:
    board = impl_sql.SQLJobBoard("b", persistence=store)
    board.connect()
    return board


def test_signed_records_are_run(signing: Path, store: base.Backend) -> None:
    """This covers loaded, submitted and saved flows."""
    detail = stored_greeting(store)
    operations.resume(store, detail.uuid).run()
    submitted = engines.submit(f"{HERE}:greeting", backend=store, inputs={"name": "Ada"})
    with conducted.running(service.ConductorService(store)):
        assert submitted.result(60)["greeting"]
    other = models.FlowDetail("o")
    engines.save_factory_details(other, conducted.greeting, None, None)
    assert engines.flow_from_detail(other).name == "greeting"


def test_changed_factory_or_arguments_fail_the_signature_check(
    signing: Path, store: base.Backend
) -> None:
    detail = stored_greeting(store)
    for forged in ({"name": f"{HERE}.plain"}, {"args": ["x"]}, {"kwargs": {"x": 1}}):
        assert_rejected(forge(store, detail, **forged), store, "the MAC does not match")
        forge(store, detail, name=f"{HERE}.greeting", args=[], kwargs={})
    engines.load_from_detail(forge(store, detail), backend=store)


def test_signed_factory_of_another_flow_is_rejected(signing: Path, store: base.Backend) -> None:
    """The signature covers the identifier of the flow."""
    one, other = stored_greeting(store), stored_greeting(store)
    assert_rejected(
        forge(store, one, **other.meta[models.FACTORY]), store, "the MAC does not match"
    )


def test_factory_record_without_mac_or_with_unknown_key_is_rejected(
    signing: Path, store: base.Backend
) -> None:
    detail = stored_greeting(store)
    assert_rejected(forge(store, detail, mac=None), store, "is not signed")
    assert_rejected(forge(store, detail, mac=3), store, "is not signed")
    assert_rejected(forge(store, detail, mac="x.é"), store, "unknown or has expired")
    signing.unlink()
    key_files.shared(signing)
    assert_rejected(reload(store, detail), store, "unknown or has expired")


def test_changed_input_is_rejected(signing: Path, store: base.Backend, folder: Path) -> None:
    detail = stored_greeting(store)
    statement = "UPDATE wbe_atomdetails SET results = replace(results, 'Ada', 'Eve')"
    assert execute(folder, statement) == 1
    assert_rejected(reload(store, detail), store, "input 'name' was changed")


def test_changed_store_metadata_is_rejected(signing: Path, store: base.Backend) -> None:
    detail = stored_greeting(store)
    detail.meta["store"] = {"name": "Eve"}
    save(store, detail)
    assert_rejected(reload(store, detail), store, "store.* was changed")
    engines.save_factory_details(detail, conducted.greeting, None, None, backend=store)
    assert engines.load_from_detail(reload(store, detail), backend=store)


def test_later_injected_values_keep_the_signature_valid(signing: Path, store: base.Backend) -> None:
    engine = engines.load_from_factory(f"{HERE}.greeting", inputs={"name": "Ada"}, backend=store)
    engine.storage.inject({"more": 1})
    assert operations.resume(store, engine.storage.flow_uuid)
    engine.prepare()
    engine.storage.inject_atom_args(GREET, {"name": "Bob"}, transient=False)
    operations.resume(store, engine.storage.flow_uuid).run()


def test_replaced_inputs_keep_the_signature_valid(signing: Path, store: base.Backend) -> None:
    engine = engines.load_from_factory(f"{HERE}.greeting", inputs={"name": "Ada"}, backend=store)
    engine.run()
    engine.storage.set_flow_state(states.SUSPENDED)
    engine.storage.set_atom_state(GREET, states.FAILURE)
    stored_edits = Edits({"name": "Bob"}).to_dict(engine.storage.flow_uuid)
    engine.reset(failed_only=True, edits=Edits.from_dict(stored_edits, engine.storage.flow_uuid))
    again = reload(store, engine.storage.flow_detail)
    resumed = engines.load_from_detail(again, backend=store)
    resumed.run()
    assert resumed.storage.fetch("name") == "Bob"


def test_edits_without_the_mac_of_their_flow_are_rejected(signing: Path) -> None:
    signed = Edits({"name": "Bob"}).to_dict("one")
    for data, flow in (
        (signed, "another"),
        ({**signed, "inputs": {"name": "Eve"}}, "one"),
        ({key: value for key, value in signed.items() if key != "mac"}, "one"),
    ):
        with pytest.raises(exceptions.NotTrusted):
            Edits.from_dict(data, flow)


def record_of(detail: models.FlowDetail, name: str) -> models.AtomDetail:
    (record,) = (each for each in detail if each.name == name)
    return record


@pytest.mark.parametrize("atom", [models.INJECTOR, GREET])
@pytest.mark.parametrize("before", [False, True])
def test_forged_injected_values_are_rejected(
    signing: Path, store: base.Backend, atom: str, before: bool
) -> None:
    """An attacker without keys can replace neither a default value nor a signed input."""
    engine = engines.load_from_factory(f"{HERE}.greeting", inputs={"name": "Ada"}, backend=store)
    engine.prepare()
    if before:
        engine.storage.inject({"more": 1})
        engine.storage.inject_atom_args(GREET, {"more": 1}, transient=False)
    detail = reload(store, engine.storage.flow_detail)
    assert engines.load_from_detail(detail, backend=store)
    record = record_of(detail, atom)
    if atom == models.INJECTOR:
        record.results = {**record.results, "note": "Eve"}
    else:
        record.meta["injected"] = {**record.meta.get("injected", {}), "name": "Eve"}
    save(store, detail, record)
    with pytest.raises(
        exceptions.NotTrusted, match=r"^what is injected into flow .*(MAC|not signed)"
    ):
        engines.load_from_detail(reload(store, detail), backend=store)


@task.task
def pay_rate(rate: int) -> int:
    return rate


@task.workflow
def pay_rates(steps: Steps, rate: int = 0) -> int:
    paid = steps.run(pay_rate, rate)
    if rate < 2:
        steps.continue_as_new(rate=paid + 1)
    steps.wait_for("done")
    return paid


@pytest.mark.parametrize(
    "forged", [{"inputs": {"rate": 9}}, {"signals": {"done": 2}}, {"mac": None}]
)
def test_forged_inputs_of_a_continued_workflow_are_rejected(
    signing: Path, store: base.Backend, forged: dict[str, Any]
) -> None:
    engine = engines.load(pay_rates, backend=store)
    successes: list[str] = []

    def suspend(state: str, details: Any) -> None:
        successes.append(state)
        if len(successes) == 2:
            engine.suspend()

    engine.atom_notifier.register(states.SUCCESS, suspend)
    engine.run()
    detail = reload(store, engine.storage.flow_detail)
    engine = engines.load(pay_rates, backend=store, flow_detail=detail)
    engine.signal("done", True)
    (record,) = (each for each in detail if models.CONTINUED in each.meta)
    honest = record.meta[models.CONTINUED]
    record.meta[models.CONTINUED] = {**honest, **forged}
    save(store, detail, record)
    engine = engines.load(pay_rates, backend=store, flow_detail=reload(store, detail))
    with pytest.raises(exceptions.NotTrusted, match=r"^continuation .*(MAC|not signed)"):
        engine.run()
    record.meta[models.CONTINUED] = honest
    save(store, detail, record)
    engine = engines.load(pay_rates, backend=store, flow_detail=reload(store, detail))
    engine.run()
    assert engine.storage.fetch("result") == 2


@task.workflow
def pay_default(steps: Steps, amount: int = 1) -> int:
    return amount


@pytest.mark.parametrize(
    ("workflow", "forged"),
    [
        pytest.param(pay_default, {"pay": {"amount": 9}}, id="changed"),
        pytest.param(pay_default, None, id="removed"),
        pytest.param(pay, {"pay": {"amount": 9}}, id="added"),
    ],
)
def test_forged_default_of_a_workflow_is_rejected(
    signing: Path, store: base.Backend, workflow: Any, forged: dict[str, Any] | None
) -> None:
    engine = engines.load(workflow, backend=store, inputs={"amount": 1} if workflow is pay else {})
    detail = reload(store, engine.storage.flow_detail)
    assert engines.load_from_detail(detail, backend=store)
    record = record_of(detail, models.INJECTOR)
    record.meta[models.META_DEFAULTS] = forged
    save(store, detail, record)
    assert_rejected(reload(store, detail), store, "defaults.* was changed")


def test_second_record_of_inputs_is_rejected(signing: Path, store: base.Backend) -> None:
    detail = stored_greeting(store)
    second = models.TaskDetail(models.INJECTOR)
    second.results = {"name": "Eve"}
    detail.add(second)
    with pytest.raises(exceptions.NotTrusted, match="is not signed"):
        engines.load_from_detail(detail, backend=store)


def test_signature_is_checked_by_resume_and_not_by_show_or_list(
    signing: Path, store: base.Backend, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = forge(store, stored_greeting(store), mac="0")
    at = f"--persistence=sqlite:///{folder}/flows.db"
    assert app.main([at, "flow", "show", detail.uuid]) == 0
    assert app.main([at, "flow", "list"]) == 0
    capsys.readouterr()
    assert app.main([at, "flow", "resume", detail.uuid]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def paid(store: base.Backend) -> models.FlowDetail:
    """A workflow that has completed a step and waits for a signal."""
    PAID.clear()
    engine = engines.load(pay, {"amount": 10}, backend=store)
    engine.atom_notifier.register(states.SUCCESS, lambda state, details: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    return engine.storage.flow_detail


def change_step(store: base.Backend, flow: models.FlowDetail, **changes: Any) -> None:
    """Change the note of the first step of a stored flow."""
    detail = reload(store, flow)
    step = next(each for each in detail if each.is_step)
    step.meta[models.STEP] = {**step.meta[models.STEP], **changes}
    save(store, detail, step)


FORGED_STEPS: list[dict[str, Any]] = [
    {"arguments": {"to": "mallory", "amount": 1000}},
    {"task": f"{__name__}:grant"},
    {"position": 1},
    {"attempt": 7},
    {"completed": 2},
    {"mac": None},
    {"mac": "x.y"},
]


@pytest.mark.parametrize("changes", FORGED_STEPS)
@pytest.mark.parametrize("operation", [operations.resume, operations.revert])
def test_workflow_with_a_changed_step_is_neither_continued_nor_reverted(
    signing: Path,
    store: base.Backend,
    paid: models.FlowDetail,
    operation: Any,
    changes: dict[str, Any],
) -> None:
    operations.signal(store, paid.uuid, "go")
    change_step(store, paid, **changes)
    with pytest.raises(exceptions.NotTrusted, match=rf"^step .* of flow {paid.uuid}' is not trust"):
        operation(store, paid.uuid).run()
    assert PAID == []


def test_step_of_another_flow_is_not_reverted(
    signing: Path, store: base.Backend, paid: models.FlowDetail
) -> None:
    other = engines.load(pay, {"amount": 10}, backend=store).storage.flow_detail
    record = next(each for each in reload(store, paid) if each.is_step)
    other.add(record)
    with contextlib.closing(store.get_connection()) as connection:
        connection.destroy_flow(paid.uuid)
        connection.save_changes(other, [record])
    operations.signal(store, other.uuid, "go")
    with pytest.raises(exceptions.NotTrusted, match="the MAC does not match"):
        operations.resume(store, other.uuid).run()


def test_signed_steps_are_reverted(
    signing: Path, store: base.Backend, paid: models.FlowDetail
) -> None:
    with contextlib.suppress(exceptions.Cancelled):
        operations.revert(store, paid.uuid).run()
    assert PAID == ["refund bob 10"]


def accept_unsigned(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Path:
    """Create and use a key file that accepts records without a MAC for this time."""
    (content,) = keys.new().values()
    path = folder / "keys.json"
    keys.write(path, {**content, "accept_unsigned_until": time.time() + seconds})
    monkeypatch.setenv(keys.VARIABLE, str(path))
    return path


def test_steps_without_mac_are_reverted_before_the_time_in_the_key_file(
    store: base.Backend, paid: models.FlowDetail, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_unsigned(folder, monkeypatch, 1000)
    with contextlib.suppress(exceptions.Cancelled):
        operations.revert(store, paid.uuid).run()
    assert PAID == ["refund bob 10"]


def test_revert_creates_no_task_that_the_workflow_cannot_name(
    store: base.Backend, paid: models.FlowDetail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds without keys. Allowed flows allow only what their code can name."""
    created: list[Any] = []
    monkeypatch.setattr(conducted.Greet, "__init__", lambda self: created.append(self))
    change_step(store, paid, task=f"{HERE}:Greet")
    with contextlib.suppress(exceptions.WbengineException):
        operations.revert(store, paid.uuid, flows=[f"{__name__}:pay"]).run()
    step = next(each for each in reload(store, paid) if each.is_step)
    assert "does not contain its task" in str(step.revert_failure)
    assert (created, PAID) == ([], [])


def test_unsigned_records_are_accepted_until_the_time_in_the_key_file(
    folder: Path, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until that time records without a MAC are accepted, but none with a wrong MAC."""
    detail = stored_greeting(store)
    path = accept_unsigned(folder, monkeypatch, 1000)
    assert engines.load_from_detail(reload(store, detail), backend=store)
    assert_rejected(forge(store, detail, mac="0"), store, "unknown or has expired")
    path.unlink()
    accept_unsigned(folder, monkeypatch, -1000)
    forge(store, detail, mac=None)
    assert_rejected(reload(store, detail), store, "is not signed")
    # The program of the flow can sign its record.
    detail = reload(store, detail)
    engines.save_factory_details(detail, conducted.greeting, None, None, backend=store)
    assert engines.load_from_detail(reload(store, detail), backend=store)


def test_job_with_changed_details_is_not_run(
    signing: Path, store: base.Backend, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The details contain the identifier of the flow and additional inputs."""
    board = board_of(store)
    book = models.LogBook("b")
    uuids = []
    for name in ("Ada", "Bob"):
        engine = engines.load_from_factory(f"{HERE}.greeting", book=book, backend=store)
        uuids.append(engine.storage.flow_uuid)
        details = {"flow_uuid": uuids[-1], "store": {"name": name}}
        board.post("greeting", book, details)
    assert execute(folder, "UPDATE wbe_jobs SET details = replace(details, 'Bob', 'Eve')") == 2
    with conducted.running(service.ConductorService(store, board=board)):
        until(lambda: "job " in caplog.text and "not trusted" in caplog.text, within=30)
        until(lambda: state_of(store, uuids[0]) == states.SUCCESS, within=30)
    assert state_of(store, uuids[1]) in (None, states.PENDING)


def state_of(store: base.Backend, uuid: str) -> str | None:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(uuid, lazy=True).state


def test_changed_schedule_is_not_fired(signing: Path, store: base.Backend, folder: Path) -> None:
    board = board_of(store)
    schedules = Schedules(store, clock=lambda: 0.0)
    told: dict[str, Any] = {"factory": f"{HERE}:greeting", "every": 60}
    for name in ("good", "bad"):
        schedules.add(Schedule(name=name, inputs={"name": "Ada"}, **told))
    declared = schedules.declare(Schedule(name="good", inputs={"name": "Ada"}, **told))
    assert declared.revision == schedules.get("bad").revision  # it is unchanged
    forge_schedule(folder, "bad", "Ada", "Eve")
    ScheduleService(store, board, clock=lambda: 120.0).fire_due()
    assert schedules.get("good").last_flow is not None
    assert schedules.get("bad").last_flow is None
    assert "schedule 'bad' is not trusted" in str(schedules.get("bad").trouble)
    # listing does not require trust
    assert {each.name for each in schedules.all()} == {"good", "bad"}


def test_keys_option_applies_to_one_command_only(
    signing: Path, store: base.Backend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of a command do not affect the process after it."""
    good, bad = stored_greeting(store).uuid, forge(store, stored_greeting(store), mac="0").uuid
    monkeypatch.delenv(keys.VARIABLE)
    words = [f"--persistence=sqlite:///{folder}/flows.db", "flow", "resume", f"--keys={signing}"]
    more = ["--flows", HERE]
    assert app.main([*words, bad, *more]) == 1
    assert app.main([*words, good, *more]) == 0
    assert keys.VARIABLE not in os.environ
    assert _allowed.of_process().names == ()
