"""Permissions of broker users as documented: permitted and denied operations."""

from __future__ import annotations

import itertools
import re
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import pytest
import redis
from amqp.exceptions import AccessRefused

from tests.support import brokers
from tests.support import sample_tasks as tasks
from tests.support.workers import REPOSITORY, worker_in_thread
from wbengine import engines, transports
from wbengine.engines.worker_based._connections import dead_letters
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.patterns import linear_flow

HOWTO = REPOSITORY / "doc" / "source" / "howto"
GUIDE = HOWTO / "run_workers_on_rabbitmq.rst"
REDIS_GUIDE = HOWTO / "run_workers_on_redis.rst"
#: Request queue of a topic that the worker does not serve, and the names of two queues.
REQUESTS = "u.0123456789ab"
ENGINE = "0b7f5a0e-9d7b-4b8e-8a55-6c1f3b2f6d10"
WORKER = "host-1-0123abcd"


def documented_patterns(title: str) -> list[str]:
    """Return the patterns below a comment of the guide, for the exchange of these tests."""
    lines = iter(GUIDE.read_text(encoding="utf-8").splitlines())
    assert any(line.strip() == f"# {title}" for line in lines), title
    shown = itertools.takewhile(bool, map(str.strip, lines))
    return [pattern.replace("orders", "default") for pattern in shown]


RIGHTS = {
    "engines": documented_patterns("engines: configure, write, read"),
    "workers": documented_patterns("workers: the same for all three") * 3,
}


class Users:
    """Users of a virtual host with the documented permissions."""

    def __init__(self, server: brokers.Rabbitmq, url: str) -> None:
        self._server = server
        self._vhost = urllib.parse.unquote(urllib.parse.urlsplit(url).path[1:])
        self.urls: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for role in RIGHTS:
            name = self._names[role] = f"{role}-{uuid.uuid4().hex}"
            server.ask("PUT", "users", name, body={"password": "p", "tags": ""})
            rights = dict(zip(("configure", "write", "read"), RIGHTS[role], strict=True))
            server.ask("PUT", "permissions", self._vhost, name, body=rights)
            self.urls[role] = f"amqp://{name}:p@127.0.0.1:{server.port}/{self._vhost}"

    def set_topic_permissions(self) -> None:
        """Add topic permissions, which limit the routing keys for publishing and binding."""
        for role, name in self._names.items():
            write, read = documented_patterns(f"{role}, keys: write, read")
            body = {"exchange": "default", "write": write, "read": read}
            self._server.ask("PUT", "topic-permissions", self._vhost, name, body=body)

    def remove(self) -> None:
        for name in self._names.values():
            self._server.ask("DELETE", "users", name)


@pytest.fixture
def users(rabbitmq_server: brokers.Rabbitmq, rabbitmq_url: str) -> Iterator[Users]:
    made = Users(rabbitmq_server, rabbitmq_url)
    yield made
    made.remove()


def allowed(url: str, attempt: Callable[[kombu.Connection], object]) -> bool:
    with kombu.Connection(url) as connection:
        try:
            attempt(connection)
        except AccessRefused:
            return False
        return True


def bind(queue: str, key: str) -> Callable[[kombu.Connection], object]:
    """Return an attempt to bind an own queue to a routing key."""

    def attempt(connection: kombu.Connection) -> None:
        exchange = kombu.Exchange("default", type="topic", durable=True, auto_delete=True)
        arguments = {"x-expires": 600_000, "x-queue-type": "classic"}
        kombu.Queue(queue, exchange, routing_key=key, durable=True, queue_arguments=arguments)(
            connection.channel()
        ).declare()

    return attempt


def publish(key: str) -> Callable[[kombu.Connection], object]:
    def attempt(connection: kombu.Connection) -> None:
        with connection.Producer(exchange=kombu.Exchange("default", no_declare=True)) as producer:
            producer.publish({}, routing_key=key)
            # A reply to any command proves that the broker processed the previous ones.
            producer.channel.basic_qos(0, 1, False)

    return attempt


