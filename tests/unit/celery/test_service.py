"""What a worker does about Celery's messages, without broker, backend and pool."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from wbengine import exceptions, invocation, limits
from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol import codec, serializers
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.steps import CountChord, Send
from wbengine.interop.celery.protocol.wire import Wire
from wbengine.interop.celery.worker import beginning, calls, mapping, service
from wbengine.interop.celery.worker.deeds import (
    Acknowledge,
    Cancel,
    End,
    GiveBack,
    Inquire,
    Mark,
    Note,
    Redirect,
    Reject,
    Requeue,
    Run,
    Tell,
)
from wbengine.interop.celery.worker.jobs import Job, Past
from wbengine.types.failure import Failure

from . import errands

NOW = 1_700_000_000.0
ADD = f"{errands.__name__}.add"
SAFE = f"{errands.__name__}.safe"
TASKS = mapping.Tasks([errands])

_receipts = itertools.count(1)


def moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(NOW + seconds, dt.timezone.utc)


def message_of(id: str = "id-1", task: str = ADD, **fields: Any) -> TaskMessage:
    fields.setdefault("args", [1, 2])
    fields.setdefault("reply_to", "reply")
    return TaskMessage(task, id, **fields)


class Bench:
    """A service, and what it asked for last."""

    def __init__(self, slots: int = 1, **options: Any) -> None:
        options.setdefault("accepted", serializers.Accepted())
        self.service: Any = service.Service(TASKS, slots, worker="me@here", **options)
        self.now = NOW

    def take(
        self,
        message: TaskMessage | Wire,
        past: Past = Past.NONE,
        receipt: Any = None,
        note: str = "",
    ) -> Any:
        """What is asked for when it comes; it is noted at once what begins."""
        return self.marked(self.come(message, past, receipt, note))

    def come(
        self,
        message: TaskMessage | Wire,
        past: Past = Past.NONE,
        receipt: Any = None,
        note: str = "",
    ) -> Any:
        """What is asked for when it comes."""
        wire = message if isinstance(message, Wire) else codec.encode(message)
        receipt = f"receipt {next(_receipts)}" if receipt is None else receipt
        return self.service.on_message(wire, receipt, "q", past, self.now, note)

    def marked(self, effects: Any) -> Any:
        """What is asked for at last, where the broker notes at once what begins."""
        found = []
        for effect in effects:
            if isinstance(effect, Mark):
                found += self.service.on_marked([effect.job], self.now)
            else:
                found.append(effect)
        return found

    def due(self, after: float = 0.0) -> Any:
        """What is asked for at a time."""
        self.now = NOW + after
        return self.marked(self.service.on_due(self.now))

    def run(self, message: TaskMessage, past: Past = Past.NONE) -> Job:
        """Take a message whose task begins at once."""
        (run,) = (e for e in self.take(message, past) if isinstance(e, Run))
        return run.job

    def nobody_knows(self) -> Any:
        """All are asked for what is in doubt, until it is clear that nobody has it."""
        for _ in range(10):
            self.now = self.service.next_due()
            assert kinds(self.service.on_due(self.now)) == [Inquire.__name__]
            assert self.service.next_due() is None
            self.now += 1
            if effects := self.service.on_answers({}, self.now):
                return effects
        raise AssertionError("it asks for ever")

    def finish(self, job: Job, value: Any = None) -> Any:
        outcome = invocation.Outcome(value, "local", self.now, self.now + 2)
        return self.marked(self.service.on_finished(job, outcome, self.now))

    def end(self, message: TaskMessage, value: Any = None) -> Any:
        """Run a message to its end."""
        end = self.finish(self.run(message), value)[0]
        assert isinstance(end, End)
        return end


def told(effects: Iterable[Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(e.type, e.fields) for e in effects if isinstance(e, Tell)]


def kinds(effects: Iterable[Any]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def failure(error: BaseException) -> Failure:
    try:
        raise error
    except BaseException:
        return Failure()


# To the end. --------------------------------------------------------------------------------------


def test_a_task_runs_and_its_result_is_told() -> None:
    bench = Bench()
    job = bench.run(message_of(group="g", parent_id="p", root_id="r"))
    assert (job.id, job.epoch, job.name, job.queue) == ("id-1", 1, ADD, "q")
    assert bench.service.running == 1 and bench.service.busy
    (end,) = bench.finish(job, 3)
    assert end.job is job and end.steps == [] and end.chord is None and not end.fallout
    meta = json.loads(end.result.encoded[2])
    assert (meta["status"], meta["result"], meta["task_id"]) == ("SUCCESS", 3, "id-1")
    assert (meta["group_id"], meta["parent_id"]) == ("g", "p")
    assert (end.result.reply_to, end.result.correlation_id) == ("reply", "id-1")
    assert bench.service.running == 0 and bench.service.busy
    assert bench.service.on_done(job, job.receipt) == []
    assert not bench.service.busy
    assert (bench.service.successes, bench.service.failures, bench.service.began) == (1, 0, 1)
    assert bench.service.totals == {ADD: 1}


def test_what_follows_is_sent() -> None:
    link = {"task": "proj.link", "args": [5], "kwargs": {}, "options": {"task_id": "l"}}
    chain = [{"task": "proj.last", "options": {"task_id": "z"}}, {"task": "proj.next"}]
    end = Bench().end(message_of(callbacks=[link], chain=chain), 3)
    first, second = (step.message for step in end.steps)
    assert (first.task, list(first.args), first.id) == ("proj.link", [3, 5], "l")
    assert (second.task, list(second.args), len(second.chain)) == ("proj.next", [3], 1)
    assert (second.parent_id, second.root_id, second.reply_to) == ("id-1", "id-1", "reply")
    assert end.result is not None
    assert [child[0][0] for child in end.result.children] == ["l", second.id]
    again = Bench().end(message_of(callbacks=[link], chain=chain), 3)
    assert again.steps[1].message.id == second.id  # told twice, it is known twice


def test_what_follows_a_failure() -> None:
    errback = {"task": "proj.sorry", "args": [], "options": {}}
    chord = {"task": "proj.body", "options": {"task_id": "body"}}
    chain = [
        {"task": "proj.last", "options": {"task_id": "z", "chord": chord, "group_id": "g"}},
        {"task": "proj.next", "options": {"task_id": "y"}},
        {"task": "proj.nobody"},
    ]
    end = Bench().end(message_of(errbacks=[errback], chain=chain), failure(ValueError("no")))
    (step,) = end.steps
    assert isinstance(step, Send)
    assert (step.message.task, list(step.message.args)) == ("proj.sorry", ["id-1"])
    assert end.result is not None and end.result.state == "FAILURE"
    assert [fallen.result.id for fallen in end.fallout if fallen.result] == ["y", "z"]
    assert [fallen.chord and fallen.chord.group for fallen in end.fallout] == [None, "g"]


def test_what_would_follow_a_revoked_task_is_revoked() -> None:
    bench = Bench()
    bench.service.revoke(["id-1"], False, NOW)
    (end,) = bench.take(message_of(chain=[{"task": "proj.z", "options": {"task_id": "z"}}]))
    assert [(one.result.id, one.result.state) for one in end.fallout] == [("z", "REVOKED")]
    assert end.steps == ()


def test_a_part_of_a_chord_is_counted_however_it_ends() -> None:
    chord = {"task": "proj.body", "options": {"task_id": "body"}}
    message = message_of(group="g", group_index=4, chord=chord)
    done = Bench().end(message, 3).chord
    failed = Bench().end(message, failure(ValueError("no"))).chord
    quiet = Bench().end(replace(message, ignore_result=True), 3)
    assert done is not None and failed is not None and quiet.chord is not None
    assert (done.group, done.index, done.id, done.state, done.value) == (
        "g", 4, "id-1", "SUCCESS", 3
    )  # fmt: skip
    assert (failed.state, failed.value["exc_type"]) == ("FAILURE", "ValueError")
    assert quiet.result is None and quiet.chord.value == 3
    bench = Bench()
    bench.service.revoke(["id-1"], False, NOW)
    (end,) = bench.take(message)
    assert end.chord.state == "REVOKED"


def test_results_of_no_interest_are_not_kept() -> None:
    for value in (3, failure(ValueError("no")), object()):
        assert Bench().end(message_of(ignore_result=True), value).result is None


def test_a_result_that_cannot_be_written_is_a_failure() -> None:
    end = Bench().end(message_of(chain=[{"task": "proj.next"}]), object())
    assert end.result is not None and end.result.state == "FAILURE"
    assert end.result.value["exc_type"] == "NotEncodable"
    assert end.steps == []


def test_a_signature_that_makes_no_sense_is_a_failure() -> None:
    wire = codec.encode(message_of())
    body = json.loads(wire.body)
    body[2] = {"chain": [{"task": "proj.next", "options": {"task_id": 5}}], "errbacks": []}
    wire.body = json.dumps(body).encode()
    bench = Bench()
    (run,) = bench.take(wire)
    (end,) = bench.finish(run.job, 3)
    assert end.result.state == "FAILURE"
    wire.body = json.dumps([[1], {}, {"errbacks": [{"task": "x", "args": 5}]}]).encode()
    wire.headers["id"] = "id-2"
    (run,) = bench.take(wire)
    (end,) = bench.finish(run.job, failure(ValueError("no")))
    assert end.result.value["exc_type"] == "ValueError"
    assert end.steps == ()


def test_limits_of_the_message_go_before_those_of_the_task() -> None:
    both = limits.TimeLimit(1.0, 3.0)
    assert Bench().run(message_of(timelimit=both)).limit == both
    assert Bench().run(message_of()).limit == limits.UNLIMITED
    limited = f"{errands.__name__}.limited"
    assert Bench().run(message_of(task=limited)).limit == limits.TimeLimit(5.0, 10.0)
    for given, meant in (((1, None), (1, 10)), ((None, 7), (5, 7)), ((None, 4), (None, 4))):
        message = message_of(task=limited, timelimit=limits.TimeLimit(*given))
        assert Bench().run(message).limit == meant
    bench = Bench()
    job = bench.run(message_of(timelimit=limits.TimeLimit(None, 3.0)))
    (over,) = bench.finish(job, failure(exceptions.TimeLimitExceeded()))
    assert (over.result.value["exc_type"], over.result.value["exc_message"]) == (
        "TimeLimitExceeded", [3.0]
    )  # fmt: skip


def test_results_are_written_in_the_first_serializer() -> None:
    """Whatever their messages came in: who reads them from a Redis must know it beforehand."""
    bench = Bench(accepted=serializers.Accepted(("yaml", "json")))
    for name in ("json", "yaml"):
        (run,) = bench.take(codec.encode(message_of(name), serializer=name))
        (end,) = bench.finish(run.job, 3)
        assert end.result.encoded[0] == "application/x-yaml"


def test_both_versions_are_understood() -> None:
    for protocol in (1, 2):
        bench = Bench()
        wire = codec.encode(message_of(), protocol)
        (run,) = bench.take(wire)
        assert run.job.message.protocol == protocol
        (end,) = bench.finish(run.job, 3)
        assert end.result.state == "SUCCESS"


# Slots, and times. --------------------------------------------------------------------------------


def test_no_more_run_than_there_are_slots() -> None:
    bench = Bench(2, ahead=1)
    first, second = bench.run(message_of("a")), bench.run(message_of("b"))
    assert bench.take(message_of("c")) == [] and bench.take(message_of("d")) == []
    assert (bench.service.running, bench.service.waiting, bench.service.prefetch) == (2, 2, 3)
    effects = bench.finish(second, 1)
    assert kinds(effects) == ["End", "Run"] and effects[1].job.id == "c"
    assert bench.finish(first, 1)[1].job.id == "d"


def test_somebody_else_may_say_that_no_more_begin() -> None:
    admitted = [True, False]
    bench = Bench(3, admit=lambda: admitted.pop(0))
    job = bench.run(message_of("a"))
    assert bench.take(message_of("b")) == [] and bench.take(message_of("c")) == []
    assert kinds(bench.finish(job, 1)) == ["End"]
    assert [e.job.id for e in bench.service.drain(NOW)] == ["b", "c"]
    assert admitted == []
    admitted[:] = [True, False]
    bench = Bench(1, admit=lambda: admitted.pop(0))
    job = bench.run(message_of("a"))
    assert bench.take(message_of("b")) == [] and bench.take(message_of("c")) == []
    assert kinds(bench.finish(job, 1)) == ["End"]
    assert [e.job.id for e in bench.service.drain(NOW)] == ["b", "c"]


def test_it_does_not_begin_before_its_time() -> None:
    bench = Bench()
    assert bench.take(message_of("a", eta=moment(10))) == []
    assert bench.take(message_of("b", eta=moment(5))) == []
    assert bench.service.next_due() == NOW + 5
    assert (bench.service.held, bench.service.prefetch) == (2, 3)
    assert bench.due(4) == []
    (run,) = bench.due(5)
    assert run.job.id == "b"
    assert bench.service.next_due() == NOW + 10
    assert bench.due(20) == [] and bench.service.waiting == 1
    assert bench.service.next_due() is None
    assert bench.service.held == 0


def test_what_is_held_for_long_goes_back() -> None:
    bench = Bench(max_hold=900)
    bench.take(message_of(eta=moment(1000)))
    assert bench.service.next_due() == NOW + 900
    (back,) = bench.due(900)
    assert isinstance(back, GiveBack) and back.job.wire.headers["id"] == "id-1"
    # The copy comes before it is known that it was published.
    bench.now = NOW + 900
    assert bench.take(message_of(eta=moment(1000))) == []
    assert bench.service.on_done(back.job, back.job.receipt) == []
    (run,) = bench.due(1000)
    assert run.job.id == "id-1"


def test_too_many_are_given_back_soon() -> None:
    bench = Bench(max_held=2)
    for id in "abc":
        bench.take(message_of(id, eta=moment(1000)))
    assert bench.service.next_due() == NOW + beginning.PATIENCE
    assert bench.service.prefetch == 3
    (back,) = bench.due(beginning.PATIENCE)
    assert isinstance(back, GiveBack) and back.job.id == "c"
    assert bench.service.held == 2


def test_what_expired_is_not_run() -> None:
    bench = Bench()
    (end,) = bench.take(message_of("a", expires=moment(-1)))
    assert (end.result.state, end.result.value["exc_message"]) == ("REVOKED", ["expired"])
    job = bench.run(message_of("b", expires=moment(10)))
    bench.take(message_of("c", expires=moment(10)))
    bench.now += 11
    effects = bench.finish(job, 3)
    assert [effect.result.state for effect in effects] == ["SUCCESS", "REVOKED"]
    job = bench.run(message_of("d", expires=moment(20)))
    bench.now += 11  # it had its turn in the pool too late
    (end,) = bench.finish(job, failure(exceptions.Expired("late")))
    assert end.result.state == "REVOKED"


# What comes again. --------------------------------------------------------------------------------


def test_what_is_here_is_not_run_again_and_has_a_new_receipt() -> None:
    bench = Bench()
    message = message_of()
    job = bench.run(message)
    old = job.receipt
    assert bench.take(message, Past.BEGUN, receipt="new") == [Acknowledge(old)]
    assert job.receipt == "new"
    bench.finish(job, 3)
    assert bench.take(message, Past.BEGUN, receipt="newer") == [Acknowledge("new")]
    assert bench.service.on_done(job, "new") == [Acknowledge("newer")]
    assert bench.take(message, Past.BEGUN, receipt="last") == [Acknowledge("last")]
    assert bench.service.counts["repeated"] == 3


def test_a_retry_is_no_repeat() -> None:
    bench = Bench()
    bench.end(message_of())
    assert bench.run(message_of(retries=1)).epoch == 2


def test_nobody_knows_what_became_of_what_comes_again_from_elsewhere() -> None:
    bench = Bench()
    assert bench.take(message_of("a"), Past.BEGUN) == []
    (end,) = bench.nobody_knows()
    assert end.result.value["exc_type"] == "WorkerLostError"
    assert 12 <= bench.now - NOW < 20
    assert bench.run(message_of("b", task=SAFE, args=[]), Past.BEGUN).id == "b"
    # It cannot have begun before its time.
    assert bench.take(message_of("c", eta=moment(60)), True) == []
    assert bench.service.held == 1


def test_what_has_not_begun_is_for_others_once_the_connection_is_lost() -> None:
    bench = Bench()
    job = bench.run(message_of("a"))
    bench.take(message_of("b"))
    bench.take(message_of("c", eta=moment(5)))
    bench.service.on_disconnected()
    assert (bench.service.waiting, bench.service.held, bench.service.next_due()) == (0, 0, None)
    old = job.receipt
    assert bench.take(message_of("a"), Past.BEGUN) == [Acknowledge(old)]
    assert bench.take(message_of("b"), Past.GIVEN) == []
    bench.now += 10
    assert kinds(bench.service.on_due(bench.now)) == ["Inquire"]
    assert bench.service.on_answers({}, bench.now + 1) == []
    assert bench.service.waiting == 1
    bench.take(message_of("c", eta=moment(5)), Past.BEGUN)  # another one began that
    (end,) = bench.nobody_knows()
    assert end.result.value["exc_type"] == "WorkerLostError"
    assert [effect.job.id for effect in bench.finish(job, 3)] == ["a", "b"]


# What is not to be run. ---------------------------------------------------------------------------


def test_an_unknown_task_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    (end,) = Bench().take(message_of(task=f"{errands.__name__}.ad"))
    assert end.result.value == {
        "exc_type": "NotRegistered",
        "exc_message": [f"{errands.__name__}.ad"],
        "exc_module": "celery.exceptions",
    }
    assert f"did you mean '{ADD}'" in caplog.text


def test_another_language_is_for_others(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(langs={"java": "java-queue", "go": "q"})
    wire = codec.encode(message_of(lang="java"))
    assert bench.take(wire, receipt=1) == [Redirect(1, wire, "java-queue")]
    for lang in ("go", "lua"):  # one goes where it came from
        caplog.clear()
        assert bench.take(message_of(lang=lang), receipt=2) == [Reject(2)]
        assert f"is in language '{lang}'" in caplog.text
    assert bench.service.counts == {"redirected": 1, "rejected": 2}


def test_what_is_not_accepted_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("it was read",)

    bench = Bench()
    _, _, body = serializers.dump([[Bomb()], {}, {}], "pickle")
    wire = codec.encode(message_of())
    wire = replace(wire, body=body, content_type="application/x-python-serialize")
    (end,) = bench.take(wire)
    assert end.result.value["exc_type"] == "ContentDisallowed"
    assert end.result.reply_to == "reply"
    assert bench.service.counts == {"refused": 1}
    assert "is refused" in caplog.text
    assert kinds(bench.take(wire)) == ["Acknowledge"]  # nobody is told twice
    wire = codec.encode(message_of("v1"), 1)
    wire.content_type = "application/x-python-serialize"
    (end,) = bench.take(wire)  # its correlation id is its task's
    assert (end.job.id, end.result.value["exc_type"]) == ("v1", "ContentDisallowed")
    wire.properties.clear()
    assert bench.take(wire, receipt=5) == [Acknowledge(5)]


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        (Wire({"task": "x", "id": "a"}, {}, "application/json", "utf-8", b"{nonsense"), "Decode"),
        (Wire({"task": "x", "id": "a"}, {}, "application/json", "utf-8", b"5"), "InvalidTask"),
        (Wire({"task": 5, "id": "a"}, {}, "application/json", "utf-8", b"[[],{},{}]"), "Invalid"),
        (Wire({"task": "x", "id": "a", "eta": 5}, {}, None, None, b"x"), "Invalid"),
        (Wire({"task": "x", "id": 5}, {}, "application/json", "utf-8", b"[[],{},{}]"), ""),
        (Wire({}, {}, "application/json", "utf-8", b"{}"), ""),
        (Wire({}, {}, "text/plain", "utf-8", b"hello"), ""),
    ],
)
def test_what_cannot_be_read_is_dropped_and_its_sender_told(wire: Wire, kind: str) -> None:
    bench = Bench()
    (effect,) = bench.take(wire)
    assert bench.service.counts == {"malformed": 1}
    if not kind:
        assert isinstance(effect, Acknowledge)
        return
    assert isinstance(effect, End) and effect.result is not None
    assert effect.result.value["exc_type"].startswith(kind)


def test_what_is_revoked_does_not_begin() -> None:
    bench = Bench()
    running = bench.run(message_of("a"))
    bench.take(message_of("b"))
    bench.take(message_of("c", eta=moment(5)))
    effects = bench.service.revoke(["a", "b", "c", "d", 5], False, NOW)
    assert [(e.job.id, e.result.state) for e in effects] == [("b", "REVOKED"), ("c", "REVOKED")]
    (end,) = bench.take(message_of("d"))
    assert end.result.value["exc_message"] == ["revoked"]
    assert bench.service.next_due() is None
    assert bench.finish(running, 3)[0].result.state == "SUCCESS"
    assert list(bench.service.revoked.ids) == ["a", "b", "c", "d"]


def test_what_runs_is_ended_if_that_is_meant() -> None:
    bench = Bench(3)
    first, second, third = (bench.run(message_of(id)) for id in "abc")
    effects = bench.service.revoke("abc", True, NOW)
    assert effects == [Cancel(first), Cancel(second), Cancel(third)]
    assert bench.service.revoke("abc", True, NOW) == []  # once
    (end,) = bench.finish(first, failure(exceptions.Cancelled("soon")))
    assert (end.result.state, end.result.value["exc_message"]) == ("REVOKED", ["terminated"])
    assert bench.finish(second, 3)[0].result.state == "SUCCESS"  # it was faster
    again = retrying.Again(NOW + 5)
    assert bench.finish(third, again)[0].result.state == "REVOKED"


def test_stamps_revoke_as_ids_do() -> None:
    bench = Bench(2)
    stamped: Any = {"stamped_headers": ("who", "why"), "stamps": {"who": ["x", "y"], "why": "z"}}
    job = bench.run(message_of("a", **stamped))
    assert bench.service.revoke_by_stamps({"who": "y"}, True, NOW) == [Cancel(job)]
    (end,) = bench.take(message_of("b", **stamped))
    assert end.result.state == "REVOKED"
    other: Any = {"stamped_headers": ("who",), "stamps": {"who": "z"}}
    assert bench.run(message_of("c", **other)).id == "c"


# Again, later. ------------------------------------------------------------------------------------


def test_a_retry_is_sent_under_its_id() -> None:
    chain = [{"task": "proj.next", "options": {"task_id": "y"}}]
    bench = Bench()
    job = bench.run(message_of(chain=chain, retries=1, priority=3, argsrepr="(1, 2)"))
    again = retrying.Again(NOW + 60.5, failure(ValueError("not yet")))
    (end,) = bench.finish(job, again)
    (step,) = end.steps
    assert step.queue == "q"
    message = step.message
    assert (message.id, message.retries, message.eta) == ("id-1", 2, moment(60.5))
    assert (list(message.chain), message.priority, message.argsrepr) == (chain, 3, "(1, 2)")
    assert (end.result.state, end.result.value["exc_type"]) == ("RETRY", "ValueError")
    assert end.result.date_done is None and not end.fallout
    assert bench.service.successes == bench.service.failures == 0


def test_a_retry_may_have_other_arguments() -> None:
    bench = Bench()
    job = bench.run(message_of(argsrepr="(1, 2)", group="g", chord={"task": "x"}))
    (end,) = bench.finish(job, retrying.Again(NOW, None, "trace", [7], {"y": 8}))
    message = end.steps[0].message
    assert (list(message.args), message.kwargs, message.argsrepr) == ([7], {"y": 8}, None)
    assert (end.result.value, end.result.traceback, end.chord) == (None, "trace", None)
    job = bench.run(message_of("id-2"))
    (end,) = bench.finish(job, retrying.Again(NOW, None, "", [object()], {}))
    assert end.result.state == "FAILURE" and not end.steps
    job = bench.run(message_of("id-3"))
    (end,) = bench.finish(job, retrying.Again(1e300))
    assert end.result.state == "FAILURE" and not end.steps


def test_a_task_may_refuse_its_message() -> None:
    bench = Bench(telling=True)
    job = bench.run(message_of("a"))
    tell, back = bench.finish(job, retrying.Refusal(failure(ValueError()), requeue=True))
    assert isinstance(back, GiveBack) and tell.fields["requeued"]
    job = bench.run(message_of("b"))
    tell, end, failed = bench.finish(job, retrying.Refusal(failure(retrying.Reject("no"))))
    assert end.reject and end.result.state == "FAILURE"
    assert (tell.type, failed.type) == ("task-rejected", "task-failed")
    job = bench.run(message_of("c"))
    (end,) = bench.finish(job, retrying.Refusal(failure(retrying.Ignore()), ignored=True))
    assert end.result is None and not end.reject


def test_progress_is_a_state() -> None:
    bench = Bench()
    job = bench.run(message_of())
    (note,) = bench.service.on_event(job, "update_progress", {"progress": 0.5}, NOW)
    assert isinstance(note, Note)
    assert (note.result.state, note.result.value) == ("PROGRESS", {"progress": 0.5})
    assert bench.service.on_event(job, "other", {}, NOW) == []
    bench.finish(job)
    assert bench.service.on_event(job, "update_progress", {"progress": 1.0}, NOW) == []


def test_errbacks_that_take_the_failure_are_called_before_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(telling=True)
    errbacks: Any = [{"task": f"{errands.__name__}.sorry", "args": []}, {"task": "proj.sorry"}]
    job = bench.run(message_of(errbacks=errbacks))
    bench.take(message_of("next"))
    (run,) = bench.finish(job, failure(ValueError("no")))
    assert run == Run(job) and job.outcome is None and bench.service.running == 1
    call, args = job.call(None)
    assert call is calls.inform and [one.name for one in args[0]] == [errbacks[0]["task"]]
    assert args[1].errbacks == tuple(errbacks)
    assert bench.service.on_event(job, "update_progress", {"progress": 1.0}, NOW) == []
    end, tell, sent, *others = bench.finish(job, [failure(KeyError("it failed, too"))])
    assert "it failed, too" in caplog.text
    assert (end.result.state, tell.type, sent.type) == ("FAILURE", "task-failed", "task-sent")
    assert [step.message.task for step in end.steps] == ["proj.sorry"]
    assert kinds(others) == ["Tell", "Run"] and others[1].job.id == "next"
    assert job.outcome is not None and job.outcome.failed
    assert bench.service.failures == 1 and bench.service.began == 2


def test_errbacks_do_not_keep_the_failure_from_being_told() -> None:
    errbacks = [{"task": f"{errands.__name__}.sorry"}]
    for how in ("dies", "abandoned", "revoked", "expired", "unwritten", "rejected"):
        bench = Bench()
        job = bench.run(message_of(errbacks=errbacks, expires=moment(5)))
        if how == "expired":
            bench.now += 10
            (end,) = bench.finish(job, failure(exceptions.Expired("late")))
            assert end.result.state == "REVOKED"
            continue
        kind = "ValueError"
        if how == "unwritten":
            bench.finish(job, object())
            kind = "NotEncodable"
        elif how == "rejected":
            bench.finish(job, retrying.Refusal(failure(ValueError("no"))))
        else:
            bench.finish(job, failure(ValueError("no")))
        if how == "abandoned":
            _, end = bench.service.abandon(NOW)
            assert bench.finish(job, []) == []
        else:
            if how == "revoked":
                assert bench.service.revoke(["id-1"], True, NOW) == [Cancel(job)]
            (end,) = bench.finish(job, failure(exceptions.WorkerLost("it died")))
        assert end.result.value["exc_type"] == kind and end.steps == []
        assert end.reject == (how == "rejected")


# Its end. -----------------------------------------------------------------------------------------


def test_draining_gives_back_what_has_not_begun() -> None:
    bench = Bench()
    job = bench.run(message_of("a"))
    bench.take(message_of("b"))
    bench.take(message_of("c", eta=moment(5)))
    effects = bench.service.drain(NOW)
    assert [(type(e), e.job.id) for e in effects] == [(GiveBack, "b"), (GiveBack, "c")]
    assert bench.service.drain(NOW) == []
    (late,) = bench.take(message_of("d"))
    assert isinstance(late, GiveBack)
    assert bench.service.resume(NOW) == [] and kinds(bench.take(message_of("e"))) == ["GiveBack"]
    # What may have begun elsewhere must not come back as if it were new.
    assert bench.take(message_of("f"), Past.BEGUN, "as it came") == [Requeue("as it came")]
    assert kinds(bench.take(message_of("g", task=SAFE, args=[]), Past.BEGUN)) == ["GiveBack"]
    assert kinds(bench.finish(job, 3)) == ["End"]
    for back in effects:
        bench.service.on_done(back.job, back.job.receipt)
    assert bench.service.busy


def test_suspended_it_takes_nothing_until_it_is_resumed() -> None:
    bench = Bench()
    bench.run(message_of("a"))
    bench.take(message_of("b"))
    assert kinds(bench.service.suspend(NOW)) == ["GiveBack"]
    assert kinds(bench.take(message_of("c"))) == ["GiveBack"]
    bench.service.resume(NOW)
    assert bench.take(message_of("d")) == [] and bench.service.waiting == 1


def test_what_is_given_up_is_lost() -> None:
    bench = Bench(2)
    job, safe = bench.run(message_of("a")), bench.run(message_of("b", task=SAFE, args=[]))
    bench.take(message_of("c"))
    effects = bench.service.abandon(NOW)
    assert kinds(effects) == ["GiveBack", "Cancel", "End", "Cancel", "GiveBack"]
    assert effects[2].result.value["exc_type"] == "WorkerLostError"
    assert bench.finish(job, 3) == [] and bench.finish(safe, 3) == []


# What people are told. ----------------------------------------------------------------------------


def test_monitors_are_told_of_each_step() -> None:
    bench = Bench(telling=True)
    chain = [{"task": "proj.next", "options": {"task_id": "y"}}]
    message = message_of(
        shadow="plus", root_id="r", parent_id="p", expires=moment(60), chain=chain,
        argsrepr="(1, 2)", kwargs={"y": 5}, args=[1],
    )  # fmt: skip
    effects = bench.take(message)
    assert told(effects) == [
        (
            "task-received",
            {
                "uuid": "id-1", "name": "plus", "args": "(1, 2)", "kwargs": "{'y': 5}",
                "root_id": "r", "parent_id": "p", "retries": 0, "eta": None,
                "expires": moment(60).isoformat(),
            },
        ),
        ("task-started", {"uuid": "id-1"}),
    ]  # fmt: skip
    effects = bench.finish(effects[-1].job, 3)
    assert kinds(effects) == ["End", "Tell", "Tell"]
    (_, done), (kind, sent) = told(effects)
    assert done == {"uuid": "id-1", "result": "3", "runtime": 2.0}
    assert (kind, sent["uuid"], sent["name"]) == ("task-sent", "y", "proj.next")


def test_monitors_are_told_how_it_ended() -> None:
    bench = Bench(telling=True)
    job = bench.run(message_of("a"))
    ((kind, fields),) = told(bench.finish(job, failure(ValueError("no"))))
    assert (kind, fields["exception"]) == ("task-failed", "ValueError('no')")
    assert fields["traceback"].startswith("Traceback (most recent call last):\n")
    job = bench.run(message_of("b"))
    effects = bench.finish(job, retrying.Again(NOW, failure(ValueError("yet"))))
    (kind, fields), (sent, _) = told(effects)
    assert (kind, fields["exception"], sent) == ("task-retried", "ValueError('yet')", "task-sent")
    ((_, _), (kind, fields)) = told(bench.take(message_of("c", expires=moment(-1))))
    assert (kind, fields) == (
        "task-revoked", {"uuid": "c", "terminated": False, "signum": None, "expired": True}
    )  # fmt: skip
    job = bench.run(message_of("d"))
    bench.service.revoke("d", True, NOW)
    ((_, fields),) = told(bench.finish(job, failure(exceptions.Cancelled())))
    assert (fields["terminated"], fields["signum"]) == (True, "SIGTERM")
    ((_, _), (kind, fields)) = told(bench.take(message_of("e", task="proj.none")))
    assert (kind, fields["exception"]) == ("task-failed", "NotRegistered('proj.none')")
    ((kind, fields),) = told(bench.take(message_of("f", lang="lua")))
    assert (kind, fields) == ("task-rejected", {"uuid": "f", "requeued": False, "requeue": False})
    job = bench.run(message_of("g"))
    ((kind, fields),) = told(bench.finish(job, "x" * 5000))
    assert len(fields["result"]) == 1024


def test_nothing_is_made_for_monitors_that_are_not_there() -> None:
    class Big(list[int]):
        def __repr__(self) -> str:
            raise AssertionError("nobody wants to see it")

    bench = Bench()
    effects = bench.take(message_of())
    assert kinds(effects) == ["Run"] and kinds(bench.finish(effects[0].job, Big())) == ["End"]


def test_inspection() -> None:
    bench = Bench()
    bench.run(message_of("a"))
    bench.take(message_of("b", args=[[1]], argsrepr="([1],)"))
    bench.take(message_of("c", eta=moment(5)))
    (active,) = bench.service.active()
    assert (active["id"], active["name"], active["args"], active["time_start"]) == (
        "a", ADD, [1, 2], NOW
    )  # fmt: skip
    assert active["delivery_info"]["routing_key"] == "q"
    assert [one["args"] for one in bench.service.reserved()] == ["([1],)"]
    (scheduled,) = bench.service.scheduled()
    assert scheduled["eta"] == moment(5).isoformat() and scheduled["request"]["id"] == "c"
    found = bench.service.query(["a", "b", "c", "x", None])
    assert {id: state for id, (state, _) in found.items()} == {
        "a": "active", "b": "reserved", "c": "scheduled"
    }  # fmt: skip
    json.dumps([active, scheduled, found])


def test_a_nested_chord_is_announced_before_it_is_sent() -> None:
    header = {
        "task": "celery.group",
        "subtask_type": "group",
        "kwargs": {"tasks": [{"task": "proj.a"}, {"task": "proj.b"}]},
        "options": {},
    }
    chord = {
        "task": "celery.chord",
        "subtask_type": "chord",
        "kwargs": {"header": header, "body": {"task": "proj.body"}, "kwargs": {}},
        "options": {"task_id": "body"},
    }
    end = Bench().end(message_of(chain=[chord]), 3)
    assert [type(step).__name__ for step in end.steps] == ["CountChord", "Send", "Send"]
    first = end.steps[0]
    assert isinstance(first, CountChord) and first.size == 2
