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
from tests.support import (
    conducted,
    fragile_tasks,
    python,
    receivers,
    requested,
    servers,
    workers,
)
from tests.support.killed import is_killed
from tests.support.notified import (
    KEY,
    begun,
    change,
    execute,
    failed,
    kinds,
    pass_time,
    progress,
    repaired,
    run,
    services,
    webhook,
)
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
def site() -> Iterator[receivers.Receiver]:
    with receivers.receiver() as opened:
        yield opened


@pytest.fixture
def events() -> list[notifications.Event]:
    """Events that a hook received."""
    return []


def test_failed_flow_is_sent_once_with_a_signature(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    failed(store, "earlier")
    service = begun(store, webhook(site, tmp_path, dashboard_url="https://flows.example.com/"))
    run(service)
    assert site.requests == []  # Not the past.
    uuid = failed(store, tags={"team": "billing", "amount": 172, "urgent": True})
    run(service)
    run(service)
    (request,) = site.requests
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
def test_five_thousand_failures_are_one_message(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    book = models.LogBook("b")
    for _ in range(5000):
        flow = models.FlowDetail("order")
        flow.enter(states.FAILURE, time.time(), "pay: ValueError: oops")
        book.add(flow)
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_logbook(book)
    run(service)
    run(service)
    (request,) = site.requests
    (group,) = request.json["groups"]
    assert group["count"] == 5000 and len(group["events"]) == 5
    assert len(request.body) < 10_000 and "5,000 flows failed: order" in request.json["title"]


def test_many_names_are_grouped(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    for number in range(60):
        failed(store, f"order {number}")
    run(service)
    (request,) = site.requests
    groups = request.json["groups"]
    assert len(groups) <= 20 and sum(group["count"] for group in groups) == 60
    assert groups[0]["name"] is None


def test_message_waits_for_others_and_for_the_interval(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path, group_wait=300, interval=300))
    failed(store)
    assert 0 < service.run_due() <= service.PERIOD_SECONDS and site.requests == []
    failed(store)
    execute(store, "UPDATE wbe_flowdetails SET ended = ended - 301")
    since = {source: at - 301 for source, at in progress(store).since.items()}
    change(store, started=0.0, since=since)
    run(service)
    assert kinds(site) == [("flow_failed", "order", 2)]
    failed(store)
    execute(store, "UPDATE wbe_flowdetails SET ended = ended - 301")
    assert service.run_due() == service.PERIOD_SECONDS
    run(service)
    assert len(site.requests) == 1


def test_row_that_is_stored_after_a_later_one_is_sent(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """A transaction can wait for longer than others after it has read the clock."""
    service = begun(store, webhook(site, tmp_path))
    change(store, started=0.0)
    failed(store, "first")
    run(service)
    late = failed(store, "late")
    execute(store, f"UPDATE wbe_flowdetails SET ended = ended - 50 WHERE uuid = '{late}'")
    run(service)
    run(service)
    assert [name for _, name, _ in kinds(site)] == ["first", "late"]


def test_only_failures_are_sent(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """Neither cancelled flows, nor flows that were reverted on request."""
    service = begun(store, webhook(site, tmp_path))
    failed(store, "cancelled", "by me", states.REVERTED, cancelled={"at": 1.0, "reason": None})
    failed(store, "requested", None, states.REVERTED)
    failed(store, "reverted", state=states.REVERTED)
    failed(store, "done", None, states.SUCCESS)
    failed(store, "stuck", "undo: ValueError: oops", cancelled={"at": 1.0, "reason": None})
    run(service)
    assert sorted(kinds(site)) == [("flow_failed", "reverted", 1), ("flow_failed", "stuck", 1)]


def test_undo_that_failed_or_left_effects_is_sent(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    failing, complete, partial = (
        engines.submit(factory, backend=store, name=name).id
        for name, factory in (
            ("failing", undo_flows.plain),
            ("complete", undo_flows.plain),
            ("partial", undo_flows.order),
        )
    )
    testing.run_submitted(store)
    undo_flows.FAILING.append("charge")
    operations.request(store, failing, "revert")
    testing.run_submitted(store)
    undo_flows.FAILING.clear()
    operations.request(store, complete, "revert")
    operations.request(store, partial, "revert", partial=True)
    testing.run_submitted(store)
    run(service)
    groups = [group for request in site.requests for group in request.json["groups"]]
    reasons = {group["name"]: group["events"][0]["reason"] for group in groups}
    assert {group["kind"] for group in groups} == {"undo_incomplete"}
    assert set(reasons) == {"failing", "partial"}
    assert "OSError: the bank does not answer" in reasons["failing"]
    assert reasons["partial"] == "effects remain: tests.operations.undo_flows.send"
    operations.request(store, failing, "revert")
    testing.run_submitted(store)
    sent = len(site.requests)
    run(service)
    assert len(site.requests) == sent


def test_flows_are_selected_by_name_and_tag(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    rules = {"flows": ["bill*"], "tags": {"team": "a"}}
    service = begun(store, webhook(site, tmp_path, **rules))
    failed(store, "bill")
    failed(store, "billing", tags={"team": "b"})
    failed(store, "order", tags={"team": "a"})
    failed(store, "bills", tags={"team": "a"})
    run(service)
    assert kinds(site) == [("flow_failed", "bills", 1)]


def test_recovery_is_sent_once_after_a_failure(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    failed(store, "other", None, states.SUCCESS)
    failed(store)
    run(service)
    uuid = failed(store, "order", None, states.SUCCESS)
    failed(store, "order", None, states.SUCCESS)
    run(service)
    failed(store, "order", None, states.SUCCESS)
    run(service)
    assert kinds(site) == [("flow_failed", "order", 1), ("flow_recovered", "order", 1)]
    assert site.requests[1].json["groups"][0]["events"][0]["flow"] != uuid  # the latest


def test_success_before_the_failure_is_no_recovery(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    failed(store, "order", None, states.SUCCESS)
    failed(store)
    run(service)
    run(service)
    assert kinds(site) == [("flow_failed", "order", 1)]


def test_recovery_waits_until_no_flow_of_the_name_fails(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """During an incident, successes between failures are no recovery."""
    service = begun(store, webhook(site, tmp_path, interval=60))
    for _ in range(3):
        failed(store)
        failed(store, why=None, state=states.SUCCESS)
        change(store, next_at=0.0)
        run(service)
    assert kinds(site) == [("flow_failed", "order", 1)] * 3
    pass_time(store, 61)
    run(service)
    assert kinds(site)[3:] == [("flow_recovered", "order", 1)]
    failed(store)
    failed(store, why=None, state=states.SUCCESS)
    pass_time(store, 61)
    run(service)
    assert kinds(site)[4:] == [("flow_failed", "order", 1), ("flow_recovered", "order", 1)]


def test_success_is_remembered_during_a_long_interval(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """The interval is longer than the time for which rows are read again."""
    service = begun(store, webhook(site, tmp_path, interval=3600))
    failed(store)
    failed(store, why=None, state=states.SUCCESS)
    run(service)
    for _ in range(10):
        change(store, next_at=0.0)
        run(service)
        pass_time(store, 370)
    run(service)
    assert kinds(site) == [("flow_failed", "order", 1), ("flow_recovered", "order", 1)]


def test_repaired_flows_are_counted(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    """Also those that succeeded before the latest failure, but not those that fail again."""
    service = begun(store, webhook(site, tmp_path, interval=60))
    uuids = [failed(store) for _ in range(4)]
    run(service)
    repaired(store, uuids[0])
    repaired(store, uuids[1], states.FAILURE)
    failed(store, why=None, state=states.SUCCESS)
    repaired(store, uuids[2])
    change(store, next_at=0.0)
    run(service)
    pass_time(store, 61)
    run(service)
    assert kinds(site)[-1] == ("flow_recovered", "order", 2)
    events = site.requests[-1].json["groups"][0]["events"]
    assert {event["flow"] for event in events} == {uuids[0], uuids[2]}


def test_success_with_other_tags_is_no_recovery(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path, tags={"team": "a"}))
    failed(store, tags={"team": "a"})
    run(service)
    failed(store, "order", None, states.SUCCESS, tags={"team": "b"})
    run(service)
    assert kinds(site) == [("flow_failed", "order", 1)]
    failed(store, "order", None, states.SUCCESS, tags={"team": "a"})
    failed(store, "order", None, states.SUCCESS, tags={"team": "b"})  # the latest success
    run(service)
    assert kinds(site)[1:] == [("flow_recovered", "order", 1)]


def test_flow_with_a_masked_name_recovers(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    failed(store, "sync password=hunter22")
    run(service)
    failed(store, "sync password=hunter22", None, states.SUCCESS)
    run(service)
    assert [kind for kind, _, _ in kinds(site)] == ["flow_failed", "flow_recovered"]
    assert "hunter22" not in str(kinds(site))


def test_names_that_fail_are_limited_to_the_latest() -> None:
    stored = Progress()
    for number in range(1100):
        stored.note_failing(f"order {number}", float(number))
    stored.note_failing("order 50", 2.0)
    assert list(stored.failing) == [f"order {number}" for number in range(100, 1100)]


def test_flow_with_a_lost_worker_is_sent_with_the_worker(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    for name, event in (("lost", states.WORKER_LOST), ("resent", states.RESENT)):
        book, flow, task = models.LogBook("b"), models.FlowDetail(name), models.TaskDetail("t")
        flow.state, flow.resent_at = states.RUNNING, time.time()
        task.add_incident(models.Incident(event, time.time(), 1, "host:7"))
        flow.add(task)
        book.add(flow)
        with contextlib.closing(store.get_connection()) as connection:
            connection.save_logbook(book)
    failed(store, "failing", "t: WorkerLost: worker host:8 was lost")
    run(service)
    assert sorted(kinds(site)) == [
        ("flow_failed", "failing", 1),
        ("worker_lost", "failing", 1),
        ("worker_lost", "lost", 1),
    ]
    groups = site.requests[0].json["groups"]
    (lost,) = [group for group in groups if group["name"] == "lost"]
    assert lost["events"][0]["worker"] == "host:7"


@pytest.mark.parametrize("is_resent", [True, False])
def test_killed_worker_is_sent(
    is_resent: bool, store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    url = f"filesystem://{tmp_path / 'broker'}"
    arguments = ("--url", url, "--topic", "t", "--threads", "1")
    tasks = ("--tasks", "tests.support.fragile_tasks")
    mortal = fragile_tasks.Mortal("m") if is_resent else fragile_tasks.Once("m")
    with workers.workers(tmp_path, *arguments, *tasks, count=2 if is_resent else 1):
        engine = engines.load(
            linear_flow.Flow("fragile").add(mortal),
            store={"folder": str(tmp_path), "numbers": [7]},
            engine="worker-based",
            backend=store,
            url=url,
            worker_expiry=2.0,
            transition_timeout=300,
        )
        with contextlib.nullcontext() if is_resent else pytest.raises(exceptions.WorkerLost):
            engine.run()
    run(service)
    lost = [each for each in site.requests[0].json["groups"] if each["kind"] == "worker_lost"]
    assert [(group["name"], group["count"]) for group in lost] == [("fragile", 1)]
    assert socket.gethostname() in lost[0]["events"][0]["worker"]
    assert len(site.requests[0].json["groups"]) == (1 if is_resent else 2)


def test_backlog_is_sent_once_until_it_is_over(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path, backlog_after=600))

    def submit(age: float, **options: Any) -> str:
        handle = engines.submit(conducted.greeting, backend=store, inputs={"name": "x"}, **options)
        execute(store, f"UPDATE wbe_flowdetails SET created = created - {age}"
                f" WHERE uuid = '{handle.id}'")  # fmt: skip
        return handle.id

    submit(900, eta=3600)  # It is not due.
    submit(500)
    run(service)
    assert site.requests == []
    first, second = submit(700), submit(800)
    run(service)
    run(service)
    (request,) = site.requests
    assert kinds(site) == [("backlog", "greeting", 1)]
    assert request.json["groups"][0]["events"][0]["flow"] == second
    execute(store, f"UPDATE wbe_flowdetails SET state = 'RUNNING' WHERE uuid = '{second}'")
    run(service)
    assert len(site.requests) == 1  # It is not over.
    execute(store, "UPDATE wbe_flowdetails SET state = 'RUNNING'")
    run(service)
    third = submit(700)
    run(service)
    assert len(site.requests) == 2 and first != third


def test_missing_firing_is_sent_once_with_its_error(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path, missed_after=60))
    every = {"factory": "tests.support.conducted:plain", "every": 3600}
    stored = schedules.Schedules(store)
    for name in ("paused", "late", "waits"):
        overlap = {"overlap": "queue", "catch_up": "one"} if name == "waits" else {}
        stored.declare(schedules.Schedule.from_dict(name, {**every, **overlap}))
    stored.pause("paused")
    execute(store, "UPDATE wbe_schedules SET due = 100, next_tick = 100")
    running = engines.submit(conducted.greeting, backend=store, inputs={"name": "x"})
    execute(store, f"UPDATE wbe_schedules SET last_flow = '{running.id}' WHERE name = 'waits'")
    execute(store, "UPDATE wbe_schedules SET trouble = 'ValueError: password=canary'")
    run(service)
    run(service)
    assert kinds(site) == [("schedule_missed", "late", 1)]
    assert b"1970-01-01T00:01:40Z is missing: ValueError: password=***" in site.requests[0].body


def test_blocked_flow_is_sent(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    handle = engines.submit(conducted.greeting, backend=store, inputs={"name": "x"})
    board = impl_sql.SQLJobBoard("served", persistence=store)
    board.connect()
    (job,) = board.iterjobs()
    board.claim(job, "me")
    board.block(cast(Any, job), "me")
    # The time of blocking is rounded to seconds.
    until(lambda: service.run_due() > 0.0 and bool(site.requests))
    run(service)
    assert kinds(site) == [("flow_blocked", "greeting", 1)]
    assert site.requests[0].json["groups"][0]["events"][0]["flow"] == handle.id


def test_flow_that_cannot_be_created_is_sent_once(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    inputs = {"folder": f"{tmp_path}", "mark": "m"}
    handle = engines.submit(conducted.interrupted, backend=store, inputs=inputs)
    conducted.RAISED_ONCE["factory"] = ValueError("no price list")
    requested.run_jobs(store)
    run(service)
    assert kinds(site) == [("flow_trashed", "interrupted", 1)]
    assert b"the log of the conductor contains the reason" in site.requests[0].body
    pass_time(store, 400)
    operations.request(store, handle.id, "resume")
    requested.run_jobs(store)
    run(service)
    assert handle.state == states.SUCCESS and len(site.requests) == 1


def test_note_of_a_process_without_a_source_is_read(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    since = {source: progress(store).since[source] for source in _reading.SOURCES[:-1]}
    change(store, since=since)
    failed(store)
    run(service)
    assert kinds(site) == [("flow_failed", "order", 1)]
    assert {*progress(store).since} == {*_reading.SOURCES}


def test_secrets_and_values_are_masked(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path))
    inputs = {"folder": str(tmp_path), "mark": "x", "kind": "value", "api_token": "canary-17"}
    handle = engines.submit(conducted.failing, backend=store, inputs=inputs)
    with conducted.running(ConductorService(store)):
        with contextlib.suppress(ValueError):
            handle.result(60)
        until(lambda: handle.state == states.REVERTED)
    execute(store, "UPDATE wbe_flowdetails SET more = REPLACE(more, 'oops', 'oops canary-17')")
    failed(store, "with url", "t: ValueError: redis://me:canary-18@host/0")
    run(service)
    text = b"".join(request.body for request in site.requests)
    assert b"ValueError: oops" in text and b"redis://me:***@host/0" in text
    assert b"canary" not in text


def test_messages_of_errors_are_left_out_on_request(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    service = begun(store, webhook(site, tmp_path, error_messages=False))
    failed(store)
    failed(store, "engine", "StorageFailure: the disk is full")
    run(service)
    groups = site.requests[0].json["groups"]
    reasons = {group["name"]: group["events"][0]["reason"] for group in groups}
    assert reasons == {"order": "pay: ValueError", "engine": "StorageFailure"}


@pytest.mark.parametrize("status", [302, 307, 400, 500])
def test_refused_message_is_repeated_with_its_id_and_logged_once(
    status: int,
    store: persistence.Backend,
    site: receivers.Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    site.statuses = [status] * 3
    with receivers.receiver() as other:
        site.location = other.url
        service = begun(store, webhook(site, tmp_path))
        failed(store)
        pauses = []
        for _ in range(4):
            run(service)
            failed(store, "later")
            pauses.append(progress(store).retry_at - time.time())
            change(store, retry_at=0.0)
        assert other.requests == []  # No redirect was followed.
    assert len(set(site.ids[:4])) == 1 and len({each.body for each in site.requests[:4]}) == 1
    assert pauses[:3] == pytest.approx([5, 10, 20], abs=3)
    warnings = [each for each in caplog.messages if "cannot send" in each]
    assert len(warnings) == 1 and f"HTTP status {status}" in warnings[0]
    assert ("redirects are not followed" in warnings[0]) == (status < 400)
    assert "canary" not in caplog.text and "127.0.0.1" in warnings[0]
    assert sum("are sent again" in each for each in caplog.messages) == 1
    run(service)
    assert sum(count for _, name, count in kinds(site) if name == "later") == 4


def test_message_is_dropped_after_a_day(
    store: persistence.Backend, site: receivers.Receiver, tmp_path: Path
) -> None:
    site.statuses = [400] * 2
    service = begun(store, webhook(site, tmp_path))
    failed(store)
    run(service)
    change(store, failing_since=time.time() - 90_000, retry_at=0.0)
    run(service)
    assert progress(store).outbox is None and progress(store).error == "HTTP status 400"
    failed(store, "later")
    run(service)
    assert kinds(site)[-1] == ("flow_failed", "later", 1) and progress(store).error is None


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


def test_mail_server_that_is_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        table = {"type": "email", "host": "127.0.0.1", "port": port, "tls": "none", "timeout": 1,
                 "from": "a@example.com", "to": ["b@example.com"]}  # fmt: skip
        (destination,) = _settings.parse_settings({"to": {"mail": table}})
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
        settings: dict[str, Any] = {
            "group_wait": 0,
            "to": {
                "ops": {
                    "type": "email",
                    "host": "127.0.0.1",
                    "port": box.port,
                    "user": "me",
                    "password_file": str(tmp_path / "password"),
                    "from": "wbengine <flows@example.com>",
                    "to": ["ann@example.com", "bob@example.com"],
                    "ca_file": str(certificate),
                }
            },
        }
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
        settings = {
            "group_wait": 0,
            "to": {
                "ops": {
                    "type": "email", "host": "127.0.0.1", "port": box.port, "tls": "none",
                    "from": "flows@example.com", "to": ["ann@example.com"],
                }
            },
        }  # fmt: skip
        service = begun(store, settings)
        failed(store, "=?utf-8?q?=0d=0aBcc:_eve=40example.com=0d=0a=0d=0aClick_here?=")
        run(service)
        (envelope,) = box.messages
        mail = email.message_from_bytes(cast(bytes, envelope.content), policy=email.policy.default)
        assert mail["Bcc"] is None and mail["To"] == "ann@example.com"
        assert "= ?utf-8?q?=0d=0aBcc:" in mail["Subject"]


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
        handle = engines.submit(
            conducted.greeting, backend=store, inputs={"name": "x"}, name="waits"
        )
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
