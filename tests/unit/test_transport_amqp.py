"""Arguments that kombu receives for RabbitMQ."""

from __future__ import annotations

import ssl

import pytest

from wbengine.transports import resolve
from wbengine.transports._amqp import amqp_kind


def arguments(url: str, **options: object) -> dict[str, object]:
    return amqp_kind.arguments(url, None, options)[1]


def test_heartbeat_is_ten_seconds_by_default_and_configurable() -> None:
    assert arguments("amqp://h//")["heartbeat"] == 10
    assert arguments("amqp://h//", heartbeat=3)["heartbeat"] == 3
    assert arguments("amqp://h//?heartbeat=7.5")["heartbeat"] == 7.5
    connection = resolve("amqp://h//", None, {"heartbeat": 0, "client_properties": {}}).connect()
    assert (connection.heartbeat, connection.transport_options) == (0, {"client_properties": {}})


def test_tls_requires_a_certificate_of_the_host() -> None:
    assert "ssl" not in arguments("amqp://h//")
    assert "ssl" not in arguments("amqp://h//", ssl_ca_certs=None)
    checked = {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "h.example"}
    assert arguments("amqps://me:x@h.example:1/v")["ssl"] == checked
    assert arguments("amqp://h.example//", ssl=True)["ssl"] == checked
    # Other TLS options do not change this.
    more = arguments("amqps://h.example//?ssl_ca_certs=/a", ssl={"certfile": "/b"})["ssl"]
    assert more == {**checked, "ca_certs": "/a", "certfile": "/b"}
    # Options in the URL and as arguments are equivalent.
    named = {"ssl_ca_certs": "/a", "ssl_certfile": "/b", "ssl_cert_reqs": "required"}
    assert arguments("amqp://h.example//", **named)["ssl"] == more
    with pytest.raises(ValueError, match="none, optional, required, got 'perhaps'"):
        arguments("amqps://h.example//?ssl_cert_reqs=perhaps")
    with pytest.raises(ValueError, match="ssl of a RabbitMQ: unknown option 'context'"):
        arguments("amqps://h.example//", ssl={"context": {}})


def test_tls_checks_are_disabled_only_explicitly() -> None:
    for options in ({"cert_reqs": ssl.CERT_NONE}, {"cert_reqs": "none"}, {"cert_reqs": 0}):
        assert arguments("amqps://h//", ssl=options)["ssl"] == {"cert_reqs": ssl.CERT_NONE}
    unnamed = {"cert_reqs": ssl.CERT_REQUIRED}
    assert arguments("amqps://h//", ssl_check_hostname=False)["ssl"] == unnamed


def test_url_query_is_removed_and_unknown_options_are_rejected() -> None:
    assert amqp_kind.arguments("amqps://h/v?ssl_ca_certs=/a", None, {})[0] == "amqps://h/v"
    with pytest.raises(ValueError, match=r"got 'heartbeet' \(did you mean 'heartbeat'\?\)"):
        arguments("amqp://h//?heartbeet=1")


def test_connection_attempts_alternate_between_brokers() -> None:
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
        ("amqp://[::1]:5672//", "amqp://[::1]:5672//"),
        ("mongodb://a:1,b:2/db", "mongodb://a:1,b:2/db"),
        ("amqp://me:s3?cret@h//", "amqp://me:**"),
        ("amqp://me:s3;cret@h//", "amqp://me:**;h//"),
    ],
)
def test_shown_url_masks_passwords(url: str, shown: str) -> None:
    assert resolve(url).shown == shown


def test_malformed_url_error_contains_no_password() -> None:
    with pytest.raises(ValueError) as caught:
        resolve("amqp://me:s3cret:x/y@h//").connect()
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__
