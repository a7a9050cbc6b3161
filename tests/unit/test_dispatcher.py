"""Dispatch of messages by type: processing, rejection and acknowledgement."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support.messages import Message
from wbengine import exceptions as exc
from wbengine.engines.worker_based import dispatcher


def process(data: Any, message: Any) -> None:
    message.done.append(f"process {data}")


def fail(data: Any, message: Any) -> None:
    process(data, message)
    raise RuntimeError("the handler is broken")


def refuse(data: Any) -> None:
    raise exc.InvalidFormat(f"{data!r} is bad")


def crash(data: Any) -> None:
    raise KeyError("the validator is broken")


def handle(handler: dispatcher.Handler, message: Message) -> dispatcher.TypeDispatcher:
    made = dispatcher.TypeDispatcher({"NOTIFY": handler})
    made.on_message("data", message)
    return made


def test_message_is_acknowledged_before_processing() -> None:
    message = Message()
    made = handle(dispatcher.Handler(process), message)
    assert message.done == ["ack", "process data"]
    assert not made.refused


def test_message_is_not_acknowledged_for_handler_with_owns_ack() -> None:
    message = Message()
    handle(dispatcher.Handler(process, owns_ack=True), message)
    assert message.done == ["process data"]


def test_validator_is_called_with_the_data() -> None:
    seen: list[Any] = []
    message = Message()
    handle(dispatcher.Handler(process, seen.append), message)
    assert seen == ["data"]
    assert message.done == ["ack", "process data"]


@pytest.mark.parametrize("owns_ack", [False, True])
def test_invalid_message_is_rejected(owns_ack: bool, caplog: pytest.LogCaptureFixture) -> None:
    message = Message()
    with caplog.at_level(logging.INFO):
        made = handle(dispatcher.Handler(process, refuse, owns_ack=owns_ack), message)
    assert message.done == ["reject"]
    assert made.refused == {"format": 1}
    (record,) = caplog.records
    assert record.exc_info is None
    assert "'data' is bad" in record.getMessage()


@pytest.mark.parametrize(
    "kind", ["REQUEST", "", None, 7, ["NOTIFY"]], ids=["unknown", "empty", "none", "int", "list"]
)
def test_message_of_unknown_type_is_rejected(kind: Any) -> None:
    message = Message(kind)
    made = handle(dispatcher.Handler(process), message)
    assert message.done == ["reject"]
    assert made.refused == {"type": 1}


@pytest.mark.parametrize(
    ("handler", "done"),
    [
        (dispatcher.Handler(fail), ["ack", "process data"]),
        (dispatcher.Handler(fail, owns_ack=True), ["process data", "reject"]),
        (dispatcher.Handler(process, crash), ["reject"]),
    ],
    ids=["handler", "handler-owns-ack", "validator"],
)
def test_errors_of_handlers_and_validators_are_logged_and_counted(
    handler: dispatcher.Handler, done: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    message = Message()
    made = handle(handler, message)
    assert message.done == done
    assert made.refused == {"error": 1}
    assert "is broken" in caplog.text
    made.on_message("data", Message())
    assert made.refused == {"error": 2}


def test_requeue_filters_run_before_validation() -> None:
    message = Message()
    made = dispatcher.TypeDispatcher(
        {"NOTIFY": dispatcher.Handler(process, refuse)}, [lambda data, _: data == "later"]
    )
    made.on_message("later", message)
    assert message.done == ["requeue"]
    made.on_message("now", message)
    assert message.done == ["requeue", "reject"]


def test_message_is_rejected_if_requeue_filter_raises() -> None:
    def broken(data: Any, message: Any) -> bool:
        raise RuntimeError("broken")

    message = Message()
    made = dispatcher.TypeDispatcher({"NOTIFY": dispatcher.Handler(process)}, [broken])
    made.on_message("data", message)
    assert message.done == ["reject"]
    assert made.refused == {"error": 1}


def test_handlers_and_filters_can_be_added_later() -> None:
    made = dispatcher.TypeDispatcher()
    made.type_handlers["NOTIFY"] = dispatcher.Handler(process)
    message = Message()
    made.on_message("data", message)
    assert message.done == ["ack", "process data"]
    made.requeue_filters.append(lambda *_: True)
    made.on_message("data", message)
    assert message.done[-1] == "requeue"


def test_handler_exposes_its_arguments() -> None:
    made = dispatcher.Handler(process, refuse)
    assert (made.process_message, made.validator, made.owns_ack) == (process, refuse, False)
