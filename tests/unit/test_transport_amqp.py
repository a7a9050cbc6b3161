"""What kombu is told of a RabbitMQ."""

from __future__ import annotations

import ssl

import pytest

from wbengine.transports import amqp, resolve


def arguments(url: str, **options: object) -> dict[str, object]:
    return amqp.arguments(url, None, options)[1]


def test_heartbeats_are_asked_for() -> None:
    assert arguments("amqp://h//")["heartbeat"] == 10
    assert arguments("amqp://h//", heartbeat=3)["heartbeat"] == 3
    assert arguments("amqp://h//?heartbeat=7.5")["heartbeat"] == 7.5
    connection = resolve("amqp://h//", None, {"heartbeat": 0, "client_properties": {}}).connect()
    assert (connection.heartbeat, connection.transport_options) == (0, {"client_properties": {}})


def test_certificates_are_required_and_of_the_host() -> None:
    assert "ssl" not in arguments("amqp://h//")
    assert "ssl" not in arguments("amqp://h//", ssl_ca_certs=None)
    checked = {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "h.example"}
    assert arguments("amqps://me:x@h.example:1/v")["ssl"] == checked
    assert arguments("amqp://h.example//", ssl=True)["ssl"] == checked
    # Whatever else is said of it.
    more = arguments("amqps://h.example//?ssl_ca_certs=/a", ssl={"certfile": "/b"})["ssl"]
    assert more == {**checked, "ca_certs": "/a", "certfile": "/b"}
    # In the URL, or as options: the same.
    named = {"ssl_ca_certs": "/a", "ssl_certfile": "/b", "ssl_cert_reqs": "required"}
    assert arguments("amqp://h.example//", **named)["ssl"] == more
    with pytest.raises(ValueError, match="none, optional, required, not 'perhaps'"):
        arguments("amqps://h.example//?ssl_cert_reqs=perhaps")


def test_whoever_wants_no_check_has_to_say_so() -> None:
    for options in ({"cert_reqs": ssl.CERT_NONE}, {"cert_reqs": "none"}, {"cert_reqs": 0}):
        assert arguments("amqps://h//", ssl=options)["ssl"] == {"cert_reqs": ssl.CERT_NONE}
    unnamed = {"cert_reqs": ssl.CERT_REQUIRED}
    assert arguments("amqps://h//", ssl_check_hostname=False)["ssl"] == unnamed


def test_the_query_of_a_url_is_ours() -> None:
    assert amqp.arguments("amqps://h/v?ssl_ca_certs=/a", None, {})[0] == "amqps://h/v"
    with pytest.raises(ValueError, match=r"says 'heartbeet' \(did you mean 'heartbeat'\?\)"):
        arguments("amqp://h//?heartbeet=1")


def test_several_brokers_take_turns() -> None:
    target = resolve("amqps://a//;amqps://b//")
    hosts = [target.connect(number) for number in range(3)]
    assert [each.hostname for each in hosts] == ["a", "b", "a"]
    assert [each.ssl["server_hostname"] for each in hosts] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://me:s3cret@h:1/v", "amqp://me:**@h:1/v"),
        ("amqp://me:s3/cr@et@h:1/v", "amqp://me:**@h:1/v"),
        ("amqps://h/v?ssl_keyfile=s3cret", "amqps://h/v"),
        ("amqp://me:s3cret@a//;amqp://you:s3cret@b//", "amqp://me:**@a//;amqp://you:**@b//"),
        ("sqlalchemy+mysql://me:s3cret@h/db", "sqlalchemy+mysql://me:**@h/db"),
        ("amqp://h//", "amqp://h//"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert resolve(url).shown == shown


def test_a_malformed_url_tells_no_password() -> None:
    with pytest.raises(ValueError) as caught:
        resolve("amqp://me:s3cret:x/y@h//").connect()
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__
