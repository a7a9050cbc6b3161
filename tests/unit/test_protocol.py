"""Messages, their schemas, and the states of a request."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
from automaton.exceptions import AutomatonException
from hypothesis import example, given
from hypothesis import strategies as st

from wbengine import exceptions as exc
from wbengine import task
from wbengine.engines.worker_based import _message_schemas
from wbengine.engines.worker_based import protocol as pr
from wbengine.types._schema_validation import Schema
from wbengine.types.failure import MAX_TEXT_LENGTH, Failure

STATES = (pr.WAITING, pr.PENDING, pr.RUNNING, pr.SUCCESS, pr.FAILURE)
MOVES = {
    (pr.WAITING, pr.PENDING),
    (pr.WAITING, pr.FAILURE),
    (pr.PENDING, pr.RUNNING),
    (pr.PENDING, pr.FAILURE),
    (pr.RUNNING, pr.SUCCESS),
    (pr.RUNNING, pr.FAILURE),
}


class Add(task.Task):
    def execute(self, x: int, y: int) -> int:
        return x + y


class Odd(Exception):
    """Exception with arguments that JSON cannot represent."""


def request(**options: Any) -> pr.Request:
    return pr.Request(Add("add"), "uuid-1", "execute", {"x": 1, "y": 2}, **options)


def failure(error: BaseException | None = None) -> Failure:
    try:
        raise error or RuntimeError("Woot!")
    except BaseException as caught:
        return Failure.from_exception(caught)


def in_state(state: str) -> pr.Request:
    made = request()
    made.current_state = state
    return made


# States -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), list(itertools.product(STATES, STATES)))
def test_only_listed_state_transitions_are_accepted(start: str, end: str) -> None:
    made = in_state(start)
    if start == end:
        assert made.transition(end) is False
    elif (start, end) in MOVES:
        assert made.transition(end) is True
        assert made.current_state == end
    else:
        with pytest.raises(exc.InvalidState, match=f"{start} to {end}") as caught:
            made.transition(end)
        assert isinstance(caught.value.__cause__, AutomatonException)
        assert made.current_state == start


def test_state_machine_has_the_listed_transitions() -> None:
    machine = pr.build_a_machine()
    assert {(start, end) for start, _, end in machine} == MOVES
    assert {event for _, event, _ in machine} == {pr.make_an_event(end) for _, end in MOVES}
    assert pr.make_an_event(pr.SUCCESS) == "on_success"
    assert machine.current_state == pr.WAITING


@pytest.mark.parametrize("freeze", [True, False])
def test_state_machine_is_frozen_on_request(freeze: bool) -> None:
    assert pr.build_a_machine(freeze).frozen is freeze


def test_rejected_transition_is_logged_on_request(caplog: pytest.LogCaptureFixture) -> None:
    made = in_state(pr.SUCCESS)
    with caplog.at_level(logging.WARNING):
        assert made.transition_and_log_error(pr.RUNNING) is False
    assert "SUCCESS to RUNNING" in caplog.text
    assert in_state(pr.WAITING).transition_and_log_error(pr.PENDING) is True


@pytest.mark.parametrize("state", STATES)
def test_only_waiting_or_pending_requests_expire(state: str) -> None:
    made = in_state(state)
    made.since, made.timeout = 100.0, 60.0
    assert made.expired_at(159.9) is False
    assert made.expired_at(160.0) is (state in (pr.WAITING, pr.PENDING))
    made.since = 1006.1  # `since + 60.0 - since` is less than 60.0 here
    assert made.expired_at(made.since + 60.0) is (state in (pr.WAITING, pr.PENDING))
    made.timeout = None
    assert made.expired_at(1e9) is False


def test_request_with_timeout_of_zero_expires_at_once() -> None:
    assert request(timeout=0).expired is True
    assert request().expired is False


def test_first_result_of_request_is_kept() -> None:
    made = request()
    made.set_result(3)
    made.set_result(4)
    assert made.future.result(0) == ("executed", 3)


def test_request_text_contains_no_argument_values() -> None:
    made = pr.Request(Add("add"), "uuid-1", "execute", {"x": "secret", "y": 2})
    assert "secret" not in repr(made)
    with pytest.raises(exc.InvalidState) as caught:
        made.transition(pr.SUCCESS)
    assert "secret" not in str(caught.value)


# Bodies -----------------------------------------------------------------------------------------


def test_execute_request_has_documented_body() -> None:
    assert request().to_dict() == {
        "action": "execute",
        "arguments": {"x": 1, "y": 2},
        "task_cls": f"{__name__}.Add",
        "task_name": "add",
        "task_version": [1, 0],
    }


def test_revert_request_contains_result_and_failures() -> None:
    broken = failure()
    made = pr.Request(
        Add("add"), "u", "revert", {}, result=broken, failures={"add": broken, "b": broken}
    )
    body = json.loads(json.dumps(made.to_dict()))
    pr.Request.validate(body)
    assert body["result"][0] == "failure"
    unit = pr.Request.from_dict(body)
    assert unit.action == "revert"
    assert unit.result.matches(broken)
    assert set(unit.failures) == {"add", "b"}
    assert unit.failures["b"].matches(broken)


def test_taskflow_receives_only_parts_of_failures_that_it_reads() -> None:
    error = ExceptionGroup("g", [OSError(2, "no", "file")])
    error.__cause__ = OSError(2, "no", "file")
    error.add_note("note")
    failure = Failure.from_exception(error)
    parts = {"version", "exception_str", "traceback_str", "exc_type_names", "exc_args"}
    data = pr.failure_to_dict(failure, extended=False)
    assert set(data) == {*parts, "causes"} and set(data["causes"][0]) == parts
    assert Failure.from_dict(pr.failure_to_dict(failure)).matches(failure)


@pytest.mark.parametrize(
    "result", [None, 0, [], "text", {"a": 1}], ids=["none", "zero", "empty-list", "str", "dict"]
)
def test_none_and_empty_values_are_valid_results(result: Any) -> None:
    body = pr.Request(Add("add"), "u", "revert", {}, result=result).to_dict()
    assert body["result"] == ["success", result]
    assert pr.Request.from_dict(body).result == result


def test_request_without_result_has_no_result_field() -> None:
    assert "result" not in request().to_dict()
    assert "failures" not in request().to_dict()


def test_error_names_path_of_argument_that_cannot_be_encoded() -> None:
    made = pr.Request(Add("add"), "u", "execute", {"x": [1, object()], "y": 2})
    with pytest.raises(exc.NotEncodable) as caught:
        made.to_dict()
    assert caught.value.path == "arguments['x'][1]"


@pytest.mark.parametrize(
    "args",
    [(object(),), ({1: 2},), ("\ud800",), (10**5000,), (float("nan"),), ([[[[[[[[[[[]]]]]]]]]]],)],
    ids=["object", "int-as-key", "lone-surrogate", "huge-int", "nan", "deep-nesting"],
)
def test_failure_is_sent_without_arguments_that_cannot_be_encoded(args: tuple[Any, ...]) -> None:
    data = pr.failure_to_dict(failure(Odd(*args)))
    encoded = json.dumps(data).encode("utf-8")
    pr.Response.validate({"state": pr.FAILURE, "data": {"result": json.loads(encoded)}})
    assert Failure.from_dict(data).check(f"{__name__}.Odd")


def test_failure_is_sent_with_encodable_arguments() -> None:
    assert pr.failure_to_dict(failure(Odd("a", 1)))["exc_args"] == ["a", 1]


def test_text_of_huge_failure_is_shortened() -> None:
    """Otherwise requests to revert would be too large. Causes are shortened as well."""
    long = "x" * (MAX_TEXT_LENGTH + 1)
    try:
        raise RuntimeError("short") from ValueError(long)
    except RuntimeError as caught:
        data = pr.failure_to_dict(failure(caught))
    [cause] = data["causes"]
    assert (data["exception_str"], data["exc_args"]) == ("short", ["short"])
    assert cause["exception_str"] == f"{long[:-1]}... ({len(long)} characters)"
    assert cause["exc_args"] == []
    assert Failure.from_dict(data).causes[0].check(ValueError)


def test_system_exit_failure_is_valid_reply() -> None:
    data = pr.failure_to_dict(failure(SystemExit(3)))
    pr.Response.validate({"state": pr.FAILURE, "data": {"result": data}})


# Validation -------------------------------------------------------------------------------------

GOOD_REQUEST: dict[str, Any] = {
    "action": "execute",
    "arguments": {"x": 111},
    "task_cls": "tests.utils.TaskOneArgOneReturn",
    "task_name": "some task",
    "task_version": [1, 0],
}
GOOD_FAILURE: dict[str, Any] = {
    "exc_type_names": ["RuntimeError", "StandardError", "Exception"],
    "exception_str": "Woot!",
    "traceback_str": '  File "/homes/x/executor.py", line 56, in _execute_task\n',
    "version": 1,
}


VALID_REQUESTS: dict[str, dict[str, Any]] = {
    "execute": {},
    "version-as-str": {"task_version": "1.0"},
    "revert-success": {"action": "revert", "result": ["success", None]},
    "revert-failure": {"action": "revert", "result": ["failure", GOOD_FAILURE]},
    "failures": {"failures": {"a": GOOD_FAILURE}},
    "unknown-field": {"unheard": "of"},
}


@pytest.mark.parametrize("change", VALID_REQUESTS.values(), ids=VALID_REQUESTS)
def test_valid_requests_are_accepted(change: dict[str, Any]) -> None:
    pr.Request.validate({**GOOD_REQUEST, **change})


MALFORMED_REQUESTS: dict[str, dict[str, Any]] = {
    "unknown-action": {"action": "explode"},
    "no-action": {"action": None},
    "action-list": {"action": ["execute"]},
    "arguments-list": {"arguments": []},
    "no-arguments": {"arguments": None},
    "failures-list": {"failures": []},
    "empty-failure": {"failures": {"a": {}}},
    "unknown-failure-version": {"failures": {"a": {**GOOD_FAILURE, "version": 7}}},
    "class-int": {"task_cls": 3},
    "no-name": {"task_name": None},
    "version-int": {"task_version": 1},
    "no-result": {"result": None},
    "empty-result": {"result": []},
    "result-without-value": {"result": ["success"]},
    "result-with-third-value": {"result": ["success", 1, 2]},
    "result-kind-list": {"result": [["success"], 1]},
    "result-str": {"result": "xy"},
    "failed-without-failure": {"result": ["failure", None]},
    "failure-without-types": {"result": ["failure", {**GOOD_FAILURE, "exc_type_names": []}]},
}


@pytest.mark.parametrize("change", MALFORMED_REQUESTS.values(), ids=MALFORMED_REQUESTS)
def test_malformed_requests_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(exc.InvalidFormat):
        pr.Request.validate({**GOOD_REQUEST, **change})


@pytest.mark.parametrize("key", ["action", "task_cls", "task_name", "task_version"])
def test_request_without_required_field_is_rejected(key: str) -> None:
    body = {name: value for name, value in GOOD_REQUEST.items() if name != key}
    with pytest.raises(exc.InvalidFormat, match=key):
        pr.Request.validate(body)


def test_validation_error_names_the_invalid_path() -> None:
    with pytest.raises(exc.InvalidFormat, match=r"request\['arguments'\] is invalid"):
        pr.Request.validate({**GOOD_REQUEST, "arguments": 7})


VALID_REPLIES: dict[str, tuple[str, Any]] = {
    "running": (pr.RUNNING, {}),
    "success": (pr.SUCCESS, {"result": None}),
    "failure": (pr.FAILURE, {"result": GOOD_FAILURE}),
    "event": (pr.EVENT, {"event_type": "update_progress", "details": {"progress": 0.5}}),
}


@pytest.mark.parametrize(("state", "data"), VALID_REPLIES.values(), ids=VALID_REPLIES)
def test_valid_replies_are_accepted(state: str, data: dict[str, Any]) -> None:
    pr.Response.validate(pr.Response(state, **data).to_dict())


MALFORMED_REPLIES: dict[str, tuple[Any, Any]] = {
    "success-without-result": (pr.SUCCESS, {}),
    "success-with-event": (pr.SUCCESS, {"event_type": "a", "details": {}}),
    "success-with-more": (pr.SUCCESS, {"result": 1, "more": 2}),
    "failure-without-result": (pr.FAILURE, {}),
    "failure-none": (pr.FAILURE, {"result": None}),
    "failure-str": (pr.FAILURE, {"result": "no"}),
    "failure-unknown-version": (pr.FAILURE, {"result": {**GOOD_FAILURE, "version": 2}}),
    "failure-without-version": (
        pr.FAILURE,
        {"result": {k: v for k, v in GOOD_FAILURE.items() if k != "version"}},
    ),
    "failure-with-invalid-cause": (pr.FAILURE, {"result": {**GOOD_FAILURE, "causes": [1]}}),
    "empty-event": (pr.EVENT, {}),
    "event-with-result": (pr.EVENT, {"result": 1}),
    "event-type-int": (pr.EVENT, {"event_type": 1, "details": {}}),
    "event-details-list": (pr.EVENT, {"event_type": "a", "details": []}),
    "unknown-state": ("DONE", {}),
    "no-state": (None, {}),
    "state-list": (["RUNNING"], {}),
    "no-data": (pr.RUNNING, None),
    "data-list": (pr.RUNNING, []),
}


@pytest.mark.parametrize(("state", "data"), MALFORMED_REPLIES.values(), ids=MALFORMED_REPLIES)
def test_malformed_replies_are_rejected(state: Any, data: Any) -> None:
    with pytest.raises(exc.InvalidFormat):
        pr.Response.validate({"state": state, "data": data})


@pytest.mark.parametrize(
    "data",
    [None, [], "x", 1, {"state": "RUNNING"}, {"data": {}}],
    ids=["none", "list", "str", "int", "no-data", "no-state"],
)
def test_non_message_bodies_are_rejected(data: Any) -> None:
    for check in (pr.Request.validate, pr.Response.validate):
        with pytest.raises(exc.InvalidFormat):
            check(data)


def test_notify_messages_are_validated() -> None:
    pr.Notify.validate({})
    pr.Notify.validate({"topic": "t", "tasks": ["a"]}, response=True)
    for bad in ({"topic": "t"}, [], None):
        with pytest.raises(exc.InvalidFormat, match="notify request"):
            pr.Notify.validate(bad)
    for bad in ({}, {"topic": 1, "tasks": []}, {"topic": "t", "tasks": [1]}, None):
        with pytest.raises(exc.InvalidFormat, match="notify response"):
            pr.Notify.validate(bad, response=True)
    assert pr.Notify(topic="t", tasks=["a"]).to_dict() == {"topic": "t", "tasks": ["a"]}


WORDS = st.sampled_from(
    [
        *("state", "data", "result", "event_type", "details", "action", "arguments", "failures"),
        *("task_cls", "task_name", "task_version", "version", "causes", "exc_args", "success"),
        *("exception_str", "traceback_str", "exc_type_names", "failure", "execute", "revert"),
        *("RUNNING", "SUCCESS", "FAILURE", "EVENT", "Exception", "topic", "tasks", "$wbe"),
        *("asked", "cancel", "do", "drain"),
    ]
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=25,
)
BODIES: dict[str, Any] = {
    "execute": GOOD_REQUEST,
    "revert-after-success": {
        **GOOD_REQUEST,
        "action": "revert",
        "failures": {"a": GOOD_FAILURE},
        "result": ["success", 1],
    },
    "revert-after-failure": {
        **GOOD_REQUEST,
        "task_version": "1.0",
        "result": ["failure", GOOD_FAILURE],
    },
    "running": {"state": "RUNNING", "data": {}},
    "success": {"state": "SUCCESS", "data": {"result": {"a": [1]}}},
    "failure": {
        "state": "FAILURE",
        "data": {
            "result": {
                **GOOD_FAILURE,
                "causes": [GOOD_FAILURE],
                "has_implicit_cause": True,
                "members": [{**GOOD_FAILURE, "notes": ["n"]}],
                "exc_attributes": {"errno": 2, "filename": {"bytes": "eA=="}},
            }
        },
    },
    "event": {"state": "EVENT", "data": {"event_type": "e", "details": {"a": 1}}},
    "notify": {"topic": "t", "tasks": ["a", "b"]},
    "query": {"asked": [["id", 1], ["other", 2**53]]},
    "cancel": {"cancel": [["id", 0]]},
    "control": {"do": "suspend"},
    "failure-record": {**GOOD_FAILURE, "exc_args": [1], "causes": [GOOD_FAILURE]},
}


def deep(levels: int) -> Any:
    tree: Any = []
    for _ in range(levels):
        tree = [tree]
    return tree


@st.composite
def mutations(draw: st.DrawFn) -> Any:
    """A valid body with one value replaced, removed or added."""
    body = json.loads(json.dumps(draw(st.sampled_from(list(BODIES.values())))))
    node: Any = body
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = draw(st.sampled_from(list(keys)))
        if isinstance(node[key], dict | list) and node[key] and draw(st.booleans()):
            node = node[key]
            continue
        change = draw(st.sampled_from(("replace", "remove", "add")))
        if change == "remove":
            del node[key]
        elif change == "replace":
            node[key] = draw(TREES)
        elif isinstance(node, dict):
            node[draw(WORDS)] = draw(TREES)
        else:
            node.append(draw(TREES))
        return body


@given(TREES | mutations())
@example({"state": "FAILURE", "data": {"result": {**GOOD_FAILURE, "causes": [GOOD_FAILURE] * 3}}})
def test_any_body_is_readable_or_raises_invalid_format(data: Any) -> None:
    """Each valid body can be read."""
    for check, read in (
        (pr.Request.validate, pr.Request.from_dict),
        (pr.Response.validate, lambda body: _read_response(body)),
        (pr.Notify.validate, None),
        (lambda body: pr.Notify.validate(body, response=True), None),
    ):
        try:
            check(data)
        except exc.InvalidFormat as error:
            assert len(str(error)) < 1000
        else:
            if read is not None:
                read(data)


HUGE_BODIES = {
    "deep-body": lambda: deep(5000),
    "deep-state": lambda: {"state": deep(5000), "data": {}},
    "huge-action": lambda: {**GOOD_REQUEST, "action": 10**5000},
    "deep-result": lambda: {**GOOD_REQUEST, "result": ["failure", deep(5000)]},
    "huge-version": lambda: {
        "state": "FAILURE",
        "data": {"result": {**GOOD_FAILURE, "version": 10**5000}},
    },
}


@pytest.mark.parametrize("make", HUGE_BODIES.values(), ids=HUGE_BODIES)
def test_body_too_deep_or_large_to_print_is_rejected(make: Any) -> None:
    for check in (pr.Request.validate, pr.Response.validate):
        with pytest.raises(exc.InvalidFormat):
            check(make())


def _read_response(body: Any) -> None:
    if body["state"] == pr.FAILURE:
        Failure.from_dict(body["data"]["result"])


def _changes(body: Any) -> Iterator[Any]:
    """Yield each variant of `body` with one value changed, removed or added."""
    whole = json.dumps(body)
    for path in _paths(body):
        for value in (None, True, 0, -1, 1.5, "", "x", [], {}, [1], ["x"], {"x": 1}):
            yield _changed(whole, path, lambda node, key, value=value: node.update({key: value}))
        yield _changed(whole, path, lambda node, key: node.pop(key))
        for word in ("x", "result", "details", "failures", "version", "causes", "exc_args"):
            for value in (None, 1, -1, "x", [], {}):
                more = {word: value}
                yield _changed(whole, path, lambda node, key, more=more: node.update(more))


def _paths(node: Any, *before: str) -> Iterator[tuple[str, ...]]:
    for key, inner in node.items() if isinstance(node, dict) else ():
        yield (*before, key)
        yield from _paths(inner, *before, key)


def _changed(whole: str, path: tuple[str, ...], change: Callable[[Any, str], object]) -> Any:
    body = json.loads(whole)
    node = body
    for key in path[:-1]:
        node = node[key]
    change(node, path[-1])
    return body


#: Schema of one level of a failure, with any causes.
ONE_LEVEL = {**Failure.SCHEMA["definitions"]["cause"], "definitions": {"cause": {}}}
SCHEMAS = [
    (Schema(schema, "message"), jsonschema.Draft4Validator(schema))
    for schema in (
        _message_schemas.QUESTION,
        _message_schemas.ANSWER,
        _message_schemas.REQUEST,
        _message_schemas.RESPONSE,
        _message_schemas.ASK,
        _message_schemas.CANCEL,
        _message_schemas.CONTROL,
        ONE_LEVEL,
    )
]


def fits(schema: Schema, data: Any) -> bool:
    try:
        schema.check(data)
    except exc.InvalidFormat:
        return False
    return True


@given(TREES | mutations())
def test_compiled_schema_agrees_with_jsonschema(data: Any) -> None:
    for compiled, plain in SCHEMAS:
        assert fits(compiled, data) is plain.is_valid(data)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_compiled_schema_agrees_with_jsonschema_on_each_small_change(body: Any) -> None:
    for data in _changes(body):
        for compiled, plain in SCHEMAS:
            assert fits(compiled, data) is plain.is_valid(data), data


def test_schemas_list_all_states_and_actions() -> None:
    assert set(pr.Response.SCHEMA["properties"]["state"]["enum"]) == {*STATES, pr.EVENT}
    assert pr.Request.SCHEMA["properties"]["action"]["enum"] == [pr.EXECUTE, pr.REVERT]
