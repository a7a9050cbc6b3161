"""Flows whose broker or result store is unreachable or refuses the connection."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import celery as celerys
import kombu
import pytest
import redis

from tests.celery import peers
from tests.celery.conftest import Bed
from tests.celery.journal import lines
from tests.support import receivers, tls
from tests.support.workers import until
from wbengine import engines, exceptions
from wbengine.interop.celery import _publisher, _reconnecting
from wbengine.interop.celery.task import CeleryTask
from wbengine.patterns import linear_flow, unordered_flow


def wrong(url: Any) -> str:
    """Return the URL with a wrong password."""
    scheme, _, address = str(url).partition("://")
    user, _, where = address.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:wrong@{where}"


@pytest.mark.parametrize(
    ("refuses", "engine"), [("redis", "parallel"), ("rabbitmq", "serial"), ("results", "parallel")]
)
def test_wrong_password_fails_flow_without_retry(
    refuses: str, engine: str, broker_servers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Failed authentication is an error, not a broken connection that is retried."""
    of_broker, of_results = ("rabbitmq", "redis") if refuses == "results" else (refuses, None)
    with broker_servers[of_broker].place() as url, broker_servers["redis"].place() as store:
        if of_results is None:
            broker, backend = wrong(url), "rpc://"
        else:
            broker, backend = str(url), wrong(store)
        flow = linear_flow.Flow("f").add(CeleryTask("x", broker, result_backend=backend))
        with pytest.raises(exceptions.TransportFailure, match="refuses this user or password"):
            engines.run(flow, engine=engine)
    # A retry would be logged.
    messages = [one.getMessage() for one in caplog.records if one.name == _reconnecting.LOG.name]
    assert not [line for line in messages if "cannot be reached" in line]


def test_missing_permission_to_subscribe_to_results_fails_flow(broker_servers: Any) -> None:
    """The user may write to Redis, but not subscribe."""
    with broker_servers["redis"].place() as url, broker_servers["redis"].place() as store:
        user = f"deaf-{uuid.uuid4()}"
        scheme, _, address = str(store).partition("://")
        deaf = f"{scheme}://{user}:secret@{address.rpartition('@')[2]}"
        with redis.Redis.from_url(str(store)) as admin:
            admin.acl_setuser(
                user, enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
                commands=["+@all", "-subscribe"],
            )  # fmt: skip
            try:
                flow = linear_flow.Flow("f").add(CeleryTask("x", url, result_backend=deaf))
                with pytest.raises(exceptions.TransportFailure, match="cannot be read"):
                    engines.run(flow, engine="parallel")
            finally:
                admin.acl_deluser(user)


@pytest.mark.parametrize("kind", ["redis"])
@pytest.mark.parametrize(
    ("options", "has_store"),
    [
        ({"global_keyprefix": "prefix-"}, False),
        ({"sep": ":", "priority_steps": list(range(10))}, True),
    ],
)
def test_transport_options_of_app_apply_to_its_tasks(
    options: dict[str, Any], has_store: bool, own: Bed, celery: peers.Celery
) -> None:
    """They define the keys of queues in Redis.  A worker reads no others."""
    backend = str(own.backend) if has_store else "rpc://"
    app = celerys.Celery("x", broker=str(own.url), backend=backend, set_as_current=False)
    app.conf.broker_transport_options = options
    name = f"{peers.NAME}.add"
    added = CeleryTask(name, app, args=["x", "y"], provides="sum", priority=5, timeout=20)
    with celery.worker(own.url, "threads", backend=backend, broker_transport_options=options):
        flow = linear_flow.Flow("f").add(added)
        values = engines.run(flow, inputs={"x": 1, "y": 2}, engine="parallel")
    assert values["sum"] == 3


