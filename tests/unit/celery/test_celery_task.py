"""`CeleryTask`: what it is made of, what it refuses, and what it sends; no broker is needed."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import pickle
import subprocess
import sys
from types import SimpleNamespace as Space
from typing import Any

import kombu
import pytest

from wbengine import exceptions, limits
from wbengine.interop.celery.client import addresses, asking, stored
from wbengine.interop.celery.client.task import CeleryTask
from wbengine.interop.celery.protocol import codec, serializers
from wbengine.patterns import linear_flow

URL = "amqp://somewhere"
ZONE = dt.timezone(dt.timedelta(hours=2))


def made(*args: Any, **options: Any) -> Any:
    return CeleryTask("proj.add", URL, *args, **options)


def test_it_is_a_task_like_others() -> None:
    found = made(provides="sum", args=("x", "y"), requires="z", rebind={"x": "total"})
    assert found.name == "proj.add" and found.requires == {"total", "y", "z"}
    assert found.rebind == {"x": "total", "y": "y", "z": "z"} and found.provides == {"sum"}
    assert found.local and found.detached and found.cancel_on_revert
    assert made("mine", rebind=["a", "b"], args=("x", "y")).rebind == {"x": "a", "y": "b"}
    assert made(inject={"k": 1}).rebind == {"k": "k"} and not made(inject={"k": 1}).requires
    assert made(revoke_on_revert=False).cancel_on_revert is False
    assert pickle.loads(pickle.dumps(found)).name == found.copy().name == "proj.add"
    linear_flow.Flow("f").add(found)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": "soon"}, ValueError, "timeout"),
        ({"retries": -1}, ValueError, "retries"),
        ({"retries": True}, ValueError, "retries"),
        ({"countdown": -1}, ValueError, "countdown"),
        ({"countdown": float("inf")}, ValueError, "countdown"),
        ({"countdown": "1"}, TypeError, "countdown"),
        ({"countdown": 1, "eta": dt.datetime.now(ZONE)}, ValueError, "both"),
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
        ({"result_backend": "disabled://"}, ValueError, "ignore_result"),
        ({"queue": 3}, TypeError, "queue"),
        ({"args": [1]}, TypeError, "names"),
        ({"args": ("x", "x")}, ValueError, "named twice"),
        ({"headers": 5}, TypeError, "headers"),
        ({"headers": {1: 2}}, TypeError, "headers"),
        ({"shadow": 5}, TypeError, "shadow"),
        ({"terminate": "SIGTRM"}, ValueError, "'SIGTERM'"),
        ({"terminate": 9}, ValueError, "name of a signal"),
    ],
)
def test_what_it_refuses(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        made(**options)


@pytest.mark.parametrize(
    "given", [("",), (None, URL), ("a",), ("a", 3), ("a", "nothing://x"), ("a", "memory://x")]
)
def test_it_needs_a_name_and_a_broker(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        CeleryTask(*given)


def app(**conf: Any) -> Any:
    """What of an app of Celery's is looked at."""
    return Space(conf=Space(broker_url="redis://here/1", result_backend="redis://there", **conf))


def test_an_app_says_where_things_are() -> None:
    given = app(
        task_default_queue="work",
        result_serializer="msgpack",
        control_exchange="ctl",
        result_backend_transport_options={"global_keyprefix": "p-"},
    )
    found = addresses.address_of(given)
    assert found == ("redis://here/1", "redis://there", "p-", "application/x-msgpack", "ctl")
    assert addresses.route_of(given, "t", None, None, None)[:2] == ("", "work")
    task = Space(name="proj.sub", app=given)
    assert CeleryTask(task).name == "proj.sub"
    assert addresses.address_of(given, "rpc://").backend == "rpc://"


def test_an_app_without_results() -> None:
    given = Space(conf=Space(broker_url=["amqp://a", "amqp://b"], result_backend=None))
    with pytest.raises(ValueError, match="ignore_result=True"):
        CeleryTask("t", given)
    assert CeleryTask("t", given, ignore_result=True)._address.broker == "amqp://a;amqp://b"


