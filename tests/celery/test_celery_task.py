"""Attributes, options and failures of `CeleryTask` without a broker."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib.util
import pickle
import ssl
import sys
from pathlib import Path
from types import SimpleNamespace as Space
from typing import Any

import celery
import kombu
import pytest
import redis

from tests.support import fresh
from wbengine import exceptions
from wbengine.interop.celery import CeleryTask, _publisher, _results
from wbengine.interop.celery._protocol import Result
from wbengine.patterns import linear_flow
from wbengine.types.failure import Failure

URL = "amqp://somewhere"
ZONE = dt.timezone(dt.timedelta(hours=2))


def made(*args: Any, **options: Any) -> Any:
    return CeleryTask("proj.add", URL, *args, **options)


def test_celery_task_has_attributes_of_a_task() -> None:
    task = made(provides="sum", args=("x", "y"), requires="z", rebind={"x": "total"})
    assert task.name == "proj.add" and task.requires == {"total", "y", "z"}
    assert task.rebind == {"x": "total", "y": "y", "z": "z"} and task.provides == {"sum"}
    assert task.local and task.detached and task.cancel_on_revert
    assert made("mine", rebind=["a", "b"], args=("x", "y")).rebind == {"x": "a", "y": "b"}
    assert made(inject={"k": 1}).rebind == {"k": "k"} and not made(inject={"k": 1}).requires
    assert made(revoke_on_revert=False).cancel_on_revert is False
    assert pickle.loads(pickle.dumps(task)).name == task.copy().name == "proj.add"
    linear_flow.Flow("f").add(task)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": "soon"}, TypeError, "timeout"),
        ({"retries": -1}, ValueError, "retries"),
        ({"retries": True}, ValueError, "retries"),
        ({"countdown": -1}, ValueError, "countdown"),
        ({"countdown": float("inf")}, ValueError, "countdown"),
        ({"countdown": "1"}, TypeError, "countdown"),
        ({"countdown": 1, "eta": dt.datetime.now(ZONE)}, ValueError, "only one of"),
        ({"eta": dt.datetime(2030, 1, 1)}, ValueError, "time zone"),
        ({"eta": 3}, TypeError, "eta"),
        ({"expires": float("nan")}, ValueError, "expires"),
        ({"priority": 256}, ValueError, "priority"),
        ({"priority": 1.0}, ValueError, "priority"),
        ({"timelimit": (3, 2)}, ValueError, "soft limit"),
        ({"serializer": "jsn"}, ValueError, "'json'"),
        ({"result_serializer": "pickel"}, ValueError, "'pickle'"),
        ({"result_backend": "redsi://x"}, ValueError, "'redis'"),
        ({"result_backend": "db+sqlite://"}, ValueError, "rpc://"),
        ({"result_backend": "redis"}, ValueError, "must be a URL, as in redis://localhost"),
        ({"result_backend": "disabled://"}, ValueError, "ignore_result"),
        ({"queue": 3}, TypeError, "queue"),
        ({"args": [1]}, TypeError, "names"),
        ({"args": ("x", "x")}, ValueError, "a name twice"),
        ({"headers": 5}, TypeError, "headers"),
        ({"headers": {1: 2}}, TypeError, "headers"),
        ({"shadow": 5}, TypeError, "shadow"),
        ({"terminate": "SIGTRM"}, ValueError, "'SIGTERM'"),
        ({"terminate": 9}, ValueError, "name of a signal"),
    ],
)
def test_invalid_option_is_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        made(**options)


@pytest.mark.parametrize(
    "given", [("",), (None, URL), ("a",), ("a", 3), ("a", "nothing://x"), ("a", "memory://x")]
)
def test_missing_name_or_broker_is_refused(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        CeleryTask(*given)


def app(**conf: Any) -> Any:
    """Return the attributes of a Celery app that `CeleryTask` reads."""
    return Space(conf=Space(broker_url="redis://here/1", result_backend="redis://there", **conf))


def test_address_is_read_from_app_settings() -> None:
    given = app(
        task_default_queue="work",
        result_serializer="msgpack",
        control_exchange="ctl",
        result_backend_transport_options={"global_keyprefix": "p-"},
        broker_transport_options={"global_keyprefix": "q-"},
    )
    address = _publisher.address_of(given)
    assert address == (
        "redis://here/1",
        "redis://there",
        "p-",
        "application/x-msgpack",
        "ctl",
        "celeryev",
        {"global_keyprefix": "q-"},
    )
    assert _publisher.route_of(given, "t", None, None, None)[:2] == ("", "work")
    task = Space(name="proj.sub", app=given)
    assert CeleryTask(task).name == "proj.sub"
    assert _publisher.address_of(given, "rpc://").backend == "rpc://"


@pytest.mark.parametrize(
    ("url", "value", "expected"),
    [
        ("redis://:redis:@h/1", {"ssl_cert_reqs": ssl.CERT_NONE}, "rediss://:redis:@h/1?{}=none"),
        ("redis://h", {"ssl_cert_reqs": "CERT_REQUIRED"}, "rediss://h?{}=required"),
        ("redis://a;redis://b", {"ssl_cert_reqs": 2}, "rediss://a?{}=required;rediss://b?{}=required"),
        ("rediss://h?ssl_cert_reqs=required", {"ssl_cert_reqs": 0}, "rediss://h?{}=required"),
        ("rediss://h?ssl_cert_reqs=none", True, "rediss://h?{}=none"),
        ("sentinel://h", {"ssl_cert_reqs": 0}, "sentinel://h?{}=none"),
        ("redis+socket:///tmp/r", {"ssl_cert_reqs": 0}, "redis+socket:///tmp/r"),
        ("redis://h", {}, "redis://h"),
    ],
)  # fmt: skip
def test_tls_setting_of_app_is_part_of_redis_url(url: str, value: Any, expected: str) -> None:
    given = Space(conf=Space(broker_url=url, broker_use_ssl=value))
    assert _publisher.address_of(given).broker == expected.replace("{}", "ssl_cert_reqs")


def test_tls_options_of_redis_url_are_read_by_clients(tmp_path: Path) -> None:
    file = tmp_path / "ca?&%.pem"
    file.touch()
    options = {"ssl_cert_reqs": 2, "ssl_ca_certs": str(file), "ssl_check_hostname": False}
    given = app(broker_use_ssl={**options, "ssl_keyfile": None}, redis_backend_use_ssl=options)
    address = _publisher.address_of(given)
    assert kombu.Connection(address.broker).ssl == options
    pool = redis.ConnectionPool.from_url(address.backend)
    assert pool.connection_class is redis.SSLConnection
    assert {**pool.connection_kwargs, "ssl_cert_reqs": 2}.items() >= options.items()


@pytest.mark.parametrize("value", [True, {"cert_reqs": ssl.CERT_REQUIRED}])
def test_tls_setting_of_app_is_option_of_rabbitmq(value: Any) -> None:
    conf = Space(broker_url="amqp://a;amqp://b", broker_use_ssl=value)
    address = _publisher.address_of(Space(conf=conf))
    assert (address.broker, address.options) == ("amqp://a;amqp://b", {"ssl": value})
    assert hash(address)


@pytest.mark.parametrize(
    ("setting", "url", "value", "message"),
    [
        ("broker_use_ssl", "redis://h", True, "broker_use_ssl must be a dict with ssl_cert_reqs"),
        ("redis_backend_use_ssl", "redis://h", True, "redis_backend_use_ssl must be a dict"),
        ("broker_use_ssl", "redis://h", {"cert_reqs": 2}, "unknown option 'cert_reqs'"),
        ("broker_use_ssl", "redis://h", {"ssl_cert_reqs": None}, "one of none, optional, required"),
        ("broker_use_ssl", "redis://h", {"ssl_ca_certs": "/none"}, "ssl_ca_certs must be an exist"),
        ("broker_use_ssl", "amqp://h", {"ssl_cert_reqs": 2}, "unknown option 'ssl_cert_reqs'"),
        ("broker_use_ssl", "amqp://h", {"cert_reqs": 7}, "one of none, optional, required"),
        ("broker_use_ssl", "amqp://h", {"ca_certs": "/none"}, "ssl_ca_certs must be an existing"),
    ],
)
def test_invalid_tls_setting_of_app_is_refused(
    setting: str, url: str, value: Any, message: str
) -> None:
    conf = Space(broker_url=url, result_backend="redis://h", **{setting: value})
    with pytest.raises(ValueError, match=message):
        _publisher.address_of(Space(conf=conf))


def test_environment_variables_override_app_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = celery.Celery("proj", broker="redis://settings", set_as_current=False)
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://variable")
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://results")
    address = _publisher.address_of(given)
    assert (address.broker, address.backend) == ("redis://variable", "redis://results")


@pytest.mark.parametrize("prefix", ["app", "app_", "app-", "app.", "app:"])
def test_prefix_of_result_key_equals_celerys(prefix: str) -> None:
    options = {"global_keyprefix": prefix}
    given = celery.Celery("proj", broker="redis://h", backend="redis://h", set_as_current=False)
    given.conf.result_backend_transport_options = options
    key = given.backend.get_key_for_task("id").decode()
    assert key == f"{_publisher.address_of(given).prefix}celery-task-meta-id"


@pytest.mark.parametrize("url", ["redis://:s3@cret@host", "redis://host?password=s3@cret"])
def test_password_of_result_backend_is_masked(url: str) -> None:
    reader = _publisher.address_of(URL, url).reader()
    assert reader is not None and "host" in reader.place
    assert "cret" not in reader.place


def test_error_for_broker_url_without_transport_contains_no_password() -> None:
    with pytest.raises(ValueError, match=r"as in amqp://host$"):
        _publisher.address_of("me:s3cret@host")


def test_app_without_result_backend_requires_ignore_result() -> None:
    given = Space(conf=Space(broker_url=["amqp://a", "amqp://b"], result_backend=None))
    with pytest.raises(ValueError, match="ignore_result=True"):
        CeleryTask("t", given)
    CeleryTask("t", given, ignore_result=True)
    assert _publisher.address_of(given).broker == "amqp://a;amqp://b"


def test_route_is_read_from_router_of_app() -> None:
    """A queue with a direct exchange is addressed by name, others by exchange and routing key."""
    conf: dict[str, Any] = {}
    given = app()
    given.amqp = Space(router=Space(route=lambda *_: conf))
    assert _publisher.route_of(given, "t", None, None, None)[:2] == ("", "celery")
    conf["queue"] = kombu.Queue("direct", kombu.Exchange("e"), "k")
    assert _publisher.route_of(given, "t", None, None, None)[:2] == ("", "direct")
    conf["queue"] = kombu.Queue("topic", kombu.Exchange("e", "topic"), "k.#")
    assert _publisher.route_of(given, "t", None, None, None)[:2] == ("e", "k.#")
    conf["routing_key"] = "k.a"
    assert _publisher.route_of(given, "t", None, None, None)[:2] == ("e", "k.a")
    assert _publisher.route_of(given, "t", "mine", None, None)[:2] == ("", "mine")
    assert _publisher.route_of(given, "t", None, "x", "y") == ("x", "y", None)


def test_result_backend_url_is_normalized() -> None:
    for given, normalized in (
        ("rpc://", "rpc://"),
        ("redis+socket:///tmp/r", "unix:///tmp/r"),
        ("rediss://h?ssl_cert_reqs=CERT_REQUIRED", "rediss://h?ssl_cert_reqs=required"),
        ("rediss://h?ssl_cert_reqs=CERT_NONE&db=2", "rediss://h?ssl_cert_reqs=none&db=2"),
    ):
        assert _publisher.address_of(URL, given).backend == normalized


@pytest.mark.parametrize(
    ("kind", "module", "ours"),
    [
        ("WorkerLostError", "billiard.exceptions", exceptions.WorkerLost),
        ("TimeLimitExceeded", "billiard.exceptions", exceptions.TimeLimitExceeded),
        ("SoftTimeLimitExceeded", "billiard.exceptions", exceptions.SoftTimeLimitExceeded),
        ("TaskRevokedError", "celery.exceptions", exceptions.Cancelled),
        ("NotRegistered", "celery.exceptions", exceptions.NotFound),
    ],
)
def test_celery_exception_matches_wbengine_exception(
    kind: str, module: str, ours: type[Exception]
) -> None:
    stored = {"exc_type": kind, "exc_message": ["text"], "exc_module": module}
    failure = _results.failure_of(Result("id", "FAILURE", stored))
    assert next(iter(failure)) == f"{module}.{kind}"
    assert failure.check(ours) is ours
    assert failure.exception_str == "text"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        [],
        {"exc_type": 5, "exc_message": {"a": 1}, "exc_module": []},
        {"exc_type": "", "exc_module": "os"},
        {"exc_type": "system", "exc_module": "os", "exc_message": ["rm -rf"]},
        {"exc_type": "SystemExit", "exc_module": "builtins", "exc_message": [1]},
        {"exc_type": "a.b.c", "exc_module": "no.such", "exc_message": [[1], "x"]},
        ValueError("from a pickle"),
    ],
)
def test_malformed_failed_result_becomes_failure_without_imports(value: Any) -> None:
    """Raising the failure does not end the process."""
    # imports the modules that validation needs
    Failure.validate(Failure.from_exception(KeyError()).to_dict())
    before = set(sys.modules)
    failure = _results.failure_of(Result("id", "FAILURE", value, "text"))
    assert all(isinstance(part, str | int | None) for part in failure.exception_args)
    Failure.validate(failure.to_dict())
    with pytest.raises(Exception):  # noqa: B017
        failure.reraise()
    assert set(sys.modules) == before


class Resent(CeleryTask):
    """Receives these results in order, as a call that an earlier run may have sent."""

    results: list[Any]
    recovered = True

    @property
    def request(self) -> Any:
        return Space(id="id", recovered=self.recovered)

    async def _send_and_wait(self, id: str, args: Any, kwargs: Any) -> Any:
        return self._value(self.results.pop(0))


@pytest.mark.parametrize(
    ("recovered", "retries", "is_resent"), [(True, 1, True), (True, 0, False), (False, 1, False)]
)
def test_resumed_task_continues_after_revocation_by_the_earlier_run(
    recovered: bool, retries: int, is_resent: bool
) -> None:
    task = Resent("proj.add", URL, retries=retries)
    task.recovered = recovered
    task.results = [Result("id", "REVOKED", None, ""), Result("id-1", "SUCCESS", 3, "")]
    value = asyncio.run(task.execute())
    if is_resent:
        assert value == 3
    else:
        assert value.check(exceptions.Cancelled)


def test_celery_task_does_not_import_celery() -> None:
    """Celery is installed, but not imported."""
    assert importlib.util.find_spec("celery")
    text = (
        "import sys; from wbengine.interop.celery import CeleryTask;"
        f"CeleryTask('t', {URL!r}, result_backend='redis://x');"
        "print([name for name in ('celery', 'redis') if name in sys.modules])"
    )
    assert fresh.run(text).stdout.strip() == "[]"
