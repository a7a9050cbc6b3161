"""Maps: arguments, failures, listeners, suspension and reset."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import FOLDER, flow
from tests.contract.flows.steering import suspend_at
from wbengine import exceptions, retry, states, task
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

LINE = linear_flow.Flow
ONCE = "RUNNING SUSPENDING SUSPENDED RUNNING"

#: The results of reversions are in other cases.
mapped = functools.partial(flow, results=None, told=None, history=None)


def _map(inner: Any, name: str = "m", **options: Any) -> Any:
    return task.Map(inner, **{"name": name, "provides": name, **options})


def _node(engine: base.Engine, name: str = "m") -> Any:
    assert engine.compilation is not None
    return next(node for node in engine.compilation.nodes if getattr(node, "name", "") == name)


def _items(engine: base.Engine) -> Any:
    return engine.storage.record("m").items


def suspend_at_progress(progress: float, state: str = states.RUNNING) -> Callable[..., None]:
    """Return a function that suspends a flow while `m` has this state and progress."""

    def drive(engine: base.Engine) -> None:
        def on_progress(_: str, details: dict[str, Any]) -> None:
            if details["progress"] >= progress and engine.storage.get_atom_state("m") == state:
                _node(engine).notifier.deregister("update_progress", on_progress)
                engine.suspend()

        _node(engine).notifier.register("update_progress", on_progress)
        engine.run()
        assert engine.storage.get_flow_state() == states.SUSPENDED
        engine.run()

    return drive


def _notes(engine: base.Engine) -> list[str]:
    return Path(engine.storage.fetch("folder"), "notes").read_text(encoding="ascii").split()


def _each_item_ran_once(engine: base.Engine) -> None:
    assert sorted(_notes(engine)) == sorted(f"+{n}" for n in range(9))
    record = engine.storage.record("m")
    assert record.attempt == 1
    assert sorted(item.order for item in record.items or ()) == list(range(1, 10))


_NINE: dict[str, Any] = {
    "store": {"items": list(range(9)), "folder": FOLDER},
    "results": {"m": list(range(9))},
    "check": _each_item_ran_once,
}


# -- arguments and results


@mapped(
    ">t +t >a +a >b +b",
    store={"items": [1, 2], "offset": 5}, results={"three": 3, "a": [8, 11], "b": [11, 21]},
)  # fmt: skip
def map_binds_other_arguments_as_any_task() -> Any:
    return LINE("f").add(
        tasks.Give("t", provides="three", inject={"value": 3}),
        _map(tasks.Scales("s", rebind={"factor": "three"}), "a"),
        _map(tasks.Scales("s", inject={"factor": 10, "offset": 1}), "b"),
    )


@mapped(">m +m", store={"items": [1, 2, 3]}, results={"m": [10, 20, 30]})
def map_of_coroutines() -> Any:
    return LINE("f").add(_map(tasks.tenfold("m"), item="x"))


@mapped(
    ">m1 >m2 >m3 +m3 +m2 +m1",
    order=[], store={"items": list(range(9))},
    results={f"m{limit}": [n * n for n in range(9)] for limit in (1, 2, 3)},
)  # fmt: skip
def several_maps_share_an_executor() -> Any:
    limits = (1, 2, 3)
    maps = (_map(tasks.Squares("s"), f"m{limit}", max_in_flight=limit) for limit in limits)
    return unordered_flow.Flow("f").add(*maps)


# -- failures


def _two_failed(engine: base.Engine) -> None:
    assert engine.storage.fetch("count") == 2


@mapped(">m +m >c +c", store={"items": [1, -2, -4]}, check=_two_failed)
def collected_failures_are_passed_to_next_task() -> Any:
    counts = tasks.CountsFailures("c", provides="count", rebind={"items": "m"})
    return LINE("f").add(_map(tasks.Squares("m"), on_item_failure="collect"), counts)


def _last_item_is_pending(engine: base.Engine) -> None:
    assert [item.state for item in _items(engine)] == [*[states.REVERTED] * 3, states.PENDING]
    assert engine.storage.record("m").attempt == 2


@mapped(
    ">m !m <m -m",
    store={"items": [2, 5, 0, 1]}, raises={"m": (ZeroDivisionError, "")},
    told={"m": [["5.0 | m", "2.0 | m", "ZeroDivisionError(division by zero) | m", None]]},
    check=_last_item_is_pending,
)  # fmt: skip
def failed_item_fails_map_and_reverts_finished_items() -> Any:
    return LINE("f").add(_map(tasks.DividesInto("m"), item="n", max_in_flight=1))


@mapped(
    ">r +r >g +g >m !m <m -m <g -g ?r .g .m >r +r >g +g >m +m",
    results={"n": 2, "items": [2, 2], "m": [2, 2]}, history={"r": [(1, "m:RuntimeError"), (2, "")]},
)  # fmt: skip
def retry_expands_map_again_with_current_list() -> Any:
    tried = LINE("f", retry.Times(2, "r", provides="n")).add(tasks.Grows("g", provides="items"))
    return tried.add(_map(tasks.Until("m"), item="until"))


def _before_expansion(engine: base.Engine) -> None:
    assert _items(engine) is None


def _asks(history: Any) -> bool:
    raise LookupError("who?")


@mapped(
    ">a +a >m !m <m -m <a -a",
    store={"items": [1]}, raises={"m": (LookupError, "who?")}, check=_before_expansion,
)  # fmt: skip
def failing_decider_fails_map_before_it_expands() -> Any:
    a, m = tasks.Step("a"), _map(tasks.Squares("m"))
    return graph_flow.Flow("f").add(a, m).link(a, m, decider=_asks)


@mapped(">m +m ~a", store={"items": [2, 3]})
def decider_receives_results_of_map() -> Any:
    a, m = tasks.Step("a"), _map(tasks.Squares("m"))
    decider = lambda history: history != {"m": [4, 9]}  # noqa: E731
    return graph_flow.Flow("f").add(m, a).link(m, a, decider=decider)


# -- listeners


@mapped(
    ">m +m",
    store={"items": [1, 2, 3, 4]},
    heard={"m": [("update_progress", {"progress": n}) for n in (0.0, 0.25, 0.5, 0.75, 1.0, 1.0)]},
)  # fmt: skip
def listeners_receive_progress_of_map() -> Any:
    return LINE("f").add(_map(tasks.Squares("m"), max_in_flight=1))


_PROGRESS: list[float] = []


def _on_progress(event: str, details: dict[str, Any]) -> None:
    _PROGRESS.append(details["progress"])


def _half_thrice(engine: base.Engine) -> None:
    assert _PROGRESS == [0.5] * 3
    assert engine.storage.get_task_progress("m") == 1.0


@mapped(">m +m", store={"items": [1, 2, 3]}, check=_half_thrice)
def listeners_of_inner_task_receive_progress_of_each_item() -> Any:
    inner = tasks.TellsItem("t")
    _PROGRESS.clear()
    inner.notifier.register("update_progress", _on_progress)
    return LINE("f").add(_map(inner))


# -- suspension and reset


@mapped(">m >m +m", drive=suspend_at_progress(0.4), flow=f"{ONCE} SUCCESS", **_NINE)
def suspended_map_resumes_with_remaining_items() -> Any:
    return LINE("f").add(_map(tasks.Touches("m"), max_in_flight=2))


@mapped(">m .m >m +m", drive=suspend_at("RUNNING m"), flow=f"{ONCE} SUCCESS", **_NINE)
def map_suspended_before_its_first_item_resumes_with_all_items() -> Any:
    return LINE("f").add(_map(tasks.Touches("m"), max_in_flight=1))


def _suspend_at_each_item(engine: base.Engine) -> None:
    seen = {0.0}

    def on_progress(_: str, details: dict[str, Any]) -> None:
        if details["progress"] not in seen:
            seen.add(details["progress"])
            engine.suspend()

    _node(engine).notifier.register("update_progress", on_progress)
    while engine.storage.get_flow_state() != states.SUCCESS:
        engine.run()
    assert len(seen) == 10


@mapped(
    ">m >m >m >m >m >m >m >m >m +m",
    drive=_suspend_at_each_item, kinds=["serial"], **_NINE,
    flow=f"RUNNING {'SUSPENDING SUSPENDED RUNNING ' * 8}SUSPENDING SUCCESS",
)  # fmt: skip
def repeatedly_suspended_map_runs_each_item_once() -> Any:
    return LINE("f").add(_map(tasks.Touches("m"), max_in_flight=1))


def _undone_in_order(engine: base.Engine) -> None:
    assert _notes(engine) == [*(f"+{n}" for n in range(6)), *(f"-{n}" for n in range(5, -1, -1))]
    assert engine.storage.record("m").attempt == 2


_SIX: dict[str, Any] = {
    "store": {"items": list(range(6)), "folder": FOLDER},
    "raises": {"x": (ValueError, "x fails")},
    "check": _undone_in_order,
}


@mapped(
    ">m +m >x !x <x -x <m <m -m",
    drive=suspend_at_progress(0.3, states.REVERTING), flow=f"{ONCE} REVERTED", **_SIX,
)  # fmt: skip
def map_suspended_while_reverting_resumes_reversion() -> Any:
    return LINE("f").add(_map(tasks.Touches("m"), max_in_flight=1), tasks.Boom("x"))


@mapped(
    ">m >m +m >x !x <x -x <m -m",
    drive=suspend_at_progress(0.3), flow=f"{ONCE} REVERTED", **_SIX,
)  # fmt: skip
def suspended_map_is_reverted_with_its_flow() -> Any:
    return LINE("f").add(_map(tasks.Touches("m"), max_in_flight=1), tasks.Boom("x"))


def _reset_with_another_list(engine: base.Engine) -> None:
    engine.run()
    engine.reset()
    assert _items(engine) is None
    engine.storage.inject({"items": [3]})
    engine.run()
    assert (engine.storage.fetch("m"), _items(engine).attempt) == ([9], 2)


@mapped(
    ">m +m .m >m +m",
    store={"items": [1, 2]}, drive=_reset_with_another_list,
    flow="RUNNING SUCCESS PENDING RUNNING SUCCESS",
)  # fmt: skip
def reset_map_expands_again_with_next_attempt() -> Any:
    return LINE("f").add(_map(tasks.Squares("m")))


def _cancel_in_map(engine: base.Engine) -> None:
    def on_progress(_: str, details: dict[str, Any]) -> None:
        if 0.3 < details["progress"] < 0.6:
            engine.cancel()

    _node(engine).notifier.register("update_progress", on_progress)
    engine.run()


def _reverted_all(engine: base.Engine) -> None:
    done = [note for note in _notes(engine) if note[0] == "+"]
    undone = [note for note in _notes(engine) if note[0] == "-"]
    assert 2 <= len(done) < 6
    assert [note[1:] for note in undone] == [note[1:] for note in reversed(done)]


@mapped(
    ">m !m <m -m",
    drive=_cancel_in_map, raises={"m": (exceptions.Cancelled, "")},
    store={"items": list(range(6)), "folder": FOLDER}, check=_reverted_all,
)  # fmt: skip
def cancelled_map_reverts_finished_items() -> Any:
    return LINE("f").add(_map(tasks.Touches("m"), max_in_flight=1))
