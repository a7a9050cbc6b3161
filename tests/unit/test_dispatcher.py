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


Handler = dispatcher.Handler
#: Handler, what happens to the message, its count, and a text of the log.
HANDLED: dict[str, tuple[Handler, list[str], dict[str, int], str]] = {
    "processed": (Handler(process), ["ack", "process data"], {}, ""),
    "owns-ack": (Handler(process, owns_ack=True), ["process data"], {}, ""),
    "invalid": (Handler(process, refuse), ["reject"], {"format": 1}, "'data' is bad"),
    "invalid-owns-ack": (
        Handler(process, refuse, owns_ack=True), ["reject"], {"format": 1}, "'data' is bad",
    ),
    "error": (Handler(fail), ["ack", "process data"], {"error": 1}, "handler is broken"),
    "error-owns-ack": (
        Handler(fail, owns_ack=True), ["process data", "reject"], {"error": 1}, "handler is broken",
    ),
    "error-of-validator": (
        Handler(process, crash), ["reject"], {"error": 1}, "validator is broken",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("handler", "done", "refused", "text"), HANDLED.values(), ids=HANDLED)
def test_message_is_acknowledged_or_rejected_logged_and_counted(
    handler: Handler,
    done: list[str],
    refused: dict[str, int],
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    message = Message()
    made = handle(handler, message)
    assert (message.done, made.refused) == (done, refused)
    assert len(caplog.records) == sum(refused.values()) and text in caplog.text
    assert ("Traceback" in caplog.text) == ("error" in refused)
    made.on_message("data", Message())
    assert made.refused == dict.fromkeys(refused, 2)


def test_validator_is_called_with_the_data() -> None:
    seen: list[Any] = []
    message = Message()
    handle(dispatcher.Handler(process, seen.append), message)
    assert seen == ["data"]
    assert message.done == ["ack", "process data"]


@pytest.mark.parametrize(
    "kind", ["REQUEST", "", None, 7, ["NOTIFY"]], ids=["unknown", "empty", "none", "int", "list"]
)
def test_message_of_unknown_type_is_rejected(kind: Any) -> None:
    message = Message(kind)
    made = handle(dispatcher.Handler(process), message)
    assert message.done == ["reject"]
    assert made.refused == {"type": 1}


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