def test_the_routes_of_an_app() -> None:
    """A queue behind a direct exchange is written to by its name, others by their exchange."""
    told: dict[str, Any] = {}
    given = app()
    given.amqp = Space(router=Space(route=lambda *_: told))
    assert addresses.route_of(given, "t", None, None, None)[:2] == ("", "celery")
    told["queue"] = kombu.Queue("direct", kombu.Exchange("e"), "k")
    assert addresses.route_of(given, "t", None, None, None)[:2] == ("", "direct")
    told["queue"] = kombu.Queue("topic", kombu.Exchange("e", "topic"), "k.#")
    assert addresses.route_of(given, "t", None, None, None)[:2] == ("e", "k.#")
    told["routing_key"] = "k.a"
    assert addresses.route_of(given, "t", None, None, None)[:2] == ("e", "k.a")
    assert addresses.route_of(given, "t", "mine", None, None)[:2] == ("", "mine")
    assert addresses.route_of(given, "t", None, "x", "y") == ("x", "y", None)


def test_urls_of_results() -> None:
    for given, found in (
        ("rpc://", "rpc://"),
        ("redis+socket:///tmp/r", "unix:///tmp/r"),
        ("rediss://h?ssl_cert_reqs=CERT_REQUIRED", "rediss://h?ssl_cert_reqs=required"),
        ("rediss://h?ssl_cert_reqs=CERT_NONE&db=2", "rediss://h?ssl_cert_reqs=none&db=2"),
    ):
        address = addresses.address_of(URL, given)
        assert address.backend == found and address.stores == (given != "rpc://")


def test_results_at_a_socket() -> None:
    address = addresses.address_of(URL, "redis+socket:///nowhere/redis.sock")
    with pytest.raises(stored.errors(), match="No such file"):
        stored.Stored(address, serializers.Accepted(), print, print)


def test_what_it_sends() -> None:
    """Celery's protocol 2, the hard limit first."""
    options = asking.Options(
        "proj.add", expires=60, countdown=1, priority=3, timelimit=limits.TimeLimit(5.0, 7.0),
        headers={"color": "red"}, shadow="other",
    )  # fmt: skip
    wire = options.wire("some-id", [1, 2], {"k": None}, "replies")
    assert wire.headers["task"] == "proj.add" and wire.headers["lang"] == "py"
    assert wire.headers["timelimit"] == [7.0, 5.0] and wire.headers["color"] == "red"
    assert wire.properties["reply_to"] == "replies" and wire.properties["priority"] == 3
    assert wire.properties["correlation_id"] == wire.headers["root_id"] == "some-id"
    assert json.loads(wire.body)[:2] == [[1, 2], {"k": None}]
    message = codec.decode(wire, serializers.Accepted())
    assert message.eta is not None and message.expires is not None
    assert message.expires - message.eta == dt.timedelta(seconds=59)
    assert message.shadow == "other" and not message.ignore_result


def test_a_moment_goes_as_it_is() -> None:
    moment = dt.datetime(2030, 1, 1, 12, tzinfo=ZONE)
    wire = asking.Options("t", expires=moment, eta=moment).wire("i", [], {}, None)
    message = codec.decode(wire, serializers.Accepted())
    assert message.eta == message.expires == moment


@pytest.mark.parametrize(
    ("state", "word", "error"),
    [
        ("REVOKED", "expired", exceptions.Expired),
        ("REVOKED", "revoked", exceptions.Cancelled),
        ("REVOKED", "terminated", exceptions.Cancelled),
        ("FAILURE", "expired", exceptions.Cancelled),
    ],
)
def test_what_was_revoked(state: str, word: str, error: type[Exception]) -> None:
    told = {"exc_type": "TaskRevokedError", "exc_module": "celery.exceptions"}
    found = made()._read({"status": state, "result": {**told, "exc_message": [word]}})
    assert found.check(error) and word in found.exception_str


def test_celery_is_not_needed() -> None:
    """Nor imported, where it is there."""
    assert importlib.util.find_spec("celery")
    text = (
        "import sys; from wbengine.interop.celery.client.task import CeleryTask;"
        f"CeleryTask('t', {URL!r}, result_backend='redis://x');"
        "print([name for name in ('celery', 'redis') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
