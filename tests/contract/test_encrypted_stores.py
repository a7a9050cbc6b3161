"""Stores whose content is encrypted: what can be read with the key, without it, and by others."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.seams import stores
from tests.support import key_files, notified, receivers
from wbengine import engines, exceptions, retry, states, task
from wbengine._runtime.gates import signals_and_sleeps
from wbengine._security import keys
from wbengine.jobs import backends as boards
from wbengine.operations import _reencrypting
from wbengine.patterns import linear_flow
from wbengine.persistence import _listing as queries
from wbengine.persistence import base, models
from wbengine.persistence._bulk_records import Bulk, BulkFlow
from wbengine.persistence._edits import Edits
from wbengine.schedules import Schedule, Schedules
from wbengine.signals import Signal
from wbengine.steps import Steps
from wbengine.types._encrypted import ENCRYPTED

SECRET = "Xq7secretXq7"

LOG = logging.getLogger(__name__)


class CardDeclined(Exception):
    """An error with a secret message."""


@task.task(provides="card")
def find_card(customer: str) -> dict[str, str]:
    LOG.warning("customer %s", customer)
    return {"number": f"4111 {customer}"}


@find_card.revert
def forget_card(customer: str) -> str:
    return f"forgot {customer}"


@task.task
def charge(card: Mapping[str, str]) -> None:
    raise CardDeclined(f"no money on {card['number']}")


@task.task
def echo(item: str) -> str:
    return f"echo {item}"


@task.workflow
def approval(steps: Steps) -> Any:
    return steps.wait_for("approved")


def paying() -> linear_flow.Flow:
    return linear_flow.Flow("pay", retry=retry.Times(2)).add(
        find_card(), task.Map(echo(), over="words", item="item", provides="echoes"), charge()
    )


def finding() -> linear_flow.Flow:
    return linear_flow.Flow("find").add(find_card())


@pytest.fixture(params=["sqlite", "dir", "postgresql", "mysql"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def rest_removed(backend: base.Backend) -> Iterator[None]:
    """Remove what belongs to no flow, because tests share the stores."""
    yield
    with stores.engine_of(backend).begin() as connection:
        for table in ("wbe_schedules", "wbe_jobs", "wbe_bulks", "wbe_bulk_flows", "wbe_duties"):
            connection.execute(sa.text(f"DELETE FROM {table}"))


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Key file that encrypts, in use."""
    return key_files.in_use(tmp_path / "keys.json", monkeypatch, encrypt=True)


