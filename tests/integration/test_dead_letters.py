"""Requests that lose several workers are dead-lettered, and can be retried or purged."""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import brokers, workers
from tests.support import fragile_tasks as tasks
from tests.support.brokers import broker_url
from tests.support.workers import until
from wbengine import engines, transports
from wbengine import exceptions as exc
from wbengine.engines.worker_based._connections import dead_letters
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.fleet import _ledgers, _message_queues
from wbengine.fleet import client as fleets
from wbengine.patterns import linear_flow

KINDS = ("filesystem", "redis", "rabbitmq", pytest.param("postgresql", marks=pytest.mark.slow))

#: Patterns for the names of queues of engines and workers.
ENGINES = "[0-9a-f-]{36}"
WORKERS = "[A-Za-z0-9-]{1,60}-[0-9]+-[0-9a-f]{8}"

Limited = Callable[[str, str, str], str]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return broker_url(request.param, request, tmp_path)


@contextlib.contextmanager
def fleet(folder: Path, url: str, count: int) -> Iterator[list[workers.WorkerProcess]]:
    arguments = ["--url", url, "--topic", "t", "--threads", "1"]
    arguments += ["--tasks", "tests.support.fragile_tasks"]
    with workers.workers(folder, *arguments, count=count) as started:
        yield started


def lose(task: Any, url: str, **store: Any) -> str:
    """Run a task that loses two workers, and return its error message."""
    options = {"worker_expiry": 2, "transition_timeout": 300, "max_resends": 1}
    engine = engines.load(
        linear_flow.Flow("f").add(task), store=store, engine="worker-based", url=url, **options
    )
    with pytest.raises(exc.WorkerLost) as caught:
        engine.run()
    return str(caught.value)


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_request_that_kills_workers_is_dead_lettered_and_can_be_retried(
    tmp_path: Path, url: str
) -> None:
    # without a ledger the third worker reports that the request was delivered twice
    with fleet(tmp_path, url, 3):
        why = lose(tasks.Killer("k"), url, folder=str(tmp_path))
    view = fleets.Fleet(url=url)
    (letter,) = _message_queues.list_dead_letters(view)
    assert (letter.task, letter.action, letter.epoch) == ("k", "execute", 2)
    assert letter.why == why and "2 workers were lost" in why
    assert letter.age is not None and 0 <= letter.age < 60
    # Listing dead letters does not change them.
    assert [letter.id] == [one.id for one in _message_queues.list_dead_letters(view)]
    (tmp_path / "mended").touch()
    with fleet(tmp_path, url, 1), view, _ledgers.open_ledger(None, view.target) as ledger:
        view.workers(least=1, wait=60)
        assert _message_queues.retry(view, ledger, [letter.id]) == {}
        until(lambda: len(tasks.runs(tmp_path)) == 3)
        assert _message_queues.list_dead_letters(view) == []


@pytest.mark.parametrize("url", ["filesystem"], indirect=True)
def test_request_that_kills_workers_while_decoded_is_dead_lettered(
    tmp_path: Path, url: str
) -> None:
    with fleet(tmp_path, url, 3) as started:
        venom = {tasks.Venom(str(tmp_path), os.getpid())}
        assert "2 workers were lost" in lose(tasks.Reader("r"), url, venom=venom)
        assert len(tasks.runs(tmp_path)) == 2
        assert sum(one.process.poll() is None for one in started) == 1
    assert [letter.task for letter in _message_queues.list_dead_letters(fleets.Fleet(url=url))] == [
        "r"
    ]


def letter_of(number: int) -> env.Envelope:
    body = {"action": "execute", "arguments": {}, "task_cls": "a.B", "task_name": f"t{number}"}
    headers = {hd.WBE_VERSION: "1", hd.WBE_EPOCH: 3, hd.WBE_DEAD: "why", hd.WBE_QUEUE: "t.q"}
    return env.Envelope("REQUEST", body, correlation_id=f"id-{number}", headers=headers)


@pytest.mark.parametrize("url", ["memory", *KINDS], indirect=True)
def test_dead_letters_are_listed_in_order_until_purged(url: str) -> None:
    with fleets.Fleet(url=url) as view:  # a memory broker exists as long as a connection to it
        for number in range(3):
            with dead_letters.DeadLetters(view.target, "default", 5.0) as letters:
                letters.put(letter_of(number))
        assert [one.task for one in _message_queues.list_dead_letters(view)] == ["t0", "t1", "t2"]
        (queue,) = _message_queues.list_queues(view, ["default.dead-letters"])
        assert (queue.kind, queue.messages) == (_message_queues.DEAD, 3)
        failed = _message_queues.retry(view, None, ["id-1", "id-"])
        assert [(id, type(error), str(error)) for id, error in failed.items()] == [
            (
                "id-1",
                exc.NotFound,
                "cannot send request id-1: no worker offers a.B on topic 't'",
            ),
            ("id-", exc.NotFound, "unknown dead letter 'id-'"),
        ]
        with pytest.raises(exc.NotFound, match="dead letter 'id-' is ambiguous: id-0, id-1, id-2"):
            _message_queues.select_dead_letters(_message_queues.list_dead_letters(view), ["id-"])
        assert len(_message_queues.list_dead_letters(view)) == 3
        assert _message_queues.purge(view, [queue]) == {"default.dead-letters": 3}
        assert _message_queues.list_dead_letters(view) == []


