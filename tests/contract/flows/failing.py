"""Flows that fail and are reverted as far as possible."""

from __future__ import annotations

from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import FOLDER, fails, flow
from wbengine import exceptions, retry, states
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

#: Kinds that run tasks on the engine's host, and kinds with workers.
HERE = ("serial", "threads", "processes", "kept")
REMOTE = ("memory", "filesystem", "postgresql", "mysql")


@flow(
    ">a >b >c !a +b !c <a <b <c -a -b -c", order=[],
    raises={"a": (ValueError, "a fails"), "c": (ValueError, "c fails")},
)  # fmt: skip
def several_failures_at_once() -> Any:
    """All failures are raised in one exception."""
    return unordered_flow.Flow("f").add(tasks.BoomOnly("a"), tasks.Quiet("b"), tasks.BoomOnly("c"))


@flow(
    ">a +a >b +b >c +c >d !d <d -d <c #c",
    ends="FAILURE",
    raises={"d": (ValueError, "d fails"), "c": (KeyError, "c stays")},
    results={"a": "a"},
    told={"d": ["ValueError(d fails) | d"]},
)
def failing_revert_fails_flow() -> Any:
    """Earlier tasks stay as they are, because the state they would be reverted from is unknown."""
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides="a"), tasks.Step("b"), tasks.RevertFails("c"), tasks.Boom("d")
    )


@flow(
    ">a +a >b !b <b #b",
    ends="FAILURE",
    raises={"b": (KeyError, "b stays")},
    results={"a": "a"},
    check=lambda engine: _both_failures_are_kept(engine),
)
def task_fails_to_execute_and_to_revert() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a", provides="a"), tasks.FailsTwice("b"))


def _both_failures_are_kept(engine: base.Engine) -> None:
    storage = engine.storage
    assert storage.get_execute_failures()["b"].check(ValueError)
    assert storage.get_revert_failures()["b"].check(KeyError)


@flow(
    ">a >b >c >d +a +b !c +d <a <b <c <d -a -b -c #d", order=[],
    store={"folder": FOLDER, "others": 3},
    ends="FAILURE",
    raises={"c": (ValueError, "c fails"), "d": (KeyError, "d stays")},
)  # fmt: skip
def one_of_several_reverts_fails() -> Any:
    """Concurrent reversions finish."""
    return unordered_flow.Flow("f").add(
        tasks.Marks("a"), tasks.Marks("b"), tasks.MarksBoom("c"), tasks.StaysAfter("d")
    )


@flow(
    ">a +a >b !b <b -b <a -a",
    raises={"b": (tasks.Trouble, "deep trouble")},
    told={
        "a": [
            [
                ["tests.contract.flows.tasks.Trouble", "Exception"],
                "('deep trouble', 7)",
                ["deep trouble", 7],
                [["KeyError", "LookupError", "Exception"]],
                True,
            ]
        ],
        "b": ["tests.contract.flows.tasks.Trouble(('deep trouble', 7)) | b"],
    },
    check=lambda engine: _all_that_is_known_of_trouble(engine),
)
def failure_preserves_type_arguments_causes_and_traceback() -> Any:
    """On every kind of engine, and wherever the failure is read."""
    return linear_flow.Flow("f").add(tasks.LooksBack("a"), tasks.Troubled("b"))


def _all_that_is_known_of_trouble(engine: base.Engine) -> None:
    failure = engine.storage.get_failures()["b"]
    assert list(failure) == ["tests.contract.flows.tasks.Trouble", "Exception"]
    assert failure.exception_str == "('deep trouble', 7)"
    assert failure.exception_args == ("deep trouble", 7)
    assert [cause.exception_str for cause in failure.causes] == ["'nothing'"]
    assert "in execute" in failure.traceback_str and "raise Trouble" in failure.traceback_str
    assert failure == engine.storage.get("b")


@flow(
    ">b !b <b -b",
    raises={"b": (ExceptionGroup, "rows (2 sub-exceptions)")},
    told={"b": ["ExceptionGroup(rows (2 sub-exceptions)) | b"]},
    check=lambda engine: _all_that_is_known_of_group(engine),
)
def failure_preserves_members_notes_and_attributes() -> Any:
    return linear_flow.Flow("f").add(tasks.Grouped("b"))


