"""Messages about failed flows and other events of a store."""

from __future__ import annotations

import contextlib
import email
import email.policy
import hashlib
import hmac
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from tests.operations import undo_flows
from tests.support import conducted, fragile_tasks, python, receivers, requested, servers, workers
from tests.support.destinations import Destination
from tests.support.killed import is_killed
from tests.support.notified import (
    KEY,
    begun,
    change,
    execute,
    failed,
    progress,
    run,
    services,
    webhook,
)
from tests.support.reading import save_flow
from tests.support.waiting import until
from wbengine import engines, exceptions, notifications, operations, schedules, states, testing
from wbengine._sql import dialects
from wbengine.conductors.service import ConductorService
from wbengine.jobs.backends import impl_sql
from wbengine.notifications import _collecting, _reading, _service, _settings
from wbengine.notifications._progress import Progress, duty_name
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models
from wbengine.persistence import base as persistence


@pytest.fixture
def store(tmp_path: Path) -> Iterator[persistence.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


@pytest.fixture
def events() -> list[notifications.Event]:
    """Events that a hook received."""
    return []


def submit_greeting(store: persistence.Backend, **options: Any) -> engines.FlowHandle:
    return engines.submit(conducted.greeting, backend=store, inputs={"name": "x"}, **options)


def test_failed_flow_is_sent_once_with_a_signature(new_ops: Destination) -> None:
    new_ops.failed("earlier")
    ops = new_ops.begin(dashboard_url="https://flows.example.com/")
    ops.run()
    assert ops.requests == []  # Not the past.
    uuid = ops.failed(tags={"team": "billing", "amount": 172, "urgent": True})
    ops.run()
    ops.run()
    (request,) = ops.requests
    content = request.json
    assert content["schema"] == "wbengine/notification/1" and content["count"] == 1
    ((event,),) = [group["events"] for group in content["groups"]]
    assert {**event, "id": 0, "at": 0, "time": 0} == {
        "id": 0,
        "at": 0,
        "time": 0,
        "kind": "flow_failed",
        "name": "order",
        "flow": uuid,
        "state": "FAILURE",
        "reason": "pay: ValueError: oops",
        "worker": None,
        "tags": {"team": "billing", "amount": 172, "urgent": True},
        "url": f"https://flows.example.com/flows/{uuid}",
    }
    timestamp = request.headers["Wbengine-Timestamp"]
    assert abs(time.time() - int(timestamp)) < 60
    digest = hmac.new(KEY.encode(), f"{timestamp}.".encode() + request.body, hashlib.sha256)
    assert request.headers["Wbengine-Signature"] == f"sha256={digest.hexdigest()}"


@pytest.mark.slow
def test_five_thousand_failures_are_one_message(ops: Destination) -> None:
    book = models.LogBook("b")
    for _ in range(5000):
        flow = models.FlowDetail("order")
        flow.enter(states.FAILURE, time.time(), "pay: ValueError: oops")
        book.add(flow)
    with contextlib.closing(ops.store.get_connection()) as connection:
        connection.save_logbook(book)
    ops.run()
    ops.run()
    (request,) = ops.requests
    (group,) = request.json["groups"]
    assert group["count"] == 5000 and len(group["events"]) == 5
    assert len(request.body) < 10_000 and "5,000 flows failed: order" in request.json["title"]


def test_many_names_are_grouped(ops: Destination) -> None:
    for number in range(60):
        ops.failed(f"order {number}")
    ops.run()
    assert len(ops.requests) == 1
    assert len(ops.groups) <= 20 and sum(group["count"] for group in ops.groups) == 60
    assert ops.groups[0]["name"] is None


def test_message_waits_for_others_and_for_the_interval(new_ops: Destination) -> None:
    ops = new_ops.begin(group_wait=300, interval=300)
    ops.failed()
    assert 0 < ops.service.run_due() <= ops.service.PERIOD_SECONDS and ops.requests == []
    ops.failed()
    ops.execute("UPDATE wbe_flowdetails SET ended = ended - 301")
    since = {source: at - 301 for source, at in ops.progress().since.items()}
    ops.change(started=0.0, since=since)
    ops.run()
    assert ops.kinds == [("flow_failed", "order", 2)]
    ops.failed()
    ops.execute("UPDATE wbe_flowdetails SET ended = ended - 301")
    assert ops.service.run_due() == ops.service.PERIOD_SECONDS
    ops.run()
    assert len(ops.requests) == 1


def test_row_that_is_stored_after_a_later_one_is_sent(ops: Destination) -> None:
    """A transaction can wait for longer than others after it has read the clock."""
    ops.change(started=0.0)
    ops.failed("first")
    ops.run()
    late = ops.failed("late")
    ops.execute(f"UPDATE wbe_flowdetails SET ended = ended - 50 WHERE uuid = '{late}'")
    ops.run()
    ops.run()
    assert [name for _, name, _ in ops.kinds] == ["first", "late"]


def test_only_failures_are_sent(ops: Destination) -> None:
    """Neither cancelled flows, nor flows that were reverted on request."""
    ops.failed("cancelled", "by me", states.REVERTED, cancelled={"at": 1.0, "reason": None})
    ops.failed("requested", None, states.REVERTED)
    ops.failed("reverted", state=states.REVERTED)
    ops.succeeded("done")
    ops.failed("stuck", "undo: ValueError: oops", cancelled={"at": 1.0, "reason": None})
    ops.run()
    assert sorted(ops.kinds) == [("flow_failed", "reverted", 1), ("flow_failed", "stuck", 1)]


def test_undo_that_failed_or_left_effects_is_sent(ops: Destination) -> None:
    failing, complete, partial = (
        engines.submit(factory, backend=ops.store, name=name).id
        for name, factory in (
            ("failing", undo_flows.plain),
            ("complete", undo_flows.plain),
            ("partial", undo_flows.order),
        )
    )
    testing.run_submitted(ops.store)
    undo_flows.FAILING.append("charge")
    operations.request(ops.store, failing, "revert")
    testing.run_submitted(ops.store)
    undo_flows.FAILING.clear()
    operations.request(ops.store, complete, "revert")
    operations.request(ops.store, partial, "revert", partial=True)
    testing.run_submitted(ops.store)
    ops.run()
    reasons = {group["name"]: group["events"][0]["reason"] for group in ops.groups}
    assert {group["kind"] for group in ops.groups} == {"undo_incomplete"}
    assert set(reasons) == {"failing", "partial"}
    assert "OSError: the bank does not answer" in reasons["failing"]
    assert reasons["partial"] == "effects remain: tests.operations.undo_flows.send"
    operations.request(ops.store, failing, "revert")
    testing.run_submitted(ops.store)
    sent = len(ops.requests)
    ops.run()
    assert len(ops.requests) == sent


def test_flows_are_selected_by_name_and_tag(new_ops: Destination) -> None:
    rules = {"flows": ["bill*"], "tags": {"team": "a"}}
    ops = new_ops.begin(**rules)
    ops.failed("bill")
    ops.failed("billing", tags={"team": "b"})
    ops.failed("order", tags={"team": "a"})
    ops.failed("bills", tags={"team": "a"})
    ops.run()
    assert ops.kinds == [("flow_failed", "bills", 1)]


def test_recovery_is_sent_once_after_a_failure(ops: Destination) -> None:
    ops.succeeded("other")
    ops.failed()
    ops.run()
    uuid = ops.succeeded()
    ops.succeeded()
    ops.run()
    ops.succeeded()
    ops.run()
    assert ops.kinds == [("flow_failed", "order", 1), ("flow_recovered", "order", 1)]
    assert ops.requests[1].json["groups"][0]["events"][0]["flow"] != uuid  # the latest


def test_success_before_the_failure_is_no_recovery(ops: Destination) -> None:
    ops.succeeded()
    ops.failed()
    ops.run()
    ops.run()
    assert ops.kinds == [("flow_failed", "order", 1)]


def test_recovery_waits_until_no_flow_of_the_name_fails(new_ops: Destination) -> None:
    """During an incident, successes between failures are no recovery."""
    ops = new_ops.begin(interval=60)
    for _ in range(3):
        ops.failed()
        ops.succeeded()
        ops.change(next_at=0.0)
        ops.run()
    assert ops.kinds == [("flow_failed", "order", 1)] * 3
    ops.pass_time(61)
    ops.run()
    assert ops.kinds[3:] == [("flow_recovered", "order", 1)]
    ops.failed()
    ops.succeeded()
    ops.pass_time(61)
    ops.run()
    assert ops.kinds[4:] == [("flow_failed", "order", 1), ("flow_recovered", "order", 1)]


def test_success_is_remembered_during_a_long_interval(new_ops: Destination) -> None:
    """The interval is longer than the time for which rows are read again."""
    ops = new_ops.begin(interval=3600)
    ops.failed()
    ops.succeeded()
    ops.run()
    for _ in range(10):
        ops.change(next_at=0.0)
        ops.run()
        ops.pass_time(370)
    ops.run()
    assert ops.kinds == [("flow_failed", "order", 1), ("flow_recovered", "order", 1)]


def test_repaired_flows_are_counted(new_ops: Destination) -> None:
    """Also those that succeeded before the latest failure, but not those that fail again."""
    ops = new_ops.begin(interval=60)
    uuids = [ops.failed() for _ in range(4)]
    ops.run()
    ops.repaired(uuids[0])
    ops.repaired(uuids[1], states.FAILURE)
    ops.succeeded()
    ops.repaired(uuids[2])
    ops.change(next_at=0.0)
    ops.run()
    ops.pass_time(61)
    ops.run()
    assert ops.kinds[-1] == ("flow_recovered", "order", 2)
    events = ops.requests[-1].json["groups"][0]["events"]
    assert {event["flow"] for event in events} == {uuids[0], uuids[2]}


def test_success_with_other_tags_is_no_recovery(new_ops: Destination) -> None:
    ops = new_ops.begin(tags={"team": "a"})
    ops.failed(tags={"team": "a"})
    ops.run()
    ops.succeeded(tags={"team": "b"})
    ops.run()
    assert ops.kinds == [("flow_failed", "order", 1)]
    ops.succeeded(tags={"team": "a"})
    ops.succeeded(tags={"team": "b"})  # the latest success
    ops.run()
    assert ops.kinds[1:] == [("flow_recovered", "order", 1)]


def test_flow_with_a_masked_name_recovers(ops: Destination) -> None:
    ops.failed("sync password=hunter22")
    ops.run()
    ops.succeeded("sync password=hunter22")
    ops.run()
    assert [kind for kind, _, _ in ops.kinds] == ["flow_failed", "flow_recovered"]
    assert "hunter22" not in str(ops.kinds)


def test_names_that_fail_are_limited_to_the_latest() -> None:
    stored = Progress()
    for number in range(1100):
        stored.note_failing(f"order {number}", float(number))
    stored.note_failing("order 50", 2.0)
    assert list(stored.failing) == [f"order {number}" for number in range(100, 1100)]


def test_flow_with_a_lost_worker_is_sent_with_the_worker(ops: Destination) -> None:
    for name, event in (("lost", states.WORKER_LOST), ("resent", states.RESENT)):
        flow, task = models.FlowDetail(name), models.TaskDetail("t")
        flow.state, flow.resent_at = states.RUNNING, time.time()
        task.add_incident(models.Incident(event, time.time(), 1, "host:7"))
        flow.add(task)
        save_flow(ops.store, flow)
    ops.failed("failing", "t: WorkerLost: worker host:8 was lost")
    ops.run()
    assert sorted(ops.kinds) == [
        ("flow_failed", "failing", 1),
        ("worker_lost", "failing", 1),
        ("worker_lost", "lost", 1),
    ]
    (lost,) = [group for group in ops.groups if group["name"] == "lost"]
    assert lost["events"][0]["worker"] == "host:7"


@pytest.mark.parametrize("is_resent", [True, False])
def test_killed_worker_is_sent(ops: Destination, is_resent: bool) -> None:
    url = f"filesystem://{ops.folder / 'broker'}"
    arguments = ("--url", url, "--topic", "t", "--threads", "1")
    tasks = ("--tasks", "tests.support.fragile_tasks")
    mortal = fragile_tasks.Mortal("m") if is_resent else fragile_tasks.Once("m")
    with workers.workers(ops.folder, *arguments, *tasks, count=2 if is_resent else 1):
        engine = engines.load(
            linear_flow.Flow("fragile").add(mortal),
            store={"folder": str(ops.folder), "numbers": [7]},
            engine="worker-based",
            backend=ops.store,
            url=url,
            worker_expiry=2.0,
            transition_timeout=300,
        )
        with contextlib.nullcontext() if is_resent else pytest.raises(exceptions.WorkerLost):
            engine.run()
    ops.run()
    lost = [each for each in ops.requests[0].json["groups"] if each["kind"] == "worker_lost"]
    assert [(group["name"], group["count"]) for group in lost] == [("fragile", 1)]
    assert socket.gethostname() in lost[0]["events"][0]["worker"]
    assert len(ops.requests[0].json["groups"]) == (1 if is_resent else 2)


def test_backlog_is_sent_once_until_it_is_over(new_ops: Destination) -> None:
    ops = new_ops.begin(backlog_after=600)

    def submit(age: float, **options: Any) -> str:
        uuid = submit_greeting(ops.store, **options).id
        ops.execute(f"UPDATE wbe_flowdetails SET created = created - {age} WHERE uuid = '{uuid}'")
        return uuid

    submit(900, eta=3600)  # It is not due.
    submit(500)
    ops.run()
    assert ops.requests == []
    first, second = submit(700), submit(800)
    ops.run()
    ops.run()
    (request,) = ops.requests
    assert ops.kinds == [("backlog", "greeting", 1)]
    assert request.json["groups"][0]["events"][0]["flow"] == second
    ops.execute(f"UPDATE wbe_flowdetails SET state = 'RUNNING' WHERE uuid = '{second}'")
    ops.run()
    assert len(ops.requests) == 1  # It is not over.
    ops.execute("UPDATE wbe_flowdetails SET state = 'RUNNING'")
    ops.run()
    third = submit(700)
    ops.run()
    assert len(ops.requests) == 2 and first != third


def test_missing_firing_is_sent_once_with_its_error(new_ops: Destination) -> None:
    ops = new_ops.begin(missed_after=60)
    every = {"factory": "tests.support.conducted:plain", "every": 3600}
    stored = schedules.Schedules(ops.store)
    for name in ("paused", "late", "waits"):
        overlap = {"overlap": "queue", "catch_up": "one"} if name == "waits" else {}
        stored.declare(schedules.Schedule.from_dict(name, {**every, **overlap}))
    stored.pause("paused")
    ops.execute("UPDATE wbe_schedules SET due = 100, next_tick = 100")
    running = submit_greeting(ops.store)
    ops.execute(f"UPDATE wbe_schedules SET last_flow = '{running.id}' WHERE name = 'waits'")
    ops.execute("UPDATE wbe_schedules SET trouble = 'ValueError: password=canary'")
    ops.run()
    ops.run()
    assert ops.kinds == [("schedule_missed", "late", 1)]
    assert b"1970-01-01T00:01:40Z is missing: ValueError: password=***" in ops.requests[0].body


def test_blocked_flow_is_sent(ops: Destination) -> None:
    handle = submit_greeting(ops.store)
    board = impl_sql.SQLJobBoard("served", persistence=ops.store)
    board.connect()
    (job,) = board.iterjobs()
    board.claim(job, "me")
    board.block(cast(Any, job), "me")
    # The time of blocking is rounded to seconds.
    until(lambda: ops.service.run_due() > 0.0 and bool(ops.requests))
    ops.run()
    assert ops.kinds == [("flow_blocked", "greeting", 1)]
    assert ops.requests[0].json["groups"][0]["events"][0]["flow"] == handle.id


def test_flow_that_cannot_be_created_is_sent_once(ops: Destination) -> None:
    inputs = {"folder": f"{ops.folder}", "mark": "m"}
    handle = engines.submit(conducted.interrupted, backend=ops.store, inputs=inputs)
    conducted.RAISED_ONCE["factory"] = ValueError("no price list")
    requested.run_jobs(ops.store)
    ops.run()
    assert ops.kinds == [("flow_trashed", "interrupted", 1)]
    assert b"the log of the conductor contains the reason" in ops.requests[0].body
    ops.pass_time(400)
    operations.request(ops.store, handle.id, "resume")
    requested.run_jobs(ops.store)
    ops.run()
    assert handle.state == states.SUCCESS and len(ops.requests) == 1


def test_note_of_a_process_without_a_source_is_read(ops: Destination) -> None:
    since = {source: ops.progress().since[source] for source in _reading.SOURCES[:-1]}
    ops.change(since=since)
    ops.failed()
    ops.run()
    assert ops.kinds == [("flow_failed", "order", 1)]
    assert {*ops.progress().since} == {*_reading.SOURCES}


def test_secrets_and_values_are_masked(ops: Destination) -> None:
    inputs = {"folder": str(ops.folder), "mark": "x", "kind": "value", "api_token": "canary-17"}
    handle = engines.submit(conducted.failing, backend=ops.store, inputs=inputs)
    with conducted.running(ConductorService(ops.store)):
        with contextlib.suppress(ValueError):
            handle.result(60)
        until(lambda: handle.state == states.REVERTED)
    ops.execute("UPDATE wbe_flowdetails SET more = REPLACE(more, 'oops', 'oops canary-17')")
    ops.failed("with url", "t: ValueError: redis://me:canary-18@host/0")
    ops.run()
    text = b"".join(request.body for request in ops.requests)
    assert b"ValueError: oops" in text and b"redis://me:***@host/0" in text
    assert b"canary" not in text


def test_messages_of_errors_are_left_out_on_request(new_ops: Destination) -> None:
    ops = new_ops.begin(error_messages=False)
    ops.failed()
    ops.failed("engine", "StorageFailure: the disk is full")
    ops.run()
    reasons = {group["name"]: group["events"][0]["reason"] for group in ops.groups}
    assert reasons == {"order": "pay: ValueError", "engine": "StorageFailure"}


@pytest.mark.parametrize("status", [302, 307, 400, 500])
def test_refused_message_is_repeated_with_its_id_and_logged_once(
    status: int, new_ops: Destination, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site = new_ops.site
    site.statuses = [status] * 3
    with receivers.receiver() as other:
        site.location = other.url
        ops = new_ops.begin()
        ops.failed()
        pauses = []
        for _ in range(4):
            ops.run()
            ops.failed("later")
            pauses.append(ops.progress().retry_at - time.time())
            ops.change(retry_at=0.0)
        assert other.requests == []  # No redirect was followed.
    assert len(set(site.ids[:4])) == 1 and len({each.body for each in site.requests[:4]}) == 1
    assert pauses[:3] == pytest.approx([5, 10, 20], abs=3)
    warnings = [each for each in caplog.messages if "cannot send" in each]
    assert len(warnings) == 1 and f"HTTP status {status}" in warnings[0]
    assert ("redirects are not followed" in warnings[0]) == (status < 400)
    assert "canary" not in caplog.text and "127.0.0.1" in warnings[0]
    assert sum("are sent again" in each for each in caplog.messages) == 1
    ops.run()
    assert sum(count for _, name, count in ops.kinds if name == "later") == 4


def test_message_is_dropped_after_a_day(new_ops: Destination) -> None:
    new_ops.site.statuses = [400] * 2
    ops = new_ops.begin()
    ops.failed()
    ops.run()
    ops.change(failing_since=time.time() - 90_000, retry_at=0.0)
    ops.run()
    assert ops.progress().outbox is None and ops.progress().error == "HTTP status 400"
    ops.failed("later")
    ops.run()
    assert ops.kinds[-1] == ("flow_failed", "later", 1) and ops.progress().error is None


def test_receiver_that_hangs_is_given_up_and_delays_no_other(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """The conductor runs flows meanwhile."""
    site.answers.clear()
    with receivers.receiver() as other:
        settings = webhook(site, tmp_path, events=["flow_failed"])
        settings["to"]["ops"]["timeout"] = 1
        settings["to"]["other"] = {**settings["to"]["ops"], "url": other.url}
        first, second = services(store, settings)
        first.run_due()
        second.run_due()
        failed(store)
        began = time.monotonic()
        with conducted.running(ConductorService(store, notify=settings)):
            handle = engines.submit(
                conducted.plain, backend=store, inputs={"folder": str(tmp_path), "mark": "x"}
            )
            assert handle.wait(60)
            for each in (first, second):
                each.release()
            until(lambda: other.requests and progress(store).failures)
        assert time.monotonic() - began < 50
    assert "timed out" in str(progress(store).error)
    assert progress(store, "other").error is None


def test_server_that_sends_single_bytes_is_given_up(
    store: persistence.Backend, tmp_path: Path
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip() -> None:
        accepted, _ = listener.accept()
        with accepted, contextlib.suppress(OSError):
            accepted.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not ended.wait(0.2):
                accepted.sendall(b"x")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    site = receivers.Receiver(listener.getsockname()[1])
    settings = webhook(site, tmp_path)
    settings["to"]["ops"]["timeout"] = 1
    began = time.monotonic()
    (destination,) = _settings.parse_settings(settings)
    assert _service.send_test(destination) is not None
    assert time.monotonic() - began < 20
    ended.set()
    thread.join()
    listener.close()


def mail(port: int, *recipients: str, **options: Any) -> dict[str, Any]:
    """Return settings that send mail to Ann and other recipients."""
    table = {"type": "email", "host": "127.0.0.1", "port": port, **options}
    table |= {"from": "wbengine <flows@example.com>", "to": ["ann@example.com", *recipients]}
    return {"group_wait": 0, "to": {"ops": table}}


def test_mail_server_that_is_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (destination,) = _settings.parse_settings(mail(port, tls="none", timeout=1))
        assert str(_service.send_test(destination)).endswith("timed out")


def test_certificate_is_checked(store: persistence.Backend, tmp_path: Path) -> None:
    good = receivers.make_certificate(tmp_path)
    wrong = receivers.make_certificate(tmp_path, "other.example.com")
    for certificate, ca_file, expected in (
        (good, good, None),
        (good, None, "certificate verify failed"),
        (wrong, wrong, "certificate verify failed"),
    ):
        with receivers.receiver(certificate) as site:
            settings = webhook(site, tmp_path)
            if ca_file is not None:
                settings["to"]["ops"]["ca_file"] = str(ca_file)
            (destination,) = _settings.parse_settings(settings)
            error = _service.send_test(destination)
            assert error is None if expected is None else expected in str(error), error
            assert len(site.requests) == (expected is None)


@pytest.mark.slow
def test_killed_process_repeats_the_message_and_loses_none(
    tmp_path: Path, site: receivers.Receiver
) -> None:
    """At each moment between the event and the end of its message."""
    number, repeated = 1, False
    settings = webhook(site, tmp_path)
    url = f"sqlite:///{tmp_path}/0.db"

    def work() -> None:
        with backends.backend(url) as opened:
            run(services(opened, settings)[0])

    while True:
        url = f"sqlite:///{tmp_path}/{number}.db"
        site.requests.clear()
        with backends.backend(url) as opened:
            begun(opened, settings).release()
            failed(opened)
        killed = is_killed(number, work)
        with backends.backend(url) as opened:
            execute(opened, "UPDATE wbe_duties SET until = 0")
            run(services(opened, settings)[0])
        assert 1 <= len(site.ids) <= 2 and len({each.body for each in site.requests}) == 1
        repeated |= len(site.ids) == 2
        if not killed:
            break
        number += 1
    assert number > 5 and repeated and len(site.ids) == 1


def test_one_of_two_services_sends(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    settings = webhook(site, tmp_path)
    first, second = services(store, settings)[0], services(store, settings)[0]
    first.run_due()
    run(first)
    failed(store)
    assert second.run_due() == second.STANDBY_SECONDS
    run(first)
    run(second)
    assert len(site.requests) == 1
    first.release()
    failed(store)
    run(second)
    run(first)
    assert len(site.requests) == 2


def serve(folder: Path, settings: str) -> Any:
    (folder / "wbengine.toml").write_text(settings)
    return python.start(
        ["-m", "wbengine", "serve"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(servers.REPOSITORY)},
    )


@pytest.mark.slow
def test_serve_processes_send_each_event_once_and_after_a_kill(
    site: receivers.Receiver, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(KEY)
    settings = f"""persistence = "sqlite:///flows.db"
[notify]
group_wait = 0
interval = 0
[notify.to.ops]
type = "webhook"
url = "{site.url}"
key_file = "key"
"""
    inputs = {"folder": str(tmp_path), "mark": "x", "kind": "value"}
    with contextlib.ExitStack() as stack:
        processes = [serve(tmp_path, settings) for _ in range(2)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        with backends.backend(f"sqlite:///{tmp_path}/flows.db") as store:

            def has_begun() -> bool:
                with contextlib.suppress(exceptions.StorageFailure):
                    return store.get_connection().duty_note(duty_name("ops")) != {}
                return False

            until(has_begun)

            def fail(name: str) -> None:
                engines.submit(
                    "tests.support.conducted:failing", name=name, backend=store, inputs=inputs
                )

            fail("first")
            assert site.arrivals.get(timeout=60).json["groups"][0]["name"] == "first"
            site.answers.clear()
            fail("second")
            message = site.arrivals.get(timeout=60).json
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.wait()
            site.answers.set()
            fail("third")  # While no process runs.
            execute(store, "UPDATE wbe_duties SET until = 0")
            last = serve(tmp_path, settings)
            stack.callback(last.wait)
            stack.callback(last.kill)
            assert site.arrivals.get(timeout=60).json == message
            assert site.arrivals.get(timeout=60).json["groups"][0]["name"] == "third"
            last.terminate()
            assert last.wait(60) == 0
    assert len(site.requests) == 4


def test_hook_receives_each_event_and_again_after_an_error(
    store: persistence.Backend, events: list[notifications.Event]
) -> None:
    def hook(event: notifications.Event) -> None:
        events.append(event)
        if len(events) == 2:
            raise ValueError("oops")

    service = begun(store, {"hook": hook})
    uuids = {failed(store) for _ in range(20)}
    run(service)
    assert len(events) == 2 and "the hook failed: ValueError: oops" in str(
        progress(store, "hook").error
    )
    change(store, "hook", retry_at=0.0)
    run(service)
    assert {event.flow for event in events[2:]} == uuids and len(events) == 22
    assert events[0] == events[2] and events[0].kind == notifications.FLOW_FAILED


def test_hook_receives_many_events_in_batches(
    store: persistence.Backend,
    events: list[notifications.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_service.DestinationService, "MAX_EVENTS_OF_HOOK", 7)
    monkeypatch.setattr(_reading, "_PAGE_SIZE", 3)
    monkeypatch.setattr(_collecting, "OVERLAP_SECONDS", 0.0)
    service = begun(store, {"hook": events.append})
    uuids = [failed(store, state=state) for _ in range(15) for state in _reading.SOURCES[:2]]
    for _ in uuids:
        run(service)
    assert sorted(str(event.flow) for event in events) == sorted(uuids)


def test_mail_is_sent_with_tls_and_a_password(store: persistence.Backend, tmp_path: Path) -> None:
    certificate = receivers.make_certificate(tmp_path)
    (tmp_path / "password").write_text("canary\n")
    with receivers.mailbox(certificate, ("me", "canary")) as box:
        settings = mail(
            box.port, "bob@example.com", user="me", password_file=str(tmp_path / "password"),
            ca_file=str(certificate),
        )  # fmt: skip
        box.refused.add("bob@example.com")
        service = begun(store, settings)
        failed(store, "order\r\nBcc: eve@example.com", "pay: ValueError: grün")
        run(service)
        (envelope,) = box.messages
        text = cast(bytes, envelope.content).decode()
        headers = text.partition("\r\n\r\n")[0]
        assert envelope.rcpt_tos == ["ann@example.com"]
        assert "Subject: [wbengine] 1 flow failed: order Bcc: eve@example.com" in headers
        assert "\r\nBcc:" not in headers and "Message-ID: <" in headers
        assert progress(store).error is None
        (tmp_path / "password").write_text("wrong\n")
        failed(store)
        change(store, next_at=0.0)
        run(service)
        assert progress(store).error == "SMTP status 535"
        del settings["to"]["ops"]["ca_file"]
        (destination,) = _settings.parse_settings(settings)
        assert "certificate verify failed" in str(_service.send_test(destination))


def test_encoded_name_adds_no_header_to_a_mail(store: persistence.Backend) -> None:
    with receivers.mailbox() as box:
        service = begun(store, mail(box.port, tls="none"))
        failed(store, "=?utf-8?q?=0d=0aBcc:_eve=40example.com=0d=0a=0d=0aClick_here?=")
        run(service)
        (envelope,) = box.messages
        content = cast(bytes, envelope.content)
        message = email.message_from_bytes(content, policy=email.policy.default)
        assert message["Bcc"] is None and message["To"] == "ann@example.com"
        assert "= ?utf-8?q?=0d=0aBcc:" in message["Subject"]


def test_slack_receives_text_without_mentions(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(f"{site.url}\n")
    settings = {
        "group_wait": 0,
        "dashboard_url": "https://flows.example.com",
        "to": {"ops": {"type": "slack", "url_file": str(tmp_path / "url")}},
    }
    service = begun(store, settings)
    uuid = failed(store, "order <!channel>")
    run(service)
    text = site.requests[0].json["text"]
    assert "*1 flow failed: order &lt;!channel&gt;*" in text and "<!channel>" not in text
    assert f"<https://flows.example.com/flows/{uuid}|{uuid}>" in text


@pytest.mark.slow
def test_apprise_sends_without_redirects(
    store: persistence.Backend, site: receivers.Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALERTS", f"json://127.0.0.1:{site.port}/canary")
    (destination,) = _settings.parse_settings(
        {"to": {"ops": {"type": "apprise", "url_variable": "ALERTS"}}}
    )
    assert _service.send_test(destination) is None
    assert "1 test message" in site.requests[0].json["title"]
    with receivers.receiver() as other:
        site.location, site.statuses = other.url, [302]
        assert "was not sent" in str(_service.send_test(destination))
        assert other.requests == []


def test_certificate_authority_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://127.0.0.1:1/canary")
    (tmp_path / "empty").touch()
    for name in ("none", "empty"):
        table = {"type": "slack", "url_file": f"{tmp_path}/url", "ca_file": f"{tmp_path}/{name}"}
        with pytest.raises(ValueError, match=f"notify.to.x: ca_file .*{name}' cannot be used"):
            _settings.parse_settings({"to": {"x": table}})


def test_hook_that_ends_the_process_is_an_error(store: persistence.Backend) -> None:
    service = begun(store, {"hook": lambda event: sys.exit(3)})
    failed(store)
    run(service)
    assert progress(store, "hook").error == "the hook failed: SystemExit: 3"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "must contain a destination"),
        ({"evnts": []}, "unknown option 'evnts' .did you mean 'events'"),
        ({"hook": "tests.support.conducted:nothing"}, "has no 'nothing'"),
        ({"hook": "tests.support.conducted:GREETING"}, "must be a function"),
        ({"to": {"a b": {}}}, "Name of a destination"),
        ({"to": {"hook": {"type": "slack"}}}, "reserved"),
        ({"to": {"x": {"type": "pager"}}}, "notify.to.x: Option type must be one of"),
        ({"to": {"x": {"type": "slack"}}}, "notify.to.x: url_file or url_variable is required"),
        ({"to": {"x": {"type": "slack", "url": "http://h"}}}, "notify.to.x: unknown option 'url'"),
        ({"to": {"x": {"type": "slack", "url_variable": "NONE"}}}, "variable .NONE is empty"),
        ({"to": {"x": {"type": "webhook", "url": "ftp://canary"}}}, "key_file or key_variable"),
        ({"to": {"x": {"type": "email", "host": "h", "from": "a@b"}}}, "to must contain"),
        (
            {"to": {"x": {"type": "email", "host": "h", "from": "a@b", "to": ["c"]}}},
            "must have the form name@host",
        ),
        ({"events": ["failed"], "hook": print}, "must be one of flow_failed"),
        ({"interval": "1y", "hook": print}, "interval must be a duration"),
        ({"dashboard_url": "flows", "hook": print}, "dashboard_url must be a URL"),
    ],
)
def test_invalid_settings_are_refused(
    settings: dict[str, Any], message: str, store: persistence.Backend
) -> None:
    with pytest.raises((ValueError, ImportError), match=message):
        ConductorService(store, notify=settings) if settings else _settings.parse_settings({})


def test_short_key_and_other_scheme_are_refused_without_text(
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text("canary")
    table = {"type": "webhook", "url": "http://h", "key_file": f"{tmp_path}/key"}
    invalid = ({"url": "ftp://canary"}, {"url": "http://h/canaryé"})
    for other, message in (({}, "at least 16 bytes"), *((each, "url must be") for each in invalid)):
        with pytest.raises(ValueError, match=message) as raised:
            _settings.parse_settings({"to": {"x": {**table, **other}}})
        assert "canary" not in str(raised.value)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_events_are_read_from_every_database_with_an_index(
    kind: str, store: persistence.Backend, database_servers: Any
) -> None:
    """A scan of all flows would cost more with each flow that is kept."""
    events: list[notifications.Event] = []
    with contextlib.ExitStack() as stack:
        if kind != "sqlite":
            url = stack.enter_context(database_servers[kind].database())
            store = stack.enter_context(backends.backend(url))
        service = begun(store, {"hook": events.append})
        handle = submit_greeting(store, name="waits")
        execute(store, "UPDATE wbe_flowdetails SET created = created - 9999")
        failed(store)
        run(service)
        failed(store, why=None, state=states.SUCCESS)
        run(service)
        assert [(event.kind, event.name) for event in events] == [
            ("backlog", "waits"), ("flow_failed", "order"), ("flow_recovered", "order")
        ]  # fmt: skip
        assert events[0].flow == handle.id
        if kind == "mysql":
            return
        statements = _reading._Statements(cast(Any, store).options.dialect)
        with cast(Any, store).engine.connect() as connection:
            if kind == "postgresql":
                connection.execute(sa.text("SET enable_seqscan = off"))
            explain = "EXPLAIN" if kind == "postgresql" else "EXPLAIN QUERY PLAN"
            for source, index in (
                (states.FAILURE, "ix_wbe_flowdetails_ended"),
                (states.REVERTED, "ix_wbe_flowdetails_ended"),
                (_reading.LOST, "ix_wbe_flowdetails_resent_at"),
                (_reading.BLOCKED, "ix_wbe_jobs_ready"),
                (_reading.TRASHED, "ix_wbe_jobs_ready"),
            ):
                text = sa.text(f"{explain} {statements.changes[source]}")
                parameters = {"since": 5.0, "id": 1, "limit": 9, "board": "b"}
                plan = " ".join(str(row) for row in connection.execute(text, parameters))
                assert index in plan and "SCAN f" not in plan, plan


def test_overlap_is_longer_than_a_wait_for_a_lock() -> None:
    assert dialects.LOCK_TIMEOUT_SECONDS + dialects.IDLE_SECONDS < _collecting.OVERLAP_SECONDS