@pytest.mark.parametrize("is_worker_ours", [False, True], ids=["celery", "wbengine"])
def test_tls_settings_of_app_apply_to_its_tasks(
    is_worker_ours: bool, kind: str, own: Bed, celery: peers.Celery, tmp_path: Path
) -> None:
    """The server accepts only TLS.  The worker has the same settings."""
    certificate = receivers.make_certificate(tmp_path, "localhost")
    options: dict[str, Any] = {"cert_reqs": 2, "ca_certs": str(certificate)}
    conf: dict[str, Any] = {"broker_use_ssl": options}
    if kind == "redis":
        options = {f"ssl_{name}": value for name, value in options.items()}
        conf = dict.fromkeys(("broker_use_ssl", "redis_backend_use_ssl"), options)
    plain = urlsplit(own.url)
    with tls.wrapped(plain.port or 0, certificate) as port:
        address = f"127.0.0.1:{plain.port}", f"localhost:{port}"
        url = own.url.replace(*address)
        backend = own.backend.replace(*address) if kind == "redis" else "rpc://"
        app = celerys.Celery("x", broker=url, backend=backend, set_as_current=False)
        app.conf.update(conf)
        added = CeleryTask(f"{peers.NAME}.add", app, args=["x", "y"], provides="sum", timeout=20)
        worker: Any = celery.worker(url, "threads", backend=backend, **conf)
        if is_worker_ours:
            worker = peers.wbengine_worker(tmp_path, url, backend=backend, **conf)
        with worker:
            flow = linear_flow.Flow("f").add(added)
            values = engines.run(flow, inputs={"x": 1, "y": 2}, engine="parallel")
        assert values["sum"] == 3
        _reconnecting.close_all()


@pytest.mark.parametrize("kind", ["rabbitmq"])
def test_queue_of_task_is_declared_as_its_app_defines_it(
    own: Bed, celery: peers.Celery, tmp_path: Path
) -> None:
    """A worker that starts later cannot use a queue with other arguments."""
    path = tmp_path / "path"
    app = celerys.Celery("x", broker=str(own.url), set_as_current=False)
    app.conf.task_queue_max_priority = 5
    name = f"{peers.NAME}.note"
    noted = CeleryTask(name, app, queue="urgent", ignore_result=True, inject={"path": str(path)})
    engines.run(linear_flow.Flow("f").add(noted), engine="parallel")
    with celery.worker(own.url, "threads", queue="urgent", task_queue_max_priority=5):
        until(lambda: lines(path))


def test_messages_sent_during_memory_alarm_arrive_once_after_it_ends(
    broker_servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would run a second copy of a message."""
    monkeypatch.setattr(_publisher, "_CONFIRM_SECONDS", 0.5)
    server = broker_servers["own rabbitmq"]
    with server.place() as url:
        server.alarm()
        tasks = [CeleryTask("x", str(url), f"t{n}", ignore_result=True) for n in range(3)]
        flow = unordered_flow.Flow("f").add(*tasks)
        running = threading.Thread(target=engines.run, args=(flow,), kwargs={"engine": "parallel"})
        running.start()
        time.sleep(3)  # several times the timeout of a confirmation
        assert running.is_alive()
        server.calm()
        running.join()
        with kombu.Connection(str(url)) as connection:
            queue = connection.SimpleQueue("celery")
            ids = [queue.get(timeout=10).properties["correlation_id"] for _ in range(3)]
            assert len(set(ids)) == 3 and not queue.qsize()


@pytest.mark.parametrize("scheme", ["amqp", "redis"])
def test_unreachable_broker_fails_task_after_its_timeout(
    scheme: str, unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure contains the stage and the reason; the log contains one line."""
    url = f"{scheme}://127.0.0.1:{unused_port}"
    flow = linear_flow.Flow("f").add(CeleryTask("x", url, timeout=1.5))
    with pytest.raises(exceptions.RequestTimeout) as raised:
        engines.run(flow, engine="parallel")
    text = str(raised.value)
    assert f"its message was not sent to the broker at {url}" in text, text
    assert "connection refused" in text.lower(), text
    lines = [one.getMessage() for one in caplog.records if one.name == _reconnecting.LOG.name]
    assert len([line for line in lines if line.startswith("the Celery broker at")]) == 1, lines


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