ATTEMPTS = {
    "a worker sends requests": ("workers", publish(REQUESTS)),
    "a worker copies requests of another topic": ("workers", bind(WORKER, REQUESTS)),
    "a worker copies answers to an engine": ("workers", bind(WORKER, ENGINE)),
    "an engine copies requests": ("engines", bind(ENGINE, REQUESTS)),
    "an engine announces workers": ("engines", publish("wbe.engines")),
}
#: RabbitMQ cannot deny these attempts: its permissions distinguish only names of queues.
STILL_ALLOWED = {
    "a worker answers any engine": ("workers", publish(ENGINE)),
    "a worker reads what is for another one": ("workers", bind("other-2-0123abcd", WORKER)),
    "an engine gives orders to any worker": ("engines", publish(WORKER)),
}


def test_flow_runs_with_documented_rabbitmq_permissions(users: Users, tmp_path: Path) -> None:
    users.set_topic_permissions()
    ledger = f"dir://{tmp_path}/ledger"
    flow = linear_flow.Flow("f").add(tasks.Add())
    with worker_in_thread(users.urls["workers"], tasks, topic="t", ledger=ledger):
        options = {"url": users.urls["engines"], "ledger": ledger, "topics": ["t"]}
        found = engines.run(flow, {"x": 1, "y": 2}, engine="worker-based", **options)
    assert found["sum"] == 3


@pytest.mark.parametrize("what", [*ATTEMPTS, *STILL_ALLOWED])
def test_topic_permissions_deny_some_attempts_that_queue_rights_allow(
    what: str, users: Users
) -> None:
    role, attempt = {**ATTEMPTS, **STILL_ALLOWED}[what]
    setting_up = bind(WORKER if role == "workers" else ENGINE, "wbe." + role)
    assert allowed(users.urls[role], setting_up)
    assert allowed(users.urls[role], attempt)
    users.set_topic_permissions()
    assert allowed(users.urls[role], setting_up)
    assert allowed(users.urls[role], attempt) == (what in STILL_ALLOWED)


def test_engine_dead_letters_requests_with_documented_permissions(users: Users) -> None:
    users.set_topic_permissions()
    target = transports.resolve(users.urls["engines"])
    headers = {hd.WBE_VERSION: "1", hd.WBE_EPOCH: 3, hd.WBE_DEAD: "why", hd.WBE_QUEUE: "t.q"}
    body = {"action": "execute", "arguments": {}, "task_cls": "a.B", "task_name": "t"}
    letter = env.Envelope("REQUEST", body, correlation_id="id-0", headers=headers)
    with dead_letters.DeadLetters(target, "default", 5.0) as letters:
        letters.put(letter)


@pytest.fixture
def acl(redis_server: brokers.Redis, redis_url: str) -> Iterator[str]:
    """URL of a user with the documented permissions."""
    name = f"u{uuid.uuid4().hex}"
    (line,) = re.findall(r"(?m)^ +(ACL SETUSER .+)$", REDIS_GUIDE.read_text(encoding="utf-8"))
    words = line.replace("wbengine", name).replace("PASSWORD", "p").split()
    parts = urllib.parse.urlsplit(redis_url)
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command(*words)
        yield f"redis://{name}:p@{parts.hostname}:{parts.port}{parts.path}"
        admin.acl_deluser(name)


def test_documented_redis_acl_permits_flows_and_no_other_commands(acl: str) -> None:
    flow = linear_flow.Flow("f").add(tasks.Add())
    with worker_in_thread(acl, tasks, topic="t", exchange="orders"):
        options = {"url": acl, "exchange": "orders", "topics": ["t"]}
        found = engines.run(flow, {"x": 1, "y": 2}, engine="worker-based", **options)
    assert found["sum"] == 3
    with redis.Redis.from_url(acl) as client:
        for command in ("GET wbe:{other}:x", "FLUSHALL", "CONFIG GET dir", "KEYS *", "SHUTDOWN"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())
        # Roles share all keys: a worker can write the keys of an engine and vice versa.
        assert client.execute_command("SET", "wbe:{orders}:forged", "x")
        client.delete("wbe:{orders}:forged")