def _all_that_is_known_of_group(engine: base.Engine) -> None:
    failure = engine.storage.get_failures()["b"]
    lost, more = failure.members
    assert lost.notes == ("of disk 3",) and lost.check(FileNotFoundError)
    assert [cause.exception_str for cause in lost.causes] == ["'nothing'"]
    assert "raise KeyError" in lost.causes[0].traceback_str
    assert [str(member) for member in more.members] == ["Failure: ValueError: x"]
    found: list[Any] = []
    try:
        failure.reraise()
    except* OSError as group:
        found.extend(group.exceptions)
    except* ValueError:
        pass
    assert [error.filename for error in found] == ["file"]


@flow(
    ">a +a >b !b <b -b <a -a",
    raises={"b": (SystemExit, "3")},
    told={"a": ["a | b"], "b": ["SystemExit(3) | b"]},
    kinds=REMOTE,
)
def sys_exit_on_worker_fails_task() -> Any:
    return linear_flow.Flow("f").add(tasks.Step("a"), tasks.Exits("b"))


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"who": "you"},
    raises={"b": (ValueError, "you is spoilt")},
    told={"a": ["hello you | b"]},
)
def revert_of_failed_function_is_not_called() -> Any:
    return linear_flow.Flow("f").add(tasks.greet("a"), tasks.spoil("b"))


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"who": "you"},
    raises={"b": (ValueError, "you is spoilt")},
    told={"a": ["hello you | b"]},
)
def revert_of_failed_coroutine_function_is_not_called() -> Any:
    return linear_flow.Flow("f").add(tasks.greet("a"), tasks.wait_and_spoil("b"))


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"who": "you"},
    raises={"b": (ValueError, "half of you")},
    told={"a": ["hello you | b"], "b": ["ValueError(half of you) | b"]},
)
def revert_of_failed_function_is_called_with_failed_option() -> Any:
    return linear_flow.Flow("f").add(tasks.greet("a"), tasks.half_do("b"))


def _ended_by_the_task(engine: base.Engine) -> None:
    """Run twice: the next run starts with the same task."""
    for _ in range(2):
        try:
            engine.run()
        except SystemExit as error:
            assert error.code == 3
        else:
            raise AssertionError("no SystemExit")


@flow(
    ">a +a >r +r >b >b",
    drive=_ended_by_the_task,
    ends=states.SUSPENDED,
    flow="RUNNING SUSPENDING SUSPENDED RUNNING SUSPENDING SUSPENDED",
    results={"turn": 1},
    history={"r": [(1, "")]},
    kinds=HERE,
)
def sys_exit_on_engine_host_suspends_flow() -> Any:
    """No retry is called, and nothing is reverted."""
    again = linear_flow.Flow("g", retry=retry.Times(3, "r", "turn")).add(tasks.Exits("b"))
    return linear_flow.Flow("f").add(tasks.Step("a"), again)


def _hooks(*names: str) -> list[Any]:
    return [("hook", {"name": name}) for name in names]


_FORWARD = ["pre_execute", "execute", "post_execute"]
_BACK = ["pre_revert", "revert", "post_revert"]


def _progress(value: float) -> tuple[str, Any]:
    return ("update_progress", {"progress": value})


_hooked = flow(
    ">a +a >b !b <b -b <a -a",
    raises={"b": (ValueError, "b fails")},
    told={"a": ["a | b"], "b": ["ValueError(b fails) | b"]},
    heard={
        "a": [
            _progress(0.0), *_hooks(*_FORWARD), _progress(1.0),
            _progress(0.0), *_hooks(*_BACK), _progress(1.0),
        ]
    },
)  # fmt: skip


@_hooked
def hooks_are_called_before_and_after_bodies() -> Any:
    return linear_flow.Flow("f").add(tasks.Hooked("a"), tasks.Boom("b"))


@_hooked
def hooks_that_are_coroutines_are_awaited() -> Any:
    return linear_flow.Flow("f").add(tasks.AwaitsHooks("a"), tasks.Boom("b"))


def _failing_hook(name: str, *hooks: str) -> dict[str, Any]:
    return {
        "raises": {"a": (tasks.Trouble, f"{name} fails")},
        "told": {"a": [f"tests.contract.flows.tasks.Trouble({name} fails) | a"]},
        "heard": {
            "a": [
                _progress(0.0), *_hooks(*hooks),
                _progress(0.0), *_hooks(*_BACK), _progress(1.0),
            ]
        },
    }  # fmt: skip


