"""Results in the form that Celery's own client reads: asked of itself, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wbengine import exceptions, invocation, limits, running
from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol import errors, results, serializers
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.steps import Missed
from wbengine.interop.celery.worker import calls, mapping
from wbengine.types.failure import Failure

from . import errands

ROOT = Path(__file__).parents[3]
NOW = 1_700_000_000.25
TASKS = mapping.Tasks([errands])


def message_of(id: str, **fields: Any) -> TaskMessage:
    return TaskMessage("proj.add", id, **fields)


def failure_of_task(kind: str) -> Failure:
    message = TaskMessage(f"{errands.__name__}.fail", "x", (kind,))
    endpoint = TASKS.find(message.task)
    assert endpoint is not None
    who = running.Request("x")
    outcome = calls.run(endpoint, message, who, None, None, lambda *_: None)
    assert isinstance(outcome.value, Failure)
    return outcome.value


def lost_its_exception(failure: Failure) -> Failure:
    """As it comes out of a process from where the exception itself could not be sent."""
    return Failure.from_dict(failure.to_dict())


def raised(error: BaseException) -> Failure:
    try:
        raise error
    except BaseException:
        return Failure()


CASES: dict[str, tuple[Failure, str, str, list[str]]] = {
    # name -> failure, and how its client sees it: type, module, repr of each argument
    "value": (failure_of_task("value"), "ValueError", "builtins", ["'no such value'", "5"]),
    "broken": (failure_of_task("broken"), "Broken", errands.__name__, ["'it broke'", "7"]),
    "inner": (failure_of_task("inner"), "Outer.Inner", errands.__name__, ["'inside'"]),
    "object": (failure_of_task("object"), "ValueError", "builtins", ["'<object object at"]),
    "exit": (
        failure_of_task("exit"),
        "WorkerLostError",
        "billiard.exceptions",
        ["'Worker exited prematurely: SystemExit: 3'"],
    ),
    "local": (failure_of_task("local"), "fail.<locals>.Local", "celery.exceptions", ["'nobody"]),
    "value, bare": (
        lost_its_exception(failure_of_task("value")),
        "ValueError",
        "builtins",
        ["'no such value'", "5"],
    ),
    "broken, bare": (
        lost_its_exception(failure_of_task("broken")),
        "Broken",
        errands.__name__,
        ["'it broke'", "7"],
    ),
    "inner, bare": (
        lost_its_exception(failure_of_task("inner")),
        "Outer.Inner",
        errands.__name__,
        ["'inside'"],
    ),
    "soft": (
        raised(exceptions.SoftTimeLimitExceeded()),
        "SoftTimeLimitExceeded",
        "billiard.exceptions",
        [],
    ),
    "hard": (
        raised(exceptions.TimeLimitExceeded()),
        "TimeLimitExceeded",
        "billiard.exceptions",
        ["3.0"],
    ),
    "lost": (
        raised(exceptions.WorkerLost("it went away")),
        "WorkerLostError",
        "billiard.exceptions",
        ["'it went away'"],
    ),
    "retries": (
        raised(retrying.MaxRetriesExceeded("too often")),
        "MaxRetriesExceededError",
        "celery.exceptions",
        ["'too often'"],
    ),
    "ours": (
        raised(exceptions.NotFound("not here")),
        "NotFound",
        "wbengine.exceptions",
        ["'not here'"],
    ),
    "assert": (raised(AssertionError()), "AssertionError", "builtins", []),
    "long": (raised(ValueError("x" * 200_000)), "ValueError", "builtins", ["'" + "x" * 65_536]),
    "large": (raised(ValueError(1 << 70)), "ValueError", "builtins", ["1180591620717411303424"]),
    "huge": (raised(ValueError(1 << 70_000)), "ValueError", "builtins", ["'<a long int>'"]),
    "surrogate": (raised(ValueError("\udcff")), "ValueError", "builtins", ["'\\\\udcff'"]),
    "os": (
        raised(FileNotFoundError(2, "No such file", "x")),
        "FileNotFoundError",
        "builtins",
        ["2", "'No such file'"],
    ),
}

DESCRIBED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "unknown": (
        errors.describe("NotRegistered", "celery.exceptions", "proj.nowhere"),
        "NotRegistered",
        "FAILURE",
        "'proj.nowhere'",
    ),
    "revoked": (
        errors.describe("TaskRevokedError", "celery.exceptions", "revoked"),
        "TaskRevokedError",
        "REVOKED",
        "revoked",
    ),
    "chord": (
        errors.describe("ChordError", "celery.exceptions", "Dependency 1 raised ValueError()"),
        "ChordError",
        "FAILURE",
        "Dependency 1 raised ValueError()",
    ),
    "refused": (
        errors.describe("ContentDisallowed", "kombu.exceptions", "no pickle here"),
        "ContentDisallowed",
        "FAILURE",
        "no pickle here",
    ),
}


def made() -> list[results.Result]:
    found = [
        results.of_failure(message_of(name), failure, NOW, "json", limit=limits.TimeLimit(1.0, 3.0))
        for name, (failure, *_) in CASES.items()
    ]
    found += [
        results.of_error(message_of(name), error, NOW, "json", state)
        for name, (error, _, state, _) in DESCRIBED.items()
    ]
    children = [(("child", None), None), (("group", ("p", None)), [(("member", None), None)])]
    found.append(results.of_success(message_of("done"), {"a": [1, None]}, children, NOW, "json"))
    why = failure_of_task("broken")
    found.append(results.of_state(message_of("again"), results.RETRY, errors.told(why), "json"))
    found.append(results.of_state(message_of("begun"), results.STARTED, {"pid": 5}, "json"))
    found.append(results.of_failure(message_of("cause"), failure_of_task("cause"), NOW, "json"))
    return found


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What Celery's client makes of each of these results, by id."""
    results_made = made()
    told = [[one.id, one.encoded[2].decode()] for one in results_made]
    child = subprocess.run(
        [sys.executable, "-m", "tests.unit.celery.reader"],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=110,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    answers = json.loads(child.stdout)
    return {one.id: answer for one, answer in zip(results_made, answers, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_a_client_raises_what_the_task_raised(seen: dict[str, Any], name: str) -> None:
    failure, kind, module, arguments = CASES[name]
    answer = seen[name]
    assert answer["state"] == "FAILURE"
    assert (answer["type"], answer["module"]) == (kind, module)
    assert len(answer["args"]) == len(arguments)
    for told, expected in zip(answer["args"], arguments, strict=True):
        assert told.startswith(expected)
    assert answer["done"] == "2023-11-14 22:13:20.250000+00:00"
    lines = answer["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any(line.startswith("  File ") for line in lines)
    if failure.exception_str and "\n" not in failure.exception_str:
        assert lines[-1].endswith(f": {failure.exception_str}") or name in ("surrogate", "long")


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_client_is_told_what_was_not_run(seen: dict[str, Any], name: str) -> None:
    _, kind, state, text = DESCRIBED[name]
    answer = seen[name]
    assert (answer["type"], answer["state"], answer["str"]) == (kind, state, text)
    assert answer["module"] in ("celery.exceptions", "kombu.exceptions")


def test_a_result_with_children(seen: dict[str, Any]) -> None:
    answer = seen["done"]
    assert (answer["state"], answer["value"]) == ("SUCCESS", {"a": [1, None]})
    assert answer["children"] == ["child", "group"]
    assert answer["tuples"][1] == [["group", ["p", None]], [[["member", None], None]]] or (
        answer["tuples"][1] == [["group", [["p", None], None]], [[["member", None], None]]]
    )
    assert answer["traceback"] is None


def test_states_that_are_no_end(seen: dict[str, Any]) -> None:
    for name, state in (("again", "RETRY"), ("begun", "STARTED")):
        assert seen[name]["state"] == state
        assert seen[name]["type"] == "TimeoutError"
        assert seen[name]["done"] == "None"


def test_the_causes_are_in_the_traceback(seen: dict[str, Any]) -> None:
    text = seen["cause"]["traceback"]
    first, second = text.split(
        "\nThe above exception was the direct cause of the following exception:\n\n"
    )
    assert first.startswith("Traceback (most recent call last):\n")
    assert first.endswith("KeyError: 'first'\n")
    assert second.endswith("ValueError: second\n")


# The form itself. ---------------------------------------------------------------------------------


def test_the_mapping_has_the_fields_of_the_reference() -> None:
    message = message_of("x", group="g", parent_id="p", reply_to="q", correlation_id="c")
    result = results.of_success(message, 4, [], NOW, "json")
    assert result.meta() == {
        "status": "SUCCESS",
        "result": 4,
        "traceback": None,
        "children": [],
        "date_done": "2023-11-14T22:13:20.250000+00:00",
        "group_id": "g",
        "parent_id": "p",
        "task_id": "x",
    }
    assert (result.reply_to, result.correlation_id) == ("q", "c")
    alone = results.of_success(message_of("x"), 4, [], NOW, "json")
    assert "group_id" not in alone.meta() and "parent_id" not in alone.meta()
    assert alone.correlation_id == "x"


def test_what_it_tells_of_its_task_can_be_written() -> None:
    """Arguments that cannot be are told as a text; stamps are fields of their own."""
    stamps = {"batch": "seven", "color": "blue"}
    given = message_of("x", args=(1, b"\xff" * 3), kwargs={"a": {2}}, retries=1)
    given.stamps, given.stamped_headers = stamps, ["batch", "gone"]
    found = results.about(given, "w@h", "q", "json")
    assert found["name"] == "proj.add"
    assert found["kwargs"] == "{'a': {2}}"
    assert (found["worker"], found["queue"], found["retries"]) == ("w@h", "q", 1)
    assert (found["stamped_headers"], found["batch"]) == (["batch", "gone"], "seven")
    assert "color" not in found
    serializers.dump(found, "json")
    given.args = (1, object)
    assert results.about(given, "w@h", "q", "json")["args"].startswith("[1, <class 'object'>")


def test_it_is_written_once_and_in_its_serializer() -> None:
    result = results.of_success(message_of("x"), {"a": b"\xff"}, [], NOW, "msgpack")
    kind, encoding, body = result.encoded
    assert (kind, encoding) == ("application/x-msgpack", "binary")
    accepted = serializers.Accepted(("msgpack",))
    assert accepted.load(body, kind, encoding)["result"] == {"a": b"\xff"}
    assert result.encoded is result.encoded
    with pytest.raises(exceptions.NotEncodable):
        _ = results.of_success(message_of("x"), object(), [], NOW, "json").encoded


@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack", "pickle"])
@pytest.mark.parametrize("name", CASES)
def test_every_failure_can_be_written(name: str, serializer: str) -> None:
    result = results.of_failure(message_of("x"), CASES[name][0], NOW, serializer)
    assert len(result.encoded[2]) > 50


def test_what_never_runs_fails_like_that_before_it() -> None:
    failed = results.of_failure(
        message_of("x", reply_to="q", group="g", parent_id="p"),
        failure_of_task("value"),
        NOW,
        "json",
    )
    chord = {"task": "proj.body"}
    assert b'"task_id": "x"' in failed.encoded[2]
    fallen = results.of_missed(Missed("later", "h", 3, chord), failed)
    assert fallen.result is not None and fallen.chord is not None
    assert b'"task_id": "later"' in fallen.result.encoded[2]
    meta = fallen.result.meta()
    assert (meta["task_id"], meta["status"], meta["group_id"]) == ("later", "FAILURE", "h")
    assert meta["result"] == failed.value and "parent_id" not in meta
    assert fallen.result.reply_to is None  # nobody reads it there
    part = fallen.chord
    assert (part.group, part.index, part.id, part.state) == ("h", 3, "later", "FAILURE")
    assert part.body is chord
    assert results.of_missed(Missed("later"), failed).chord is None


def test_only_parts_of_chords_are_counted() -> None:
    chord = {"task": "proj.body"}
    result = results.of_success(message_of("x"), 1, [], NOW, "json")
    assert results.part_of(message_of("x", group="g"), result) is None
    part = results.part_of(message_of("x", group="g", group_index=2, chord=chord), result)
    assert part == results.ChordPart("g", 2, "x", "SUCCESS", 1, chord)


# Back again. --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["value", "broken", "inner", "cause"])
def test_failures_survive_the_way_there_and_back(name: str) -> None:
    failure = failure_of_task(name)
    meta = json.loads(results.of_failure(message_of("x"), failure, NOW, "json").encoded[2])
    found = errors.failure_of(meta)
    assert tuple(found) == tuple(failure)
    assert found.exception_args == failure.exception_args
    if name != "cause":
        assert found.exception_str == failure.exception_str
        assert found.traceback_str == failure.traceback_str.rstrip("\n")
    assert "Traceback (most recent call last):" in found.pformat(traceback=True)


@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        ("WorkerLostError", exceptions.WorkerLost),
        ("TimeLimitExceeded", exceptions.TimeLimitExceeded),
        ("SoftTimeLimitExceeded", exceptions.SoftTimeLimitExceeded),
    ],
)
def test_what_has_the_same_meaning_is_ours(kind: str, ours: type[Exception]) -> None:
    told = errors.describe(kind, "billiard.exceptions", "text")
    found = errors.failure_of({"result": told, "traceback": None})
    assert next(iter(found)) == f"billiard.exceptions.{kind}"
    assert found.check(ours) is ours
    assert found.exception_str == "text"


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"result": None},
        {"result": "text", "traceback": 5},
        {"result": []},
        {"result": {"exc_type": 5, "exc_message": {"a": 1}, "exc_module": []}},
        {"result": {"exc_type": "", "exc_module": "os"}},
        {"result": {"exc_type": "system", "exc_module": "os", "exc_message": ["rm -rf"]}},
        {"result": {"exc_type": "SystemExit", "exc_module": "builtins", "exc_message": [1]}},
        {"result": {"exc_type": "a.b.c", "exc_module": "no.such", "exc_message": [[1], "x"]}},
        {"result": ValueError("from a pickle"), "traceback": "text"},
    ],
)
def test_whatever_is_told_is_a_failure(meta: dict[str, Any]) -> None:
    before = set(sys.modules)
    found = errors.failure_of(meta)
    assert all(isinstance(part, str | int | None) for part in found.exception_args)
    assert found.pformat(traceback=True)
    Failure.validate(found.to_dict())
    with pytest.raises(Exception):  # noqa: B017  (whatever it is, it ends nobody's process)
        found.reraise()
    assert set(sys.modules) == before


def test_the_repr_of_an_exception_is_short_and_always_there() -> None:
    class Rude(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

    assert errors.shown(failure_of_task("value")) == "ValueError('no such value', 5)"
    assert errors.shown(failure_of_task("inner")) == "Inner('inside')"
    assert errors.shown(raised(AssertionError())) == "AssertionError()"
    assert errors.shown(raised(Rude(Rude()))).startswith("Rude(")
    assert len(errors.shown(raised(ValueError("x" * 10_000)))) < 600
    assert invocation.LOCAL == "local"