@pytest.fixture
def limited(rabbitmq_server: brokers.Rabbitmq, rabbitmq_url: str) -> Iterator[Limited]:
    """Yield a function that sets the permissions of a RabbitMQ user and returns its URL."""
    name = uuid.uuid4().hex
    vhost = urllib.parse.unquote(urllib.parse.urlsplit(rabbitmq_url).path[1:])
    rabbitmq_server.ask("PUT", "users", name, body={"password": "p", "tags": ""})

    def permit(configure: str, write: str, read: str) -> str:
        rights = {"configure": configure, "write": write, "read": read}
        rabbitmq_server.ask("PUT", "permissions", vhost, name, body=rights)
        return f"amqp://{name}:p@127.0.0.1:{rabbitmq_server.port}/{vhost}"

    yield permit
    rabbitmq_server.ask("DELETE", "users", name)


def test_rabbitmq_user_without_dead_letter_rights_gets_permission_denied(
    rabbitmq_url: str, limited: Limited
) -> None:
    with dead_letters.DeadLetters(transports.resolve(rabbitmq_url), "default", 5.0) as letters:
        letters.put(letter_of(0))
    others = rf"^(default|{ENGINES}|{WORKERS})$"
    view = fleets.Fleet(url=limited(others, others, others))
    refused = pytest.raises(
        exc.TransportFailure, match=r"queue default\.dead-letters at .*: permission denied"
    )
    with dead_letters.DeadLetters(view.target, "default", 5.0) as letters, refused:
        letters.put(letter_of(1))
    with refused:
        _message_queues.list_dead_letters(view)
    # The permission to inspect the queue does not include reading it.
    view = fleets.Fleet(url=limited(rf"^(default.*|{ENGINES})$", others, others))
    with refused:
        _message_queues.list_dead_letters(view)
    assert [
        letter.id for letter in _message_queues.list_dead_letters(fleets.Fleet(url=rabbitmq_url))
    ] == ["id-0"]


def test_rabbitmq_operator_works_with_documented_permissions(
    rabbitmq_url: str, limited: Limited
) -> None:
    letter = letter_of(0)
    letter.body["task_cls"] = "tests.support.fragile_tasks.Reader"
    with dead_letters.DeadLetters(transports.resolve(rabbitmq_url), "default", 5.0) as letters:
        letters.put(letter)
        letters.put(letter_of(1))
    howto = Path(__file__).parents[2] / "doc" / "source" / "howto"
    guide = (howto / "run_workers_on_rabbitmq.rst").read_text()
    lines = guide.split("# operators: configure, write, read\n")[1].splitlines()[:3]
    rights = [line.strip().replace("orders", "default") for line in lines]
    with fleets.Fleet(url=limited(*rights)) as view, workers.worker_in_thread(rabbitmq_url, tasks):
        view.workers(least=1, wait=60)
        failed = _message_queues.retry(
            view, None, [letter.id for letter in _message_queues.list_dead_letters(view)]
        )
        assert list(failed) == ["id-1"] and isinstance(failed["id-1"], exc.NotFound)
        found = _message_queues.list_queues(view)
        waiting = [
            queue
            for queue in found
            if queue.kind in (_message_queues.DEAD, _message_queues.REQUESTS)
        ]
        assert sorted(_message_queues.purge(view, waiting).values()) == [0, 1]


@pytest.mark.slow
def test_dead_lettering_times_out_while_rabbitmq_is_short_of_memory() -> None:
    failed: list[exc.TransportFailure] = []
    with brokers.rabbitmq() as server, server.place() as url:
        target = transports.resolve(url)

        def put() -> None:
            try:
                with dead_letters.DeadLetters(target, "default", 1.0) as letters:
                    letters.put(letter_of(0))
            except exc.TransportFailure as error:
                failed.append(error)

        server.alarm()
        thread = threading.Thread(target=put, daemon=True)
        thread.start()
        until(lambda: not thread.is_alive())
    assert [str(error) for error in failed] == [
        f"the connection to the broker at {target.shown} was lost: it does not answer"
    ]


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_dead_letter_of_another_ledger_is_not_resent(url: str) -> None:
    with fleets.Fleet(url=url) as view, workers.worker_in_thread(url, tasks):
        view.workers(least=1, wait=60)
        letter = letter_of(0)
        letter.body["task_cls"] = "tests.support.fragile_tasks.Reader"
        letter.headers[hd.WBE_LEDGER] = "sqlite:abc"
        with dead_letters.DeadLetters(transports.resolve(url), "default", 5.0) as letters:
            letters.put(letter)
        (error,) = _message_queues.retry(view, None, ["id-0"]).values()
        assert "request id-0 needs ledger sqlite:abc, got none" in str(error)
