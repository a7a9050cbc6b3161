"""Tasks that tests have run for Celery's clients, and a client that needs no Celery."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu

from wbengine import task
from wbengine.interop.celery import brokers, retrying
from wbengine.interop.celery.protocol import codec
from wbengine.interop.celery.protocol.message import TaskMessage

#: The names under which a worker of `--tasks tests.support.celery_errands` offers them.
NOTE, REFUSE, REST, REST_AGAIN, WAIT, WAIT_AGAIN = (
    f"tests.support.celery_errands.{name}"
    for name in ("Note", "Refuse", "Rest", "RestAgain", "Wait", "WaitAgain")
)

SOON = 60.0


class Note(task.Task):
    """Leaves a line in a file."""

    def execute(self, path: str, text: str = "") -> str:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(f"{text}\n")
        return text


class Refuse(task.Task):
    """Leaves a line in a file, and gives its message back the first time."""

    def execute(self, path: str) -> str:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write("here\n")
        if len(lines(Path(path))) == 1:
            raise retrying.Reject("not now", requeue=True)
        return "taken"


class Rest(task.Task):
    """Leaves a line in a file, and takes its time."""

    def execute(self, path: str, seconds: float) -> float:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write("here\n")
        time.sleep(seconds)
        return seconds


class Wait(task.Task):
    """Leaves a line in a file, and waits for another one to be there."""

    def execute(self, path: str, gate: str) -> str:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write("here\n")
        while not Path(gate).exists():
            time.sleep(0.02)
        return "waited"


class RestAgain(Rest):
    """One that may run twice."""

    idempotent = True


class WaitAgain(Wait):
    """One that may run twice."""

    idempotent = True


def lines(path: Path) -> list[str]:
    """What tasks left in a file."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


class Client:
    """Sends tasks to `queue` of a broker; their results are in a Redis."""

    def __init__(self, url: str, results: str, queue: str = "celery", options: Any = None) -> None:
        self._url = url
        # Else a RabbitMQ that is killed a moment later may not have written it yet.
        self._options = {"confirm_publish": True} if url.startswith("amqp") else options
        self._results = results
        self._queue = queue

    def send(self, name: str, *args: Any, **fields: Any) -> str:
        """Send a task, declared and published as Celery does; its id."""
        made = TaskMessage(name, fields.pop("id", str(uuid.uuid4())), args, **fields)
        self.publish(made)
        return made.id

    def publish(self, *messages: TaskMessage, declare: bool = True) -> None:
        """Without `declare`, the queue is there, perhaps with other arguments than Celery's."""
        with kombu.Connection(
            self._url, connect_timeout=10, transport_options=self._options
        ) as connection:
            connection.ensure_connection(max_retries=10, interval_start=0.1, interval_max=0.5)
            with connection.Producer() as producer:
                queues = [brokers.queue_named(self._queue)] if declare else []
                for message in messages:
                    wire = codec.encode(message)
                    producer.publish(
                        wire.body, routing_key=self._queue, declare=queues, **wire.arguments()
                    )

    def meta(self, name: str) -> dict[str, Any] | None:
        """What is known of a task; None: nothing."""
        import redis

        with contextlib.closing(redis.Redis.from_url(self._results)) as client:
            found = client.get(f"celery-task-meta-{name}")
        return None if found is None else json.loads(found)

    def ended(self, name: str, timeout: float = SOON) -> dict[str, Any]:
        """What became of a task, waited for."""
        until = time.monotonic() + timeout
        while True:
            with contextlib.suppress(Exception):  # the Redis is away
                found = self.meta(name)
                if found is not None and found["status"] in ("SUCCESS", "FAILURE", "REVOKED"):
                    return found
            assert time.monotonic() < until, f"task {name} did not end in time"
            time.sleep(0.02)

    @property
    def waiting(self) -> int:
        """How many messages nobody has taken."""
        return int(self._declared().message_count)

    @property
    def consumers(self) -> int:
        """How many take from the queue."""
        return int(self._declared().consumer_count)

    def _declared(self) -> Any:
        with self._taking() as queue:  # on a RabbitMQ it is there, perhaps with other arguments
            return queue.queue_declare(passive=self._url.startswith("amqp"))

    def left(self) -> list[kombu.Message]:
        """What is in the queue; taken out of it."""
        with self._taking() as queue:
            found = []
            while (message := queue.get()) is not None:
                message.ack()
                found.append(message)
            return found

    @contextlib.contextmanager
    def _taking(self) -> Iterator[Any]:
        with kombu.Connection(self._url) as connection:
            yield brokers.queue_named(self._queue)(connection.channel())
