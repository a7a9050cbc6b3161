"""What the worker's command makes of its options for Celery."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import celery_errands
from wbengine import worker
from wbengine.interop.celery import brokers
from wbengine.interop.celery.worker import options
from wbengine.interop.celery.worker.guest import Guest

BROKER = "amqp://me:secret@localhost/place"
USUAL = ("--celery-queue", "q", "--tasks", celery_errands.__name__, "--celery-broker", BROKER)


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WBENGINE_URL", options.BROKER_VARIABLE, options.BACKEND_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def parsed(*words: str) -> Any:
    return worker.parser().parse_args(words)


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes the guest of a command line, which is closed afterwards."""
    found: list[Guest] = []

    def make(*words: str) -> Guest:
        (guest,), _ = options.visit(parsed(*words))
        found.append(guest)
        return guest

    yield make
    for guest in found:
        guest._consumer.close()


def test_what_it_is_by_default(made: Any) -> None:
    guest = made(*USUAL)
    told = dict(guest.description)
    assert told["celery"] == "q at amqp://me:**@localhost/place"
    assert told["results"] == "rpc://"
    assert told["sends to"].startswith("celery,")
    assert "sends to" not in dict(made(*USUAL, "--celery-default-queue", "q").description)
    assert guest.node.startswith("wbengine-") and guest.node.endswith(f"@{socket.gethostname()}")


def test_the_broker_may_be_named_elsewhere(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = USUAL[:4]
    assert made(*words, "--url", "redis://other").queues == ["q"]
    monkeypatch.setenv(options.BROKER_VARIABLE, "redis://there")
    monkeypatch.setenv(options.BACKEND_VARIABLE, "redis://kept/2")
    told = dict(made(*words, "--url", "memory://ours").description)
    assert (told["celery"], told["results"]) == ("q at redis://there", "redis://kept/2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (USUAL[:4], "where is the broker of Celery"),
        ((*USUAL[:4], "--url", "filesystem:///tmp/x"), "where is the broker of Celery"),
        ((*USUAL[:4], "--celery-broker", "localhost"), "begins with its transport"),
        ((*USUAL[:4], "--celery-broker", "reddis://h"), "did you mean 'redis'"),
        ((*USUAL, "--celery-accept", "json,yml"), "did you mean 'yaml'"),
        ((*USUAL, "--celery-result-backend", "rcp://"), "did you mean 'rpc'"),
        ((*USUAL, "--celery-lang", "java"), "LANG=QUEUE"),
        ((*USUAL, "--celery-lang", "java=q"), "takes from that queue itself"),
        ((*USUAL, "--celery-lang", "py=other"), "tasks in Python run here"),
        ((*USUAL, "--celery-accept", ","), "names nothing"),
        ((*USUAL, "--celery-queue", ""), "must not be empty"),
        ((*USUAL, "--celery-default-queue", ""), "must not be empty"),
        ((*USUAL, "--celery-name", "a b"), "name of a node"),
        ((*USUAL, "--celery-task", "add"), "'add'"),
        ((*USUAL, "--celery-task", "add=tests.support.celery_errands:Nothing"), "Nothing"),
        ((*USUAL, "--celery-broker-option", "heartbeat=x"), "heartbeat"),
        ((*USUAL, "--celery-broker-option", "hartbeat=5"), "did you mean 'heartbeat'"),
        ((*USUAL, "--celery-broker-option", "qqq=5"), "for RabbitMQ; there are: "),
        (
            (
                *USUAL,
                "--celery-broker",
                "redis://h",
                "--celery-broker-option",
                "visibilty_timeout=5",
            ),
            "option of the transport for Redis (did you mean 'visibility_timeout'?)",
        ),
    ],
)
def test_what_makes_no_sense(words: tuple[str, ...], said: str) -> None:
    with pytest.raises((ValueError, ImportError)) as info:
        options.visit(parsed(*words))
    assert said in str(info.value)
    assert "secret" not in str(info.value)


@pytest.mark.parametrize(
    ("url", "names"),
    [
        (BROKER, ("heartbeat", "read_timeout", "login_method", "confirm_publish", "max_retries")),
        ("redis://h", ("visibility_timeout", "global_keyprefix", "polling_interval", "sep")),
        ("sentinel://h", ("master_name", "socket_timeout")),
        ("sqs://", ("region", "whatever_it_knows")),
    ],
)
def test_what_transports_know(url: str, names: tuple[str, ...]) -> None:
    try:
        brokers.Broker(url, dict.fromkeys(names, 1))
    except ValueError as error:
        assert "not installed" in str(error)  # of those that take more than we do


def test_a_misspelt_option_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = *USUAL, "--celery-broker-option", "hartbeat=5"
    with pytest.raises(SystemExit) as info:
        worker.main(words)
    assert info.value.code == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "hartbeat" in line]
    assert "error: " in line and "'heartbeat'" in line


def test_events_may_be_asked_for_without_queues(made: Any) -> None:
    guest = made(*USUAL[2:], "--events", "celery")
    assert guest.queues == []
    assert dict(guest.description)["celery"] == "no queues at amqp://me:**@localhost/place"


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["--tasks", "m"], "--topic (or --celery-queue)"),
        (["--topic", "t"], "--tasks"),
        (["--celery-queue", "q"], "--tasks"),
        (["--topic", "t", "--celery-task", "a=b:c"], "--tasks"),
    ],
)
def test_what_is_needed(words: list[str], missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        worker.main(words)
    assert info.value.code == 2
    assert missing in capsys.readouterr().err