@flow(">a !a <a -a", **_failing_hook("pre_execute", "pre_execute", "post_execute"))
def failing_pre_execute_hook() -> Any:
    """The body is skipped, but the post hook is called."""
    return linear_flow.Flow("f").add(tasks.PreFails("a"))


@flow(">a !a <a -a", **_failing_hook("post_execute", *_FORWARD))
def failing_post_execute_hook() -> Any:
    return linear_flow.Flow("f").add(tasks.PostFails("a"))


@flow(">a !a <a -a", **_failing_hook("execute", *_FORWARD))
def failure_of_body_shadows_failure_of_post_hook() -> Any:
    return linear_flow.Flow("f").add(tasks.BothFail("a"))


@flow(
    ">a +a >b !b <b -b <a #a",
    ends="FAILURE",
    raises={"a": (tasks.Trouble, "pre_revert fails"), "b": (ValueError, "b fails")},
    told={"b": ["ValueError(b fails) | b"]},
    heard={
        "a": [
            _progress(0.0), *_hooks(*_FORWARD), _progress(1.0),
            _progress(0.0), *_hooks("pre_revert", "post_revert"),
        ]
    },
)  # fmt: skip
def failing_pre_revert_hook() -> Any:
    return linear_flow.Flow("f").add(tasks.PreRevertFails("a"), tasks.Boom("b"))


@flow(
    ">a +a >b !b <b -b <a #a",
    ends="FAILURE",
    raises={"a": (tasks.Trouble, "post_revert fails"), "b": (ValueError, "b fails")},
    told={"b": ["ValueError(b fails) | b"]},
    heard={
        "a": [
            _progress(0.0), *_hooks(*_FORWARD), _progress(1.0), _progress(0.0), *_hooks(*_BACK),
        ]
    },
)  # fmt: skip
def failing_post_revert_hook() -> Any:
    return linear_flow.Flow("f").add(tasks.PostRevertFails("a"), tasks.Boom("b"))


def _progress_is_kept(engine: base.Engine) -> None:
    assert engine.storage.get_task_progress("a") == 1.0


@flow(
    ">a +a",
    heard={
        "a": [
            _progress(0.0), _progress(0.25), ("counted", {"number": 1, "of": (1, 2)}),
            _progress(0.5), _progress(1.0),
        ]
    },
    check=_progress_is_kept,
)  # fmt: skip
def progress_and_custom_events() -> Any:
    return linear_flow.Flow("f").add(tasks.Progressing("a"))


@flow(
    ">a !a",
    options={"never_resolve": True},
    ends="FAILURE",
    raises={"a": (ValueError, "only half")},
    heard={"a": [_progress(0.0), _progress(0.5)]},
    check=lambda engine: _half_way(engine),
)
def progress_of_failed_task_is_preserved() -> Any:
    return linear_flow.Flow("f").add(tasks.HalfWay("a"))


def _half_way(engine: base.Engine) -> None:
    assert engine.storage.get_task_progress("a") == 0.5


@flow(
    ">a +a >b !b <b -b <a -a",
    raises={"b": (exceptions.NotFound, "nowhere")},
    told={"a": ["a | b"]},
)
def argument_missing_from_result() -> Any:
    """The result of its only provider does not contain the value."""
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides={"nowhere"}), tasks.Plain("b", rebind=["nowhere"])
    )


@flow(">x +x >a !a <a -a <x -x", **fails("a", "x"))
def empty_flow_does_not_stop_reversion() -> Any:
    x, a = tasks.Step("x"), tasks.Boom("a")
    empty = linear_flow.Flow("empty")
    return graph_flow.Flow("f").add(x, empty, a).link(x, empty).link(empty, a)


@flow(
    ">o +o >i +i >a +a >b !b <b -b <a -a <i -i <o -o", **fails("b", "a"), history={"o": [], "i": []}
)
def nested_failures_revert_level_by_level() -> Any:
    inner = linear_flow.Flow("in", retry.AlwaysRevert("i")).add(tasks.Step("a"), tasks.Boom("b"))
    return linear_flow.Flow("f", retry.AlwaysRevertAll("o")).add(
        unordered_flow.Flow("u").add(graph_flow.Flow("g").add(inner))
    )
