"""Flows that wait for start times, sleeps, signals, delays of retries and deadlines.

They run on a manual clock, which advances to the time that an engine waits for.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import FOLDER, flow
from tests.contract.flows.kinds import KEPT, NAMES
from tests.contract.flows.steering import suspend_at
from wbengine import exceptions, retry, states, task
from wbengine.engines import base
from wbengine.patterns import linear_flow, unordered_flow

LINE, WIDE = linear_flow.Flow, unordered_flow.Flow
Act = Callable[[base.Engine], Any]

#: Results and histories of retries are in the cases of other modules.
timed = functools.partial(flow, results=None, told=None, history=None)

_SUSPENDED = "RUNNING SUSPENDING SUSPENDED RUNNING SUCCESS"
#: Workers hold tasks until their start time, by the clock of the worker.
LOCAL = ("serial", KEPT, "threads", "processes")
#: Kinds on which other tasks do not overtake the waiting ones.
ORDERED = ("serial", KEPT)
_BOOM: dict[str, Any] = {"x": (ValueError, "x fails")}


def _with(atom: Any, **options: Any) -> Any:
    for name, value in options.items():
        setattr(atom, name, value)
    return atom


def act_at(deadline: float = 10_000, **actions: Act) -> Act:
    """Return a function that runs an engine and calls actions at the first `RUNNING_name` etc."""

    def drive(engine: base.Engine) -> None:
        left = dict(actions)

        def on_atom(state: str, details: dict[str, Any]) -> None:
            name = details.get("task_name") or details["retry_name"]
            if (action := left.pop(f"{state}_{name}", None)) is not None:
                action(engine)

        engine.atom_notifier.register("*", on_atom)
        engine.run(deadline=deadline)

    return drive


def within(deadline: float) -> Act:
    return lambda engine: engine.run(deadline=deadline)


def suspend_during(seconds: float, act: Act | None = None) -> Act:
    """Return a function that suspends a flow after the seconds, calls `act`, and resumes it."""

    def drive(engine: base.Engine) -> None:
        clock: Any = engine._clock
        end = clock.monotonic() + seconds
        for state in engine.run_iter(timeout=seconds):
            if state == states.WAITING and clock.monotonic() >= end:
                engine.suspend()
        assert engine.storage.get_flow_state() == states.SUSPENDED
        if act is not None:
            act(engine)
        engine.run(deadline=10_000)

    return drive


# -- start times


def _delayed(name: str, eta: Any, **options: Any) -> Any:
    return _with(tasks.Step(name), eta=eta, **options)


@timed(
    ">now >a >b >c >d +now +c +a +d +b",
    order=[], at={"+now": [0], "+a": [50], "+b": [100], "+c": [10], "+d": [50]}, kinds=LOCAL,
)  # fmt: skip
def tasks_start_at_their_own_eta() -> Any:
    etas = {"a": 50, "b": 100, "c": 10, "d": dt.datetime.fromtimestamp(50, dt.UTC)}
    return WIDE("f").add(tasks.Step("now"), *(_delayed(name, eta) for name, eta in etas.items()))


@timed(
    ">m +m",
    store={"items": [1, 2]}, results={"m": [1, 4]}, at={">m": [0], "+m": [50]}, kinds=LOCAL,
)  # fmt: skip
def items_of_map_wait_for_eta() -> Any:
    return LINE("f").add(task.Map(_with(tasks.Squares("m"), eta=50), provides="m"))


@timed(">t !t <t -t", raises={"t": (exceptions.Expired, "'t' expired before it started")})
def expired_task_fails() -> Any:
    return LINE("f").add(_delayed("t", None, expires=0))


@timed(
    ">t !t <t -t",
    raises={"t": (exceptions.Expired, "'t' expired before it started")}, at={"!t": [20]},
    kinds=LOCAL,
)  # fmt: skip
def task_that_expires_before_its_eta_fails() -> Any:
    return LINE("f").add(_delayed("t", 600, expires=20))


@timed(">t !t <t -t", raises={"t": (TypeError, "eta of task 't' must be")})
def invalid_eta_fails_task() -> Any:
    return LINE("f").add(_delayed("t", "soon"))


@timed(">t !t <t -t", raises={"t": (ValueError, "expires of task 't' must be")})
def expires_without_time_zone_fails_task() -> Any:
    return LINE("f").add(_delayed("t", None, expires=dt.datetime(2000, 1, 1)))


@timed(
    ">r >other +r >d >x !x .d <x -x ?r .x >r +r >d >x +x +other +d",
    order=[], takes={"!x": 20}, at={"+d": [70], "+other": [60]}, drive=within(10_000), kinds=LOCAL,
)  # fmt: skip
def eta_of_retried_task_counts_from_its_attempt() -> Any:
    tried = WIDE("tried", retry.Times(2, "r", provides="n"))
    tried.add(_delayed("d", 50, cancel_on_revert=True), tasks.Until("x", inject={"until": 2}))
    return WIDE("f").add(tried, _delayed("other", 60, cancel_on_revert=True))


@timed(">d .d >d +d", drive=suspend_during(30), flow=_SUSPENDED, at={"+d": [50]}, kinds=LOCAL)
def task_suspended_before_its_eta_waits_for_the_rest() -> Any:
    return LINE("f").add(_delayed("d", 50))


def _advance(seconds: float) -> Act:
    def act(engine: base.Engine) -> None:
        clock: Any = engine._clock
        clock.advance(seconds)

    return act


@timed(
    ">d .d >d +d",
    drive=suspend_during(30, _advance(40)), flow=_SUSPENDED, at={"+d": [70]}, kinds=LOCAL,
)  # fmt: skip
def task_whose_eta_passed_during_suspension_starts_at_once() -> Any:
    return LINE("f").add(_delayed("d", 50))


@timed(
    ">d .d >d !d <d -d",
    drive=suspend_during(30, _advance(40)), at={"!d": [70]}, kinds=LOCAL,
    flow="RUNNING SUSPENDING SUSPENDED RUNNING REVERTED",
    raises={"d": (exceptions.Expired, "'d' expired before it started")},
)  # fmt: skip
def time_of_suspension_counts_for_expires() -> Any:
    return LINE("f").add(_delayed("d", 50, expires=60))


@timed(
    ">m .m >m +m",
    store={"items": [1, 2]}, results={"m": [1, 4]}, drive=suspend_during(30), flow=_SUSPENDED,
    at={"+m": [50]}, kinds=LOCAL,
)  # fmt: skip
def items_of_suspended_map_wait_for_the_rest_of_their_eta() -> Any:
    return LINE("f").add(task.Map(_with(tasks.Squares("m"), eta=50), provides="m"))


@timed(
    ">a >d +a .d <a -a",
    drive=act_at(SUCCESS_a=base.Engine.cancel), raises={}, raised=(exceptions.Cancelled, ""),
    kinds=LOCAL,
)  # fmt: skip
def cancelled_flow_starts_no_delayed_task() -> Any:
    return WIDE("f").add(tasks.Step("a"), _delayed("d", 50))


@timed(
    ">d .d",
    drive=within(20), raises={"?": (exceptions.DeadlineExceeded, "")}, at={".d": [20]}, kinds=LOCAL,
)  # fmt: skip
def deadline_ends_wait_for_eta() -> Any:
    return LINE("f").add(_delayed("d", 50))


@timed(">x >d !x <x -x +d <d -d", order=[], raises=_BOOM, at={"-d": [50]}, kinds=LOCAL)
def reversion_waits_for_delayed_task() -> Any:
    return WIDE("f").add(tasks.Boom("x"), _delayed("d", 50))


@timed(">x >d !x .d <x -x", raises=_BOOM, at={"-x": [0]}, kinds=LOCAL)
def reversion_cancels_delayed_task_with_cancel_on_revert() -> Any:
    return WIDE("f").add(tasks.Boom("x"), _delayed("d", 50, cancel_on_revert=True))


# -- sleeps


@timed(">a +a >nap +nap >b +b", at={">nap": [0], "+nap": [3600]})
def flow_continues_after_sleep() -> Any:
    return LINE("f").add(tasks.Step("a"), task.Sleep(3600, name="nap"), tasks.Step("b"))


@timed(
    ">n1 >n2 >n3 >n4 >n5 >n6 >n7 >n8 >a +a +n1 +n2 +n3 +n4 +n5 +n6 +n7 +n8",
    order=[], at={"+a": [0], **{f"+n{number}": [10 * number] for number in range(1, 9)}},
)  # fmt: skip
def sleeps_occupy_no_slots() -> Any:
    naps = (task.Sleep(10 * number, name=f"n{number}") for number in range(1, 9))
    return WIDE("f").add(*naps, tasks.Step("a"))


@timed(">nap >x !x .nap <x -x", raises=_BOOM, order=[], at={"-x": [0]})
def failure_ends_sleep() -> Any:
    return WIDE("f").add(task.Sleep(100, name="nap"), tasks.Boom("x"))


# -- delays of retries


def _tried(name: str, until: int, *more: Any, times: int = 9, **options: Any) -> Any:
    again = retry.Times(times, f"r{name}", provides=f"n{name}", **options)
    tried = tasks.QuietUntil(name, inject={"until": until}, rebind={"n": f"n{name}"})
    return LINE(f"f{name}", again).add(tried, *more)


@timed(
    ">ra +ra >a !a <a -a ?ra .a >ra +ra >a !a <a -a ?ra .a >ra +ra >a !a <a -a ?ra .a >ra +ra "
    ">a +a",
    at={"?ra": [0, 5, 20], ">ra": [0, 5, 20, 40], "+a": [40]},
)  # fmt: skip
def retry_waits_before_each_attempt() -> Any:
    return _tried("a", 4, backoff=retry.Backoff(5, 3, max_delay=20))


@timed(
    ">ra >rb >rc >rd >x +x +ra +rb +rc +rd >a >b >c >d >y !a !b !c !d +y <a <b <c <d -a -b -c "
    "-d ?ra ?rb ?rc ?rd .d >rd +rd >d +d .c >rc +rc >c +c .a .b >ra >rb +ra +rb >a >b +a +b",
    order=[], at={">ra": [0, 60], ">rb": [0, 60], ">rc": [0, 7], ">rd": [0, 0], "+y": [0]},
)  # fmt: skip
def waiting_retries_delay_no_other_branch() -> Any:
    return WIDE("f").add(
        _tried("a", 2, backoff=60), _tried("b", 2, backoff=60), _tried("c", 2, backoff=7),
        _tried("d", 2),
        LINE("other").add(tasks.Step("x"), tasks.Step("y")),
    )  # fmt: skip


@timed(
    ">ra +ra >a !a <a -a ?ra .a >ra +ra >a +a",
    drive=suspend_during(45), flow=_SUSPENDED, at={">ra": [0, 60], "?ra": [0]},
)  # fmt: skip
def resumed_retry_waits_for_remaining_time() -> Any:
    return _tried("a", 2, backoff=60)


def _hour_later(engine: base.Engine) -> None:
    clock: Any = engine._clock
    clock.advance(3600)


@timed(
    ">ra +ra >a !a <a -a ?ra .a >ra +ra >a +a",
    drive=suspend_during(45, _hour_later), flow=_SUSPENDED, at={">ra": [0, 3645]},
)  # fmt: skip
def resumed_retry_does_not_wait_if_its_time_has_passed() -> Any:
    return _tried("a", 2, backoff=60)


@timed(
    ">ra +ra >a !a <a -a ?ra .ra .a >ra +ra >a !a <a -a ?ra .a >ra +ra >a +a",
    drive=suspend_during(45, lambda engine: engine.reset()), at={">ra": [0, 45, 105]},
    flow="RUNNING SUSPENDING SUSPENDED PENDING RUNNING SUCCESS",
)  # fmt: skip
def reset_ends_wait_of_retry() -> Any:
    return _tried("a", 2, backoff=60)


@timed(
    ">ro +ro >ra >t0 +t0 +ra >a >t1 !a +t1 >t2 <a +t2 -a ?ra >t3 +t3 >late !late <ra <late "
    "-late -ra <t3 -t3 <t2 -t2 <t1 -t1 <t0 -t0 ?ro .ra .a .t0 .t1 .t2 .t3 .late >ro +ro >ra "
    ">t0 +t0 +ra >a >t1 !a +t1 >t2 <a +t2 -a ?ra >t3 +t3 >late +late .a >ra +ra >a +a",
    order=[], takes={">late": 20}, at={"?ra": [0, 20], ">ra": [0, 20, 80]}, kinds=ORDERED,
)  # fmt: skip
def outer_retry_starts_wait_of_inner_retry_again() -> Any:
    """The failure of `late` ends the first wait; its time does not run `ra` again."""
    late = tasks.QuietUntil("late", inject={"until": 2}, rebind={"n": "no"})
    other = LINE("other").add(*(tasks.Quiet(f"t{n}") for n in range(4)), late)
    return WIDE("o", retry.Times(2, "ro", provides="no")).add(_tried("a", 2, backoff=60), other)


@timed(
    ">ro +ro >ra >t0 +t0 +ra >a >t1 !a +t1 >t2 <a +t2 -a ?ra >t3 +t3 >late !late <ra <late "
    "-late -ra <t3 -t3 <t2 -t2 <t1 -t1 <t0 -t0 <ro -ro",
    order=[], raises={"late": (ValueError, "late fails"), "a": (RuntimeError, "")}, at={"-ra": [0]},
    kinds=ORDERED,
)  # fmt: skip
def failure_outside_ends_wait_of_retry() -> Any:
    other = LINE("other").add(*(tasks.Quiet(f"t{n}") for n in range(4)), tasks.BoomOnly("late"))
    return WIDE("o", retry.AlwaysRevertAll("ro")).add(_tried("a", 2, backoff=60), other)


@timed(
    ">ra >ro +ra +ro >a >t !a +t >s <a +s -a ?ra >x !x <ra <x -x -ra <s #s",
    order=[], raises={"s": (KeyError, "s stays"), **_BOOM, "a": (RuntimeError, "a fails")},
    ends="FAILURE", at={"#s": [0]}, kinds=ORDERED,
)  # fmt: skip
def failed_reversion_ends_flow_while_retry_waits() -> Any:
    other = LINE("other", retry.AlwaysRevert("ro")).add(
        tasks.Step("t"), tasks.RevertFails("s"), tasks.Boom("x")
    )
    return WIDE("f").add(_tried("a", 2, backoff=60), other)


@timed(
    ">b_retry +b_retry >b !b <b -b ?b_retry .b >b_retry +b_retry >b !b <b -b ?b_retry .b "
    ">b_retry +b_retry >b +b",
    drive=suspend_at("RETRYING b_retry"), flow=_SUSPENDED, at={">b_retry": [0, 60, 180]},
    store={"folder": FOLDER, "times": 3},
)  # fmt: skip
def backoff_of_task_survives_suspension() -> Any:
    options = {"retries": 2, "backoff": retry.Backoff(60, multiplier=2)}
    return LINE("f").add(_with(tasks.Counted("b"), **options))


# -- signals


def _approved(**options: Any) -> Any:
    return task.WaitFor("go", name="w", provides="word", **options)


def _line(*more: Any, **options: Any) -> Any:
    return LINE("f").add(tasks.Step("a"), _approved(**options), *more)


def send(name: str, value: Any = None) -> Act:
    return lambda engine: engine.signal(name, value)


_VALUE = {"by": "ann", "limits": (1, 2)}


def _sent_before(engine: base.Engine) -> None:
    engine.signal("go", _VALUE)
    engine.run()


@timed(">a +a >w +w >b +b", drive=_sent_before, results={"word": _VALUE, "b": _VALUE})
def signal_sent_before_the_run_is_used() -> Any:
    return _line(tasks.Give("b", provides="b", rebind=["word"]))


@timed(">a +a >w +w", drive=act_at(SUCCESS_a=send("go", 5)), results={"word": 5})
def signal_sent_while_another_task_runs_is_used() -> Any:
    return _line(timeout=600)


@timed(
    ">w >w2 >w3 +w +w2 +w3",
    order=[], at={"+w": [0], "+w2": [0], "+w3": [0]}, drive=act_at(RUNNING_w3=send("go", 5)),
    results={"word": 5, "v2": 5, "v3": 5},
)  # fmt: skip
def signal_ends_all_waits_for_it() -> Any:
    waits = (task.WaitFor("go", name=f"w{n}", provides=f"v{n}") for n in (2, 3))
    return WIDE("f").add(_approved(), *waits)


def _send_all(engine: base.Engine) -> None:
    for number in range(9):
        engine.signal(f"s{number}")


@timed(
    ">w0 >w1 >w2 >w3 >w4 >w5 >w6 >w7 >w8 >a +a +w0 +w1 +w2 +w3 +w4 +w5 +w6 +w7 +w8",
    order=[], drive=act_at(SUCCESS_a=_send_all),
)  # fmt: skip
def waits_for_signals_occupy_no_slots() -> Any:
    waits = [task.WaitFor(f"s{number}", name=f"w{number}") for number in range(9)]
    return WIDE("f").add(*waits, tasks.Step("a"))


@timed(
    ">a +a >w !w <w -w <a -a",
    drive=within(10_000), at={"!w": [3600]},
    raises={"w": (exceptions.SignalTimeout, "waited 3600 s for signal 'go'")},
)  # fmt: skip
def wait_for_signal_times_out() -> Any:
    return _line(timeout=3600)


@timed(
    ">a +a >w .w >w !w <w -w <a -a",
    flow="RUNNING SUSPENDING SUSPENDED RUNNING REVERTED", drive=suspend_during(100),
    at={"!w": [3600]}, raises={"w": (exceptions.SignalTimeout, "")},
)  # fmt: skip
def timeout_of_signal_counts_from_first_start() -> Any:
    return _line(timeout=3600)


@timed(
    ">a +a >w .w .a .w >a +a >w !w <w -w <a -a",
    drive=suspend_during(100, lambda engine: engine.reset()), at={"!w": [3700]},
    flow="RUNNING SUSPENDING SUSPENDED PENDING RUNNING REVERTED",
    raises={"w": (exceptions.SignalTimeout, "")},
)  # fmt: skip
def reset_restarts_timeout_of_signal() -> Any:
    return _line(timeout=3600)


@timed(
    ">w_retry +w_retry >w !w <w -w ?w_retry .w >w_retry +w_retry >w !w <w -w ?w_retry .w "
    ">w_retry +w_retry >w !w <w -w <w_retry -w_retry",
    at={"!w": [100, 200, 300]}, raises={"w": (exceptions.SignalTimeout, "")},
)  # fmt: skip
def each_attempt_of_retried_wait_has_full_timeout() -> Any:
    return LINE("f").add(_with(_approved(timeout=100), retries=2))


@timed(
    ">w_retry >w2 +w_retry >w !w <w -w ?w_retry .w >w_retry +w_retry >w !w <w -w ?w_retry .w "
    ">w_retry +w_retry >w !w <w -w ?w_retry .w >w_retry +w_retry >w !w2 .w <w_retry <w2 -w2 "
    "-w_retry",
    order=[], at={"!w": [10, 20, 30], "!w2": [35]},
    raises={"w2": (exceptions.SignalTimeout, "waited 35 s for signal 's'")},
)  # fmt: skip
def each_wait_for_signal_ends_at_its_own_timeout() -> Any:
    """The short waits are retried, and the long one ends the flow."""
    short = _with(_approved(timeout=10), retries=50)
    return WIDE("f").add(short, task.WaitFor("s", name="w2", timeout=35))


@timed(
    ">r +r >w >x !x .w <x -x ?r .x >r +r >w >x +x !w <w <x -w -x <r -r",
    order=[], takes={"!x": 20}, at={"!w": [70]}, raises={"w": (exceptions.SignalTimeout, "")},
)  # fmt: skip
def retried_wait_does_not_end_at_timeout_of_earlier_attempt() -> Any:
    tried = WIDE("tried", retry.Times(2, "r", provides="n"))
    return tried.add(_approved(timeout=50), tasks.Until("x", inject={"until": 2}))


@timed(
    ">r >w +r >x !x <x -x ?r .x >r +r >x +x +w",
    order=[], takes={"!x": 20}, drive=act_at(SUCCESS_x=send("go")),
)  # fmt: skip
def failure_in_one_flow_does_not_end_wait_of_another() -> Any:
    tried = WIDE("tried", retry.Times(2, "r", provides="n"))
    return WIDE("f").add(tried.add(tasks.Until("x", inject={"until": 2})), _approved())


@timed(
    ">a +a >w .w <a -a",
    drive=act_at(RUNNING_w=base.Engine.cancel), raised=(exceptions.Cancelled, ""),
)  # fmt: skip
def cancelled_wait_for_signal_is_reverted() -> Any:
    return _line()


@timed(">w >a +a >x !x .w <x -x <a -a", order=[], raises=_BOOM, at={"-x": [0]})
def failure_ends_wait_for_signal() -> Any:
    return WIDE("f").add(_approved(), LINE("l").add(tasks.Step("a"), tasks.Boom("x")))


@timed(
    ">a +a >w .w <a -a",
    drive=within(30), raises={"?": (exceptions.DeadlineExceeded, "")}, at={"-a": [30]},
)  # fmt: skip
def deadline_ends_wait_for_signal() -> Any:
    return _line()


@timed(">a +a >w +w >x !x <x -x <w -w <a -a", drive=_sent_before, raises=_BOOM)
def signalled_wait_is_reverted() -> Any:
    return _line(tasks.Boom("x"))


def _signal_after_two_suspensions(engine: base.Engine) -> None:
    suspend_at("RUNNING w", "RUNNING w", act=send("go", 3))(engine)
    attempt = engine.storage.get_attempt("w")
    assert attempt is not None and attempt.attempt == 1


@timed(
    ">a +a >w .w >w .w >w +w",
    drive=_signal_after_two_suspensions,
    flow="RUNNING SUSPENDING SUSPENDED RUNNING SUSPENDING SUSPENDED RUNNING SUCCESS",
    results={"word": 3},
)  # fmt: skip
def resumed_flow_continues_to_wait_for_signal() -> Any:
    return _line(timeout=600)


def _with_delayed(*more: Any) -> Any:
    return WIDE("f").add(_delayed("d", 50, cancel_on_revert=True), _approved(), *more)


@timed(">d >w >x !x .d .w <x -x", order=[], raises=_BOOM, at={"-x": [0]}, kinds=LOCAL)
def failure_ends_waits_for_signal_and_eta_together() -> Any:
    return _with_delayed(tasks.Boom("x"))


@timed(
    ">d >w .d .w >d >w +w +d",
    order=[], drive=suspend_during(20, send("go")), at={"+d": [50]}, kinds=LOCAL, flow=_SUSPENDED,
)  # fmt: skip
def suspension_ends_waits_for_signal_and_eta_together() -> Any:
    return _with_delayed()


# -- pauses of task types


@timed(
    ">now +now >a +a >b +b",
    order=[], pauses={"Step": 1000, "Quiet": 3000}, at={"+now": [0], "+a": [1000], "+b": [3000]},
)  # fmt: skip
def each_task_type_starts_at_the_end_of_its_pause() -> Any:
    return WIDE("f").add(tasks.Step("a"), tasks.Quiet("b"), tasks.Local("now"))


@timed(">a +a", pauses={"S*": 1000, "Step": 3000, "*ep": 2000}, at={"+a": [3000]})
def task_starts_when_the_last_of_its_pauses_ends() -> Any:
    return LINE("f").add(tasks.Step("a"))


@timed(">m +m", pauses={"Squares": 1000}, store={"items": [1, 2]}, at={">m": [0], "+m": [1000]})
def items_of_map_wait_for_end_of_pause() -> Any:
    return LINE("f").add(task.Map(tasks.Squares("m"), provides="m"))


@timed(
    ">m >a +a +m",
    order=[], pauses={"Squares": 1000, "Step": 1000}, store={"items": [1]},
    at={"+m": [3000], "+a": [1500]}, kinds=LOCAL,
)  # fmt: skip
def task_waits_for_the_later_of_pause_and_eta() -> Any:
    many = task.Map(_with(tasks.Squares("m"), eta=3000), provides="m")
    return WIDE("f").add(many, _delayed("a", 500))


@timed(
    ">m >x !x .m <x -x",
    order=[], pauses={"Step": 1000, "Squares": 1000}, store={"items": [1]}, raises=_BOOM,
    at={"-x": [0]},
)  # fmt: skip
def failure_reverts_flow_whose_other_tasks_are_paused() -> Any:
    many = task.Map(tasks.Squares("m"), provides="m")
    return WIDE("f").add(tasks.Step("a"), many, tasks.Boom("x"))


@timed(
    ">m .m >m +m",
    pauses={"Squares": 1000}, store={"items": [1, 2]}, results={"m": [1, 4]},
    drive=suspend_during(20), flow=_SUSPENDED, at={"+m": [1000]}, kinds=LOCAL,
)  # fmt: skip
def suspended_map_of_paused_type_resumes_with_all_items() -> Any:
    return LINE("f").add(task.Map(tasks.Squares("m"), provides="m"))


# -- limits: a task starts when it has a permit, so the story is the same on all kinds


def _limited(*atoms: Any, **options: Any) -> Any:
    return WIDE("f").add(*(_with(atom, concurrency=1, **options) for atom in atoms))


@timed(">a +a >b +b >c +c")
def tasks_of_a_limit_run_one_at_a_time() -> Any:
    return _limited(*(tasks.Step(name) for name in "abc"))


@timed(">a +a >b +b >c +c")
def task_types_with_the_same_limit_name_share_permits() -> Any:
    return _limited(tasks.Step("a"), tasks.Quiet("b"), tasks.Step("c"), limit="shared")


@timed(">a >x +a +x >b >y +b +y", order=["+a >b", "+x >y"], kinds=NAMES[1:])
def each_concurrency_key_has_its_own_limit() -> Any:
    keys = {"a": 1, "x": 2, "b": 1, "y": 2}
    keyed = (tasks.Give(name, inject={"value": key}) for name, key in keys.items())
    return _limited(*keyed, concurrency_key=lambda value: value)


def nonsense_of(value: Any) -> Any:
    return value.nonsense


@timed(">a !a <a -a", raises={"a": (AttributeError, "nonsense")})
def concurrency_key_that_raises_fails_its_task() -> Any:
    give = tasks.Give("a", inject={"value": 1})
    return _limited(give, concurrency_key=nonsense_of)


@timed(">b +b >c +c >d +d >a +a")
def permits_are_used_in_order_of_priority_then_position() -> Any:
    priorities = {"a": 0, "b": 5, "c": 5, "d": 1}
    return _limited(*(_with(tasks.Step(name), priority=n) for name, n in priorities.items()))


@timed(
    ">b_retry +b_retry >b !b <b -b ?b_retry .b >b_retry +b_retry >b !b <b -b ?b_retry .b "
    ">b_retry +b_retry >b +b",
    store={"folder": FOLDER, "times": 3}, results={"b": 3},
)  # fmt: skip
def failed_task_releases_its_permit() -> Any:
    return _limited(_with(tasks.Counted("b", provides="b"), retries=2))


# -- deadlines


def _seconds(*atoms: Any) -> Any:
    return LINE("f").add(*(tasks.Step(atom) if isinstance(atom, str) else atom for atom in atoms))


_LATE: dict[str, Any] = {"takes": {"+": 1}, "raises": {"?": (exceptions.DeadlineExceeded, "")}}


@timed(">a +a >b +b >c +c >d .d <c -c <b -b <a -a", drive=within(2.5), **_LATE)
def deadline_between_two_tasks_reverts_completed_tasks() -> Any:
    return _seconds(*"abcde")


@timed(
    ">a +a >b +b >c .c",
    drive=within(1.5), options={"never_resolve": True}, **_LATE, ends="FAILURE",
)  # fmt: skip
def deadline_with_never_resolve_reverts_nothing() -> Any:
    return _seconds(*"abc")


@timed(">a +a >x !x <x -x <a +a <a -a", drive=within(1), takes={"-": 2}, raises=_BOOM)
def deadline_during_reversion_has_no_effect() -> Any:
    return _seconds("a", tasks.Boom("x"))


@timed(
    ">a +a >r +r >b +b >x !x <x -x <b +b <b -b <r -r <a -a",
    options={"defer_reverts": False}, takes={"-x": 2}, drive=within(1), raises=_BOOM,
    raised=(exceptions.DeadlineExceeded, ""),
)  # fmt: skip
def deadline_during_reversion_of_subflow_reverts_whole_flow() -> Any:
    return _seconds("a", LINE("in", retry.AlwaysRevert("r")).add(tasks.Step("b"), tasks.Boom("x")))


@timed(
    ">a +a >b .b <a #a",
    drive=within(0.5), takes={"+": 1}, ends="FAILURE", raises={"a": (KeyError, "a stays")},
    raised=(exceptions.DeadlineExceeded, ""),
)  # fmt: skip
def failed_reversion_is_cause_of_deadline_exceeded() -> Any:
    return _seconds(tasks.RevertFails("a"), "b")


def _resume_reversion(engine: base.Engine) -> None:
    engine.atom_notifier.register(states.REVERTED, suspend := lambda *_, **__: engine.suspend())
    engine.run(deadline=1.5)
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.atom_notifier.deregister(states.REVERTED, suspend)
    try:
        engine.run()
    except exceptions.DeadlineExceeded as error:
        assert "an earlier run" in str(error)
    engine.run()


@timed(
    ">a +a >b +b >c .c <b -b <a -a .a .b >a +a >b +b >c +c",
    drive=_resume_reversion, takes={"+": 1},
    flow="RUNNING SUSPENDING SUSPENDED RUNNING REVERTED PENDING RUNNING SUCCESS",
)  # fmt: skip
def resumed_reversion_after_deadline_raises_deadline_exceeded() -> Any:
    return _seconds(*"abc")


def _suspend_late(engine: base.Engine) -> None:
    act_at(SUCCESS_a=base.Engine.suspend, deadline=0.5)(engine)
    assert engine.storage.get_flow_state() == states.SUSPENDED
    engine.run(deadline=5)


@timed(">a +a >b +b >c +c", drive=_suspend_late, takes={"+": 1}, flow=_SUSPENDED)
def suspension_takes_precedence_over_deadline() -> Any:
    return _seconds(*"abc")


def _run_twice(engine: base.Engine) -> None:
    engine.run(deadline=5)
    engine.run(deadline=0)


@timed(">a +a", drive=_run_twice, takes={"+": 1}, flow="RUNNING SUCCESS RUNNING SUCCESS")
def deadline_does_not_apply_to_completed_flow() -> Any:
    return _seconds(*"a")