def use(file: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if file is None:
        monkeypatch.delenv(keys.VARIABLE)
    else:
        monkeypatch.setenv(keys.VARIABLE, str(file))


def rotate(file: Path, name: str, now: float, *, remove_expired: bool = False) -> Path:
    """Write a key file in which the present secrets expire one second after `now`."""
    content = keys.rotated(
        {keys.ANY: keys.read(file)}, now, now + 1, now, remove_expired=remove_expired
    )
    new = file.with_name(name)
    keys.write(new, content[keys.ANY])
    return new


def without_encryption(file: Path) -> Path:
    """Write a key file with the other keys of this one."""
    content = {name: part for name, part in keys.read(file).items() if name != "encrypt"}
    new = file.with_name("signing.json")
    keys.write(new, content)
    return new


def reencrypt_with_new_key(
    backend: base.Backend, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(rotate(file, "new.json", 1.0), monkeypatch)
    old = keys_in_use(backend)
    list(_reencrypting.reencrypt(backend))
    assert old.isdisjoint(keys_in_use(backend))


def failed_flow(backend: base.Backend) -> models.FlowDetail:
    engine = engines.load_from_factory(
        f"{__name__}.paying",
        inputs={"customer": SECRET, "words": [SECRET, "b"]},
        backend=backend,
        keep_logs="on",
    )
    with pytest.raises(CardDeclined):
        engine.run()
    return engine.storage.flow_detail


def texts_of(backend: base.Backend) -> list[str]:
    """Return the content of all tables, one text for each row."""
    metadata, texts = sa.MetaData(), list[str]()
    with stores.engine_of(backend).connect() as connection:
        metadata.reflect(connection)
        for name, table in metadata.tables.items():
            texts += [f"{name}: {tuple(row)}" for row in connection.execute(sa.select(table))]
    return texts


def leaks(backend: base.Backend) -> list[str]:
    """Return the rows that contain the secret."""
    return [text for text in texts_of(backend) if SECRET in text]


def keys_in_use(backend: base.Backend) -> set[str]:
    return set(re.findall(r'"encrypted","k":"(\w+)', " ".join(texts_of(backend))))


def detail_of(backend: base.Backend, uuid: str) -> models.FlowDetail:
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.get_flow_details(uuid)


def test_key_shows_everything_and_others_see_names_states_and_classes(
    backend: base.Backend, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail = failed_flow(backend)
    with contextlib.closing(backend.get_connection()) as connection:
        connection.send_command(
            detail.uuid,
            base.FlowCommand(
                "retry", at=1.0, edits=Edits({"customer": SECRET}).to_dict(detail.uuid)
            ),
        )
        connection.put_signal(detail.uuid, Signal.of("hello", SECRET, 1.0))
        assert leaks(backend) == []
        with_key = connection.get_flow_details(detail.uuid)
        by_name = {atom.name: atom for atom in with_key}
        assert by_name["_wbengine_injector"].results["customer"] == SECRET
        assert by_name[f"{__name__}.find_card"].revert_results == f"forgot {SECRET}"
        assert SECRET in by_name[f"{__name__}.charge"].failure.exception_str
        assert SECRET in with_key.error
        assert SECRET in connection.signals([detail.uuid])[detail.uuid][0].text
        assert f"customer {SECRET}" in str(connection.get_logs(detail.uuid))
        (listed,) = connection.find_flows(queries.Query(error="CardDeclined")).flows
        assert SECRET in listed.error
        assert connection.find_flows(queries.Query(error=SECRET)).flows == [], "only classes match"

        use(None, monkeypatch)
        without = connection.get_flow_details(detail.uuid)
        by_name = {atom.name: atom for atom in without}
        assert by_name["_wbengine_injector"].results["customer"] is ENCRYPTED
        assert by_name[f"{__name__}.find_card"].revert_results is ENCRYPTED
        failure = by_name[f"{__name__}.charge"].failure
        assert failure.exception_str == "<encrypted>"
        assert failure.check(f"{__name__}.CardDeclined")
        assert without.error == "CardDeclined"
        assert [change.state for change in without.history] == [
            change.state for change in with_key.history
        ]
        (listed,) = connection.find_flows(queries.Query(error="CardDeclined")).flows
        assert listed.error == "CardDeclined"
        with pytest.raises(exceptions.StorageFailure, match="this process has no keys"):
            connection.save_changes(without, ())


def test_without_the_key_no_flow_runs_and_no_result_is_returned(
    backend: base.Backend, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.load_from_factory(
        f"{__name__}.finding", inputs={"customer": SECRET}, backend=backend
    )
    use(None, monkeypatch)
    detail = detail_of(backend, engine.storage.flow_uuid)
    with pytest.raises(exceptions.StorageFailure, match="this process has no key"):
        engines.load_from_detail(detail, backend=backend)
    with pytest.raises(exceptions.StorageFailure, match="this process has no key"):
        engines.load(finding(), flow_detail=detail, backend=backend)
    assert detail_of(backend, detail.uuid).state in (None, states.PENDING)
    use(key_file, monkeypatch)
    resumed = engines.load_from_detail(detail_of(backend, detail.uuid), backend=backend)
    resumed.run()
    assert resumed.storage.fetch("card") == {"number": f"4111 {SECRET}"}
    use(None, monkeypatch)
    handle = engines.FlowHandle(detail.uuid, backend, None)  # type: ignore[arg-type]
    with pytest.raises(exceptions.StorageFailure, match="is encrypted"):
        handle.result(5)


def test_text_of_another_place_or_changed_text_is_refused(
    backend: base.Backend, key_file: Path
) -> None:
    first, second = failed_flow(backend), failed_flow(backend)
    with stores.engine_of(backend).begin() as connection:
        (more,) = connection.scalars(
            sa.text("SELECT more FROM wbe_flowdetails WHERE uuid = :uuid"), {"uuid": first.uuid}
        )
        connection.execute(
            sa.text("UPDATE wbe_flowdetails SET more = :more WHERE uuid = :uuid"),
            {"uuid": second.uuid, "more": more},
        )
    with pytest.raises(exceptions.CorruptRecord, match="changed, or belongs to another place"):
        detail_of(backend, second.uuid)
    detail_of(backend, first.uuid)


def test_signal_with_another_key_neither_fails_its_flow_nor_delays_others(
    backend: base.Backend, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = [
        engines.load(approval, backend=backend, engine="parallel").storage.flow_uuid
        for _ in range(2)
    ]
    with contextlib.closing(backend.get_connection()) as connection:
        other = key_file.with_name("other.json")
        keys.write(other, keys.new(encrypt=True)[keys.ANY])
        use(other, monkeypatch)
        connection.put_signal(flows[0], Signal.of("approved", SECRET, 1.0))
        use(key_file, monkeypatch)
        connection.put_signal(flows[1], Signal.of("approved", SECRET, 1.0))
        with pytest.raises(exceptions.CorruptRecord, match="does not contain") as caught:
            connection.signals(flows)
        assert caught.value.flow == flows[0]
        delivered = stores.delivered_signals(backend, flows)
        assert [len(delivered[uuid]) for uuid in flows] == [0, 1]
        received = signals_and_sleeps.ReceivedSignals([], flows[0], backend)
        received.read()
        assert (received.is_damaged, received.all()) == (True, [])
        use(other, monkeypatch)
        received.read()
        assert (received.is_damaged, len(received)) == (False, 1)


def test_rotated_store_is_read_with_the_new_key_only(
    backend: base.Backend,
    key_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flows = [failed_flow(backend) for _ in range(2)]
    with contextlib.closing(backend.get_connection()) as connection:
        connection.put_signal(flows[0].uuid, Signal.of("hello", SECRET, 1.0))
    contents = [stores.row(detail_of(backend, each.uuid)) for each in flows]
    (old,) = keys_in_use(backend)

    both = rotate(key_file, "both.json", 1.0)
    use(both, monkeypatch)
    next(step for step in _reencrypting.reencrypt(backend) if step.rows_written)  # interrupted
    assert keys_in_use(backend) > {old}
    *_, done = _reencrypting.reencrypt(backend)
    assert done.rows_written > 0
    assert old not in keys_in_use(backend)
    *_, again = _reencrypting.reencrypt(backend)
    assert (again.rows, again.rows_written) == (done.rows, 0)

    use(rotate(both, "new.json", 3.0, remove_expired=True), monkeypatch)
    assert [stores.row(detail_of(backend, each.uuid)) for each in flows] == contents
    use(key_file, monkeypatch)
    with pytest.raises(exceptions.CorruptRecord, match="does not contain"):
        detail_of(backend, flows[0].uuid)
    assert leaks(backend) == []


def test_key_file_without_encryption_decrypts_the_store(
    backend: base.Backend, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail = failed_flow(backend)
    use(without_encryption(key_file), monkeypatch)
    *_, done = _reencrypting.reencrypt(backend)
    assert done.rows_written > 0
    assert keys_in_use(backend) == set()
    items = [text for text in texts_of(backend) if text.startswith("wbe_itemdetails")]
    assert items
    assert not any('"meta"' in text for text in items), "items have no such field"
    use(None, monkeypatch)
    assert SECRET in str(detail_of(backend, detail.uuid).error)
    use(key_file, monkeypatch)
    list(_reencrypting.reencrypt(backend))
    assert leaks(backend) == []


def test_inputs_of_schedules_and_their_errors_are_encrypted(
    backend: base.Backend, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = Schedules(backend)
    factory = f"{__name__}.finding"
    schedules.add(Schedule(name="s", factory=factory, every=60, inputs={"customer": SECRET}))
    schedules.note_trouble(schedules.get("s"), f"cannot submit {SECRET}")
    assert leaks(backend) == []
    assert schedules.get("s").schedule.inputs == {"customer": SECRET}
    assert schedules.get("s").last_error == f"cannot submit {SECRET}"
    use(None, monkeypatch)
    entry = schedules.get("s")
    assert (entry.schedule.inputs, entry.last_error) == ({"customer": ENCRYPTED}, "<encrypted>")
    assert entry.schedule.every == 60
    reencrypt_with_new_key(backend, key_file, monkeypatch)
    assert schedules.get("s").schedule.inputs == {"customer": SECRET}


def test_details_of_jobs_are_encrypted(
    backend: base.Backend, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(boards.fetch("b", {"board": "sql"}, persistence=backend)) as board:
        board.connect()
        board.post("pay", details={"flow_uuid": "f", "store": {"customer": SECRET}})
        assert leaks(backend) == []
        (job,) = board.iterjobs()
        assert job.details["store"] == {"customer": SECRET}
        use(None, monkeypatch)
        (job,) = board.iterjobs()
        with pytest.raises(exceptions.JobFailure):
            job.details  # noqa: B018
        reencrypt_with_new_key(backend, key_file, monkeypatch)
        assert '"flow_uuid":"f"' in "".join(texts_of(backend)), "the flow of a job is readable"
        (job,) = board.iterjobs()
        assert job.details["store"] == {"customer": SECRET}


def test_notification_that_waits_to_be_sent_is_encrypted(
    backend: base.Backend, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_time() -> None:
        now = time.time() + 1000
        monkeypatch.setattr(type(backend.get_connection()), "now", lambda connection: now)

    with receivers.receiver() as site:
        site.statuses.append(500)
        service = notified.begun(backend, notified.webhook(site, tmp_path))
        notified.failed(backend, why=f"pay: ValueError: {SECRET}")
        notified.run(service)
        assert len(site.requests) == 1
        assert leaks(backend) == []
        use(None, monkeypatch)
        pass_time()
        with pytest.raises(exceptions.NotTrusted, match="this process has no keys"):
            service.run_due()
        reencrypt_with_new_key(backend, key_file, monkeypatch)
        notified.run(service)
        assert [SECRET in str(request.json) for request in site.requests] == [True, True]


def test_arguments_of_bulk_operations_are_encrypted(
    backend: base.Backend, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail = failed_flow(backend)
    bulk = Bulk("b", "retry", {"set": {"customer": SECRET}}, {}, None, None, None, 1.0, 1)
    seen: list[Any] = []

    def work(store: base.Backend, bulk: Bulk, flows: Sequence[BulkFlow]) -> dict[str, str]:
        seen.append((bulk.arguments, [flow.arguments for flow in flows]))
        return {}

    with contextlib.closing(backend.get_connection()) as connection:
        connection.bulks.add(bulk, [BulkFlow(detail.uuid, "FAILURE", {"reason": SECRET})])
        assert leaks(backend) == []
        assert connection.bulks.get("b").arguments == bulk.arguments
        use(None, monkeypatch)
        assert list(connection.bulks.get("b").arguments) == ["set"]
        with pytest.raises(exceptions.StorageFailure, match="is encrypted"):
            connection.bulks.advance("b", "me", 60, 10, work)
        reencrypt_with_new_key(backend, key_file, monkeypatch)
        connection.bulks.advance("b", "me", 60, 10, work)
    assert seen == [({"set": {"customer": SECRET}}, [{"reason": SECRET}])]


def test_logbook_is_neither_shown_nor_replaced_without_the_key(
    backend: base.Backend, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = models.LogBook("orders")
    book.meta["who"] = SECRET
    with contextlib.closing(backend.get_connection()) as connection:
        connection.save_logbook(book)
        assert leaks(backend) == []
        use(None, monkeypatch)
        again = models.LogBook("orders", book.uuid)
        with pytest.raises(exceptions.StorageFailure, match="Logbook"):
            connection.save_logbook(again)
        use(key_file, monkeypatch)
        assert connection.get_logbook(book.uuid).meta["who"] == SECRET


def test_large_values_are_not_decrypted(
    backend: base.Backend, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail = failed_flow(backend)
    use(without_encryption(key_file), monkeypatch)
    monkeypatch.setattr(backend, "payloads_location", str(tmp_path / "payloads"))
    with pytest.raises(exceptions.InvalidState, match="Large values cannot be decrypted"):
        list(_reencrypting.reencrypt(backend))
    use(key_file, monkeypatch)
    assert SECRET in str(detail_of(backend, detail.uuid).error)
    assert leaks(backend) == []
