"""What is owed to a task is done in its order, for as long as it takes."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import kombu
import pytest

from tests.support.brokers import KILLED, Brokers
from tests.support.workers import until
from wbengine.interop.celery import brokers
from wbengine.interop.celery.protocol import codec
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.results import Result
from wbengine.interop.celery.protocol.steps import Send, Step
from wbengine.interop.celery.worker import backends, deeds, lines, posting, sender
from wbengine.interop.celery.worker.jobs import Job


class Bench:
    """A sender at a broker, and what it settled."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.settled: list[tuple[Any, bool]] = []
        self._post = posting.Post(brokers.Broker(url), threading.Event())
        self.sender = sender.Sender(self._post, backends.Rpc(), self._settle, "usual")
        self.sender.start()

    def _settle(self, receipts: Sequence[lines.Receipt], acknowledged: bool = True) -> None:
        self.settled += [(receipt, acknowledged) for receipt in receipts]

    def close(self) -> None:
        self.sender.close(0.5)

    def end(self, *steps: Step, **fields: Any) -> Job:
        """Put an end with these steps, and wait until it is done."""
        message = TaskMessage("t", "one")
        job = Job("one", 1, message, codec.encode(message), Mark(), "q", 0.0)
        result = Result("one", "SUCCESS", 1, reply_to="answers", correlation_id="one")
        self.sender.put(deeds.End(job, result, steps, **fields))
        assert self.sender.flush(60)
        return job

    def found(self, queue: str) -> list[Any]:
        """What is in a queue: the ids of its messages."""
        with kombu.Connection(self.url) as connection:
            channel, told = connection.channel(), []
            with contextlib.suppress(*connection.channel_errors):
                while (message := channel.basic_get(queue, no_ack=True)) is not None:
                    told.append(message.headers.get("id") or message.properties["correlation_id"])
            return told


class Mark:
    """Stands for a message that came."""

    job: Any = None

    def __init__(self, lost: bool = False) -> None:
        self.lost = lost


@pytest.fixture(params=["redis", "rabbitmq"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with contextlib.closing(Bench(request.getfixturevalue(f"{request.param}_url"))) as made:
        with kombu.Connection(made.url) as connection:
            kombu.Queue("answers", durable=False)(connection.channel()).declare()
        yield made


def send(name: str, **where: Any) -> Send:
    return Send(TaskMessage("next", name), **where)


def test_an_end(bench: Bench) -> None:
    """Follow-up tasks go where they say, and queues that are not there are made."""
    job = bench.end(send("two"), send("three", queue="other"))
    assert bench.settled == [(job.receipt, True)]
    assert job.receipt.job is job
    assert (bench.found("usual"), bench.found("other")) == (["two"], ["three"])
    assert bench.found("answers") == ["one"]


def test_a_task_that_rejects_its_message(bench: Bench) -> None:
    job = bench.end(reject=True)
    assert bench.settled == [(job.receipt, False)]


def test_what_is_given_back_is_new(bench: Bench) -> None:
    """It was delivered before, perhaps, but its task has not begun."""
    wire = codec.encode(TaskMessage("t", "back", priority=3))
    wire.headers["redelivered"] = True
    job = Job("back", 1, TaskMessage("t", "back"), wire, Mark(), "there", 0.0)
    bench.sender.put(deeds.GiveBack(job))
    bench.sender.put(deeds.Redirect(mark := Mark(), wire, "elsewhere"))
    assert bench.sender.flush(60)
    assert bench.settled == [(job.receipt, True), (mark, True)]
    with kombu.Connection(bench.url) as connection:
        message = connection.channel().basic_get("there", no_ack=True)
    assert message.headers["id"] == "back"
    assert "redelivered" not in message.headers
    assert message.properties["priority"] == 3
    assert bench.found("elsewhere") == ["back"]


def test_what_comes_again_is_not_sent(bench: Bench) -> None:
    """The connection is lost that it came over: it would be there twice."""
    wire = codec.encode(TaskMessage("t", "back"))
    job = Job("back", 1, TaskMessage("t", "back"), wire, Mark(lost=True), "there", 0.0)
    bench.sender.put(deeds.GiveBack(job))
    bench.sender.put(deeds.Redirect(mark := Mark(lost=True), wire, "elsewhere"))
    bench.sender.put(deeds.Redirect(other := Mark(), wire, "elsewhere"))
    assert bench.sender.flush(60)
    assert bench.settled == [(job.receipt, True), (mark, True), (other, True)]
    assert (bench.found("there"), bench.found("elsewhere")) == ([], ["back"])


def test_what_cannot_be_written_is_left_out(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    odd = Send(TaskMessage("next", "odd", (object(),)))
    job = bench.end(odd, send("two"))
    assert bench.settled == [(job.receipt, True)]
    assert bench.found("usual") == ["two"]
    assert "task next cannot be sent" in caplog.text


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
def test_what_a_broker_refuses_is_left_out(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An exchange that nobody declared closes the channel: what else was sent goes out all the
    same, and once."""
    name = f"none-{uuid.uuid4().hex}"
    job = bench.end(send("two"), send("lost", exchange=name, routing_key="k"), send("three"))
    assert bench.settled == [(job.receipt, True)]
    assert sorted(set(bench.found("usual"))) == ["three", "two"]
    assert bench.found("answers") == ["one"]
    assert f"cannot be sent to {name}" in caplog.text


@pytest.mark.parametrize("kind", KILLED)
def test_a_broker_that_is_away_is_waited_for(
    kind: str, broker_servers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    server = broker_servers[kind]
    with server.place() as url, contextlib.closing(Bench(url)) as made:
        made.end(send("before"))
        server.kill()
        message = TaskMessage("t", "one")
        job = Job("one", 1, message, codec.encode(message), Mark(), "q", 0.0)
        made.sender.put(deeds.End(job, None, [send("after")]))
        until(lambda: "wait for their broker" in caplog.text)
        assert made.sender.busy
        server.start()
        assert made.sender.flush(60)
        # A Redis may not have written yet what came last before it was killed.
        assert made.found("usual")[-1] == "after"
        assert made.settled[-1] == (job.receipt, True)
