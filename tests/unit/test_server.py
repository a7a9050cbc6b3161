"""Requests, questions and commands on a worker, without I/O."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict
from typing import Any

import pytest

from tests.unit.trackers import only
from wbengine import __version__, task
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine._text import data_formats
from wbengine.engines.worker_based import endpoint, server
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices, worker_commands
from wbengine.engines.worker_based._messages.requests import Request
from wbengine.engines.worker_based.ledger import _base as ledgers
from wbengine.types import codec
from wbengine.types.failure import Failure

LEDGER = "ledger-1"


class Job(task.Task):
    def execute(self, x: Any) -> Any:
        return x


JOB = f"{__name__}.Job"


class Bench:
    def __init__(
        self, limit: int = 10_000, ledger: str | None = LEDGER, slots: int = 2, **options: Any
    ) -> None:
        self._ledger = ledger
        self.server = server.Server(
            "w1",
            ["t", "u"],
            endpoint.endpoints_of([Job]),
            slots,
            ledger=ledger,
            max_message_size=limit,
            **options,
        )

    def request(
        self,
        receipt: Any = "receipt",
        *,
        id: str = "id-1",
        epoch: Any = 1,
        ledger: Any = LEDGER,
        ours: bool = True,
        redelivered: bool = False,
        reply_to: str | None = "engine",
        more: dict[str, Any] | None = None,
        now: float = 0.0,
        claimed: bool = False,
        **body: Any,
    ) -> list[server.Effect]:
        headers: dict[str, Any] = dict(more or {})
        without = (ledger is None or not ours) and hd.WBE_LEDGER not in headers
        if self.server.ledger != (wanted := None if without else self._ledger):
            self.server.ledger = wanted  # For requests without a ledger.
        if ours:
            headers |= {hd.WBE_VERSION: hd.VERSION, hd.WBE_EPOCH: epoch}
            if ledger is not None:
                headers[hd.WBE_LEDGER] = ledger
        message = env.Envelope(
            pr.REQUEST,
            {
                "action": "execute",
                "arguments": {"x": 1},
                "task_cls": JOB,
                "task_name": "job",
                "task_version": [1, 0],
                **body,
            },
            correlation_id=id,
            reply_to=reply_to,
            headers=headers,
            redelivered=redelivered,
        )
        return self.server.on_request(
            Request.from_message(message), receipt, now, claimed=claimed
        )

    def granted(self, **options: Any) -> server.Job:
        claim = only(server.Claim, self.request(**options))
        effects = self.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
        assert [type(effect) for effect in effects] == [server.Reply, server.Run]
        return claim.job

    def started(self, **options: Any) -> server.Job:
        running, run = self.request(ledger=None, **options)
        assert isinstance(running, server.Reply)
        assert isinstance(run, server.Run)
        return run.job

    def finish(self, job: server.Job, value: Any = 3) -> list[server.Effect]:
        return self.stored(
            self.server.on_finished(job, invocation.Outcome(value, "w1", 1.0, 2.5)), job
        )

    def stored(self, effects: list[server.Effect], job: server.Job) -> list[server.Effect]:
        """Return the effects, including those after the ledger stored the result."""
        if any(isinstance(effect, server.Finish) for effect in effects):
            assert not any(isinstance(e, server.Reply) and e.terminal for e in effects)
            return effects + self.server.on_stored(job)
        return effects

    def ask(self, *asked: tuple[str, int], reply_to: str | None = "heir") -> list[env.Envelope]:
        effects = self.server.on_inquiry(asked, reply_to)
        replies = [effect.envelope for effect in effects if isinstance(effect, server.Reply)]
        assert len(replies) == len(effects)
        assert all(answer.routing_key == reply_to for answer in replies)
        return replies


@pytest.fixture
def bench() -> Bench:
    return Bench()


def ending(effects: list[server.Effect]) -> dict[str, Any]:
    """Return the body of the only terminal reply, which must be last and a valid RESPONSE."""
    terminal = [e for e in effects if isinstance(e, server.Reply) and e.terminal]
    assert len(terminal) == 1
    assert effects[-1] is terminal[0]
    body: dict[str, Any] = json.loads(terminal[0].envelope.encoded)
    pr.Response.validate(body)
    return body


def refusal(effects: list[server.Effect], kind: type[Exception]) -> str:
    body = ending(effects)
    assert body["state"] == pr.FAILURE
    failure = Failure.from_dict(body["data"]["result"])
    assert failure.check(kind), failure
    return failure.exception_str


# Usual course.


def test_request_is_claimed_run_and_answered(bench: Bench) -> None:
    claim = only(server.Claim, bench.request())
    job = claim.job
    assert (job.id, job.epoch, bench.server.running) == ("id-1", 1, 1)
    running, run = bench.server.on_claim(job, ledgers.Claim(ledgers.GRANTED, 1))
    assert isinstance(running, server.Reply)
    assert running.envelope.body == {"state": pr.RUNNING, "data": {}}
    assert not running.terminal
    assert run == server.Run(job)
    assert job.unit is not None
    assert job.unit.arguments == {"x": 1}
    stored, reply = bench.finish(job)
    assert isinstance(stored, server.Finish)
    assert isinstance(reply, server.Reply)
    assert reply.terminal
    answer = reply.envelope
    assert answer.body == {"state": pr.SUCCESS, "data": {"result": 3}}
    assert (answer.routing_key, answer.correlation_id) == ("engine", "id-1")
    assert answer.headers[hd.WBE_WORKER] == "w1"
    assert answer.headers[hd.WBE_EPOCH] == 1
    assert (answer.headers[hd.WBE_STARTED], answer.headers[hd.WBE_ENDED]) == (1.0, 2.5)
    assert env.thaw(env.freeze(stored.answer), "id-1").body == answer.body
    assert (bench.server.running, bench.server.counts) == (0, {pr.SUCCESS: 1})


def test_replies_of_a_request_are_numbered(bench: Bench) -> None:
    job = bench.granted()
    effects = bench.server.on_event(job, "e", {}) + bench.finish(job)
    numbers = [e.envelope.headers[hd.WBE_SEQ] for e in effects if isinstance(e, server.Reply)]
    assert numbers == [2, 3]


def test_second_outcome_and_late_events_are_ignored(bench: Bench) -> None:
    job = bench.granted()
    bench.finish(job)
    assert bench.finish(job) == []
    assert bench.server.on_event(job, "e", {}) == []


def test_outcome_of_a_job_of_another_server_is_ignored(bench: Bench) -> None:
    job = bench.granted()
    other = Bench().granted(id="id-9")
    assert bench.finish(other) == []
    assert bench.server.running == 1
    assert ending(bench.finish(job))


def test_replies_to_taskflow_engines_have_plain_values(bench: Bench) -> None:
    assert ending(bench.finish(bench.granted(), (1, 2)))["state"] == pr.SUCCESS
    plain = bench.started(id="id-2", ours=False)
    assert ending(bench.finish(plain, (1, 2)))["data"] == {"result": [1, 2]}
    plain = bench.started(id="id-3", ours=False)
    assert "TaskFlow's peers" in refusal(bench.finish(plain, {1}), exc.NotEncodable)


# Results of tasks.


def test_failed_task_is_answered_with_its_failure() -> None:
    failure = Failure.from_exception(RuntimeError("Woot!"))
    bench = Bench()
    assert refusal(bench.finish(bench.granted(), failure), RuntimeError) == "Woot!"
    assert bench.server.counts == {pr.FAILURE: 1}


def test_system_exit_of_a_task_is_answered_as_failure(bench: Bench) -> None:
    body = ending(bench.finish(bench.granted(), Failure.from_exception(SystemExit(3))))
    assert body["state"] == pr.FAILURE


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        pytest.param(
            {"a": [1, {2, object()}]}, exc.NotEncodable, ["result['a'][1]"], id="not-encodable"
        ),
        pytest.param(OrderedDict(a=1), exc.NotEncodable, ["lose its type"], id="dict-subclass"),
        pytest.param("x" * 5000, exc.TooLarge, ["job", "4,000"], id="too-large"),
        pytest.param(
            Failure.from_exception(RuntimeError("y" * 100_000)),
            exc.TooLarge,
            ["job", "yyy"],
            id="too-large-failure",
        ),
    ],
)
def test_result_that_cannot_be_sent_is_answered_as_failure(
    value: Any, error: type[Exception], words: list[str]
) -> None:
    bench = Bench(limit=4000)
    text = refusal(bench.finish(bench.granted(), value), error)
    assert all(word in text for word in words)


# Events.


def test_events_are_sent_with_typed_details(bench: Bench) -> None:
    job = bench.granted()
    event = only(server.Reply, bench.server.on_event(job, "update_progress", {"at": (1, 2)}))
    assert not event.terminal
    pr.Response.validate(event.envelope.body)
    assert env.unpacker(True)(event.envelope.body["data"]["details"]) == {"at": (1, 2)}


@pytest.mark.parametrize(
    ("kind", "details"),
    [
        ("e", {"a": object()}),
        ("e", None),
        ("e", 7),
        (None, {}),
        ("e", {"a": "x" * 20_000}),
    ],
    ids=["object", "no_details", "number", "no_type", "too_large"],
)
def test_events_that_cannot_be_encoded_are_dropped(bench: Bench, kind: Any, details: Any) -> None:
    job = bench.granted()
    assert bench.server.on_event(job, kind, details) == []
    assert ending(bench.finish(job))["state"] == pr.SUCCESS


# Rejected requests.


def refused(bench: Bench, **options: Any) -> list[server.Effect]:
    """Submit a request that is rejected after its claim, so that the rejection is final."""
    claim = only(server.Claim, bench.request(**options))
    effects = bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
    effects = bench.stored(effects, claim.job)
    assert isinstance(effects[0], server.Finish)
    assert bench.server.counts == {"refused": 1}
    assert bench.server.running == 0
    return effects


def test_unknown_task_class_is_rejected_with_a_suggestion(bench: Bench) -> None:
    text = refusal(refused(bench, task_cls=JOB + "s"), exc.NotFound)
    assert JOB + "s" in text
    assert f"did you mean '{JOB}'" in text


def test_unreadable_arguments_are_rejected() -> None:
    refusal(refused(Bench(), arguments={"x": {"$wbe": "nonsense"}}), exc.InvalidFormat)


@codec.allow
class Noted(enum.Enum):
    """Enum that records each unknown value that is decoded."""

    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Noted:
        READ.append(value)
        return cls.ONE


READ: list[object] = []


def test_arguments_are_decoded_only_after_the_claim_is_granted() -> None:
    """Decoding may kill the worker, which then counts as a lost worker of the request."""
    READ.clear()
    argument = {"x": {"$wbe": "enum", "c": f"{__name__}.Noted", "n": "poison"}}
    bench = Bench()
    refused(bench, task_cls=JOB + "s", arguments=argument)
    refusal(bench.request(ledger=None, redelivered=True, arguments=argument), exc.WorkerLost)
    claim = only(server.Claim, bench.request(id="id-2", arguments=argument))
    assert READ == []
    bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
    assert READ == ["poison"]


def test_later_protocol_version_is_rejected(bench: Bench) -> None:
    assert bench.granted(more={hd.WBE_VERSION: "1"})
    bench = Bench()
    later = {hd.WBE_VERSION: "999", hd.WBE_LEDGER: LEDGER}
    assert "has message format 999, and wbengine" in refusal(
        refused(bench, ours=False, more=later), exc.IncompatibleVersion
    )


@pytest.mark.parametrize(("named", "held"), [("other", LEDGER), ("other", None), (7, LEDGER)])
def test_request_of_another_ledger_is_rejected(named: Any, held: str | None) -> None:
    bench = Bench(ledger=held)
    effects = bench.request(ledger=named)
    text = refusal(effects, exc.NotFound)
    assert str(named) in text
    assert str(held or "none") in text
    assert bench.server.running == 0


@pytest.mark.parametrize(
    "headers",
    [{}, {hd.WBE_VERSION: hd.VERSION, hd.WBE_EPOCH: 1}],
    ids=["without_headers", "with_epoch"],
)
def test_worker_with_a_ledger_rejects_request_that_uses_no_ledger(
    bench: Bench, headers: dict[str, Any]
) -> None:
    """Without a row, a repeated execution cannot be detected."""
    body = {"action": "execute", "arguments": {"x": 1}, "task_cls": JOB, "task_name": "job"}
    request = env.Envelope(
        pr.REQUEST, body, correlation_id="id-1", reply_to="engine", headers=headers
    )
    text = refusal(bench.server.on_request(Request.from_message(request), "receipt"), exc.NotFound)
    assert "the request uses no ledger" in text and "its ledger ledger-1:" in text
    assert bench.server.running == 0


def test_null_ledger_header_is_rejected() -> None:
    bench = Bench(ledger=None)
    refusal(bench.request(ledger=None, more={hd.WBE_LEDGER: None}), exc.NotFound)
    assert bench.server.running == 0


@pytest.mark.parametrize("reply_to", [None, "", "../up", "a b", "x" * 200, "a.*", "a\nb"])
def test_request_with_invalid_address_is_only_acknowledged(
    bench: Bench, reply_to: str | None
) -> None:
    assert bench.request(reply_to=reply_to) == [server.Acknowledge("receipt")]
    assert bench.request(id="../up") == [server.Acknowledge("receipt")]
    assert bench.server.counts == {"unanswerable": 2}


# Duplicates.


def test_duplicate_of_a_running_request_is_acknowledged(bench: Bench) -> None:
    job = bench.granted()
    assert bench.request("again") == [server.Acknowledge("again")]
    assert ending(bench.finish(job))


def test_duplicate_of_a_done_request_is_answered_from_the_ledger(bench: Bench) -> None:
    stored = bench.finish(bench.granted())[0]
    assert isinstance(stored, server.Finish)
    claim = only(server.Claim, bench.request("again", reply_to="engine"))
    done = ledgers.Claim(ledgers.DONE, 1, env.freeze(stored.answer), "w1")
    effects = bench.server.on_claim(claim.job, done)
    assert ending(effects) == {"state": pr.SUCCESS, "data": {"result": 3}}
    reply = only(server.Reply, effects)
    assert reply.job is claim.job
    assert reply.envelope.headers[hd.WBE_WORKER] == "w1"
    assert bench.server.running == 0


@pytest.mark.parametrize("verdict", [ledgers.HELD, ledgers.MISSING, ledgers.STALE])
def test_request_with_a_refused_claim_does_not_run(bench: Bench, verdict: Any) -> None:
    claim = only(server.Claim, bench.request())
    effects = bench.server.on_claim(claim.job, ledgers.Claim(verdict, 1, holder="w2"))
    assert (bench.server.running, bench.server.counts) == (0, {verdict: 1})
    if verdict == ledgers.MISSING:
        assert effects == [server.Acknowledge("receipt")]
    else:  # The sender must find the owner in the ledger.
        assert told_elsewhere(effects) == "engine"


def test_done_row_without_result_is_only_acknowledged(bench: Bench) -> None:
    claim = only(server.Claim, bench.request())
    effects = bench.server.on_claim(claim.job, ledgers.Claim(ledgers.DONE, 1, b""))
    assert effects == [server.Acknowledge("receipt")]


def test_done_row_with_unreadable_result_is_reported_to_the_engine(bench: Bench) -> None:
    claim = only(server.Claim, bench.request())
    effects = bench.server.on_claim(claim.job, ledgers.Claim(ledgers.DONE, 1, b"garbage"))
    assert told_elsewhere(effects) == "engine"


def told_elsewhere(effects: list[server.Effect]) -> str:
    """Return the address of the reply that reports the request as claimed elsewhere."""
    (reply,) = effects
    assert isinstance(reply, server.Reply) and reply.terminal
    assert reply.envelope.body == {"state": pr.PENDING, "data": {}}
    assert reply.envelope.headers[hd.WBE_ASK] == 0
    pr.Response.validate(reply.envelope.body)
    return reply.envelope.routing_key


def test_duplicate_with_another_address_is_reported_as_claimed(bench: Bench) -> None:
    job = bench.granted()
    assert told_elsewhere(bench.request("again", reply_to="heir")) == "heir"
    assert job.reply_to == "engine"


def test_duplicate_while_the_result_is_stored_is_not_lost(bench: Bench) -> None:
    job = bench.granted()
    bench.server.on_finished(job, invocation.Outcome(3))
    assert told_elsewhere(bench.request("again")) == "engine"
    assert ending(bench.server.on_stored(job))["data"] == {"result": 3}


def test_ended_job_is_held_until_its_result_is_stored(bench: Bench) -> None:
    job = bench.granted()
    assert (bench.server.running, bench.server.holding) == (1, 1)
    bench.server.on_finished(job, invocation.Outcome(3))
    assert (bench.server.running, bench.server.holding) == (0, 1)
    bench.server.on_stored(job)
    assert bench.server.holding == 0


def test_replies_to_taskflow_engine_have_no_headers() -> None:
    bench = Bench(ledger=None)
    job = bench.started(ours=False)
    again = bench.request("r", ours=False, reply_to="x", redelivered=True)
    assert again == [server.Acknowledge("r")]
    running, ended = bench.finish(job)
    assert isinstance(running, server.Reply) and isinstance(ended, server.Reply)
    assert running.envelope.headers == ended.envelope.headers == {}
    # TaskFlow's engine cannot process SUCCESS without RUNNING, so RUNNING is sent again.
    assert (running.envelope.body["state"], running.terminal) == (pr.RUNNING, False)


def test_redelivered_request_of_taskflow_engine_does_not_run_again() -> None:
    bench = Bench(ledger=None)
    bench.finish(bench.started(ours=False))
    assert bench.request("r", ours=False, redelivered=True) == [server.Acknowledge("r")]
    (lost,) = bench.request(id="other", ours=False, redelivered=True)
    assert isinstance(lost, server.Reply) and lost.envelope.headers == {}
    assert "WorkerLost" in str(lost.envelope.body)


# Questions of engines that resume a flow.


def test_engine_that_asks_receives_later_replies(bench: Bench) -> None:
    job = bench.granted()
    (reply_to_question,) = bench.ask(("id-1", 2048))
    assert (reply_to_question.body["state"], reply_to_question.headers[hd.WBE_ASK]) == (
        pr.RUNNING,
        2048,
    )
    assert reply_to_question.headers[hd.WBE_STARTED] == job.began
    (event,) = bench.server.on_event(job, "update", {"n": 1})
    assert isinstance(event, server.Reply) and event.envelope.routing_key == "heir"
    _, reply = bench.finish(job)
    assert isinstance(reply, server.Reply) and reply.envelope.routing_key == "heir"
    assert reply.envelope.headers[hd.WBE_EPOCH] == 1


def test_question_of_an_earlier_owner_is_ignored(bench: Bench) -> None:
    job = bench.granted()
    bench.ask(("id-1", 3072), reply_to="second")
    assert bench.ask(("id-1", 2048), reply_to="first") == []
    assert job.reply_to == "second"


def test_question_with_a_lower_epoch_than_the_request_is_ignored(bench: Bench) -> None:
    """The question was sent before another engine acquired the flow and resent the request."""
    job = bench.granted(epoch=3072)
    assert bench.ask(("id-1", 2048), reply_to="first") == []
    assert job.reply_to == "engine"


def test_question_while_the_result_is_stored_is_answered_afterwards(bench: Bench) -> None:
    job = bench.granted()
    bench.server.on_finished(job, invocation.Outcome(3))
    assert bench.ask(("id-1", 2048)) == []
    first, reply = bench.server.on_stored(job)
    assert isinstance(first, server.Reply) and first.terminal
    assert isinstance(reply, server.Reply) and not reply.terminal
    assert (first.envelope.routing_key, reply.envelope.routing_key) == ("engine", "heir")
    assert reply.envelope.body["state"] == pr.SUCCESS


@pytest.mark.parametrize("fenced", [False, True])
def test_result_stored_and_sent_in_one_step_releases_the_job(bench: Bench, fenced: bool) -> None:
    asked, job = bench.granted(), bench.granted(id="id-2")
    for ended in (asked, job):
        bench.server.on_finished(ended, invocation.Outcome(3))
    assert bench.ask(("id-1", 2048)) == []
    assert bench.server.on_stored_and_sent(job, fenced) == []
    effects = bench.server.on_stored_and_sent(asked, fenced)
    assert bench.server.holding == 0 and ids(bench) == []
    if fenced:
        assert effects == [] and bench.server.counts["fenced"] == 2
    else:  # The engine that asked also receives the result.
        (reply,) = effects
        assert isinstance(reply, server.Reply) and not reply.terminal and reply.job is None
        assert reply.envelope.routing_key == "heir"
        assert reply.envelope.body == {"state": pr.SUCCESS, "data": {"result": 3}}


def test_with_ledger_question_about_unknown_request_is_denied(bench: Bench) -> None:
    job = bench.granted()
    bench.finish(job)
    bench.server.on_answered(job)
    (answer,) = bench.ask(("id-1", 2048))
    assert (answer.body["state"], answer.correlation_id) == (pr.PENDING, "id-1")
    assert answer.headers[hd.WBE_ASK] == 2048 and answer.headers[hd.WBE_WORKER] == "w1"


def test_without_ledger_questions_are_answered_from_memory() -> None:
    bench = Bench(ledger=None)
    bench.finish(bench.started(), 7)
    bench.started(id="id-2")
    done, denied, running = bench.ask(("id-1", 9), ("id-0", 9), ("id-2", 9))
    assert (denied.correlation_id, denied.body["state"]) == ("id-0", pr.PENDING)
    assert (done.body["data"], done.headers[hd.WBE_EPOCH]) == ({"result": 7}, 1)
    assert (running.correlation_id, running.body["state"]) == ("id-2", pr.RUNNING)


@pytest.mark.parametrize("reply_to", [None, "", "../up", "a b"])
def test_question_with_invalid_address_is_not_answered(bench: Bench, reply_to: str | None) -> None:
    bench.granted()
    assert bench.ask(("id-1", 2), reply_to=reply_to) == []
    assert bench.server.counts == {"unanswerable": 1}


@pytest.mark.parametrize(
    ("kind", "name"), [(worker_commands.ASK, "asked"), (worker_commands.CANCEL, "cancel")]
)
def test_commands_with_malformed_request_lists_are_rejected(kind: str, name: str) -> None:
    malformed = [
        None, 1, [1], [["a"]], [["a", "1"]], [[1, 1]], [["a", True]], [["../a", 1]],
        [["a" * 300, 1]], [["a", 1]] * 501, [["a", -1]], [["a", 2**53 + 1]],
    ]  # fmt: skip
    for body in ({}, [], None, *({name: pairs} for pairs in malformed)):
        with pytest.raises(exc.InvalidFormat):
            worker_commands.SCHEMAS[kind].check(body)


def test_questions_are_split_into_messages_of_500_requests() -> None:
    messages = list(worker_commands.inquiries([(f"id-{n}", n) for n in range(1001)], "all", "me"))
    assert [len(question.body["asked"]) for question in messages] == [500, 500, 1]
    for question in messages:
        worker_commands.SCHEMAS[worker_commands.ASK].check(json.loads(question.encoded))
    assert worker_commands.Inquiry.from_message(messages[2]).requests == [("id-1000", 1000)]


def test_without_ledger_duplicate_receives_the_same_reply(bench: Bench) -> None:
    job = bench.started()
    assert bench.request("again", ledger=None) == [server.Acknowledge("again")]
    first = bench.finish(job)
    assert ending(first) == ending(bench.request("again", ledger=None))
    assert bench.server.counts == {pr.SUCCESS: 1, "repeated": 2}


def test_without_ledger_only_a_higher_epoch_runs_again(bench: Bench) -> None:
    first = bench.started()
    second = bench.started(epoch=2)
    assert bench.server.running == 2
    assert bench.request("old", ledger=None) == [server.Acknowledge("old")]
    for job in (first, second):
        reply = only(server.Reply, bench.finish(job, job.epoch))
        assert reply.envelope.headers[hd.WBE_EPOCH] == job.epoch
    assert bench.request("old", ledger=None) == [server.Acknowledge("old")]
    assert ending(bench.request("again", ledger=None, epoch=2))["data"] == {"result": 2}


def test_without_ledger_redelivered_request_is_reported_lost(bench: Bench) -> None:
    effects = bench.request(ledger=None, redelivered=True)
    assert "without a ledger" in refusal(effects, exc.WorkerLost)
    assert bench.server.running == 0
    # A running copy of the request is not affected.
    job = bench.started(id="id-2")
    again = bench.request("again", id="id-2", ledger=None, redelivered=True)
    assert again == [server.Acknowledge("again")]
    assert ending(bench.finish(job))["state"] == pr.SUCCESS


def test_with_ledger_redelivered_request_is_claimed() -> None:
    only(server.Claim, Bench().request(redelivered=True))


def test_number_of_remembered_replies_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REMEMBERED", 3)
    bench = Bench()
    for number in range(5):
        bench.finish(bench.started(id=f"id-{number}"))
    assert ending(bench.request(id="id-4", ledger=None))
    assert ending(bench.request(id="id-2", ledger=None))
    assert bench.started(id="id-1")


def test_bytes_of_remembered_replies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    reply = only(server.Reply, bench.finish(bench.started(id="id-0")))
    monkeypatch.setattr(server, "MAX_REMEMBERED_BYTES", int(2.5 * len(reply.envelope.encoded)))
    for number in range(1, 5):
        bench.finish(bench.started(id=f"id-{number}"))
    assert bench.request("old", id="id-2", ledger=None) == [server.Acknowledge("old")]
    assert ending(bench.request(id="id-3", ledger=None))
    assert ending(bench.request(id="id-4", ledger=None))


@pytest.mark.parametrize("epoch", [-1, 1.5, "2", True, None, 10**400])
def test_invalid_epoch_is_read_as_one(epoch: Any) -> None:
    claim = only(server.Claim, Bench().request(epoch=epoch))
    assert claim.job.epoch == 1


# Notices and heartbeats.


def test_notify_question_is_answered_for_each_topic(bench: Bench) -> None:
    bench.granted()
    effects = bench.server.on_query("engine", 5.0)
    assert all(isinstance(e, server.Reply) and e.job is None for e in effects)
    answers = [effect.envelope for effect in effects if isinstance(effect, server.Reply)]
    assert [answer.body for answer in answers] == [
        {"topic": "t", "tasks": [JOB]},
        {"topic": "u", "tasks": [JOB]},
    ]
    for answer in answers:
        pr.Notify.validate(answer.body, response=True)
        assert answer.routing_key == "engine"
    assert answers[0].headers == {
        hd.WBE_VERSION: hd.VERSION,
        hd.WBE_WORKER: "w1",
        hd.WBE_STATE: notices.READY,
        hd.WBE_FORMATS: list(data_formats.MESSAGE.read),
        hd.WBE_SLOTS: 2,
        hd.WBE_RUNNING: 1,
        hd.WBE_PERIOD: 5.0,
        hd.WBE_IDS: ["id-1"],
        hd.WBE_LIFE: {"state": "busy", "current": [["id-1", "job"]]},
        hd.WBE_SOFTWARE: __version__,
        hd.WBE_LEDGER: LEDGER,
    }
    bench.server.ledger = "dir-1"
    for effects_of_notice, known in (
        (bench.server.on_query("engine", 5.0), True),
        (bench.server.heartbeat.beat(5.0), False),
    ):
        assert all((hd.WBE_LEDGER in e.envelope.headers) == known for e in effects_of_notice)  # type: ignore[union-attr]


@pytest.mark.parametrize("reply_to", [None, "", "../up", "a b"])
def test_notify_question_with_invalid_address_is_ignored(reply_to: str | None) -> None:
    assert Bench().server.on_query(reply_to, 5.0) == []


def test_heartbeats_are_sent_to_engines_of_running_requests() -> None:
    bench = Bench(slots=4)
    assert bench.server.heartbeat.beat(5.0) == []
    job = bench.granted(reply_to="engine-1")
    bench.granted(id="id-2", reply_to="engine-1")
    bench.granted(id="id-3", reply_to="engine-2")
    bench.started(id="id-4", reply_to="plain", ours=False)
    keys = [
        e.envelope.routing_key
        for e in bench.server.heartbeat.beat(5.0)
        if isinstance(e, server.Reply)
    ]
    assert keys == ["engine-1"] * 2 + ["engine-2"] * 2
    bench.finish(job)
    assert len(bench.server.heartbeat.beat(5.0)) == 4


# Lost, cancelled and expired requests.


def kinds(effects: list[server.Effect]) -> list[type]:
    return [type(effect) for effect in effects]


def terminal(effects: list[server.Effect]) -> env.Envelope:
    (reply,) = [e.envelope for e in effects if isinstance(e, server.Reply) and e.terminal]
    return reply


def test_lost_request_is_reported_but_not_remembered() -> None:
    bench = Bench(ledger=None)
    for _ in range(2):
        answer = terminal(bench.request(ledger=None, redelivered=True))
        assert answer.headers[hd.WBE_LOST] == 1
    (denied,) = bench.ask(("id-1", 1))
    assert denied.body["state"] == pr.PENDING
    # A copy that was not delivered before may still arrive, and runs.
    answer = terminal(bench.finish(bench.started(), 7))
    assert hd.WBE_LOST not in answer.headers and answer.body["data"] == {"result": 7}
    assert bench.server.counts == {"lost": 2, pr.SUCCESS: 1}


def test_row_claimed_by_this_worker_without_a_job_is_lost(bench: Bench) -> None:
    claim = only(server.Claim, bench.request())
    answer = terminal(bench.server.on_claim(claim.job, ledgers.Claim(ledgers.HELD, 1, holder="w1")))
    assert answer.headers[hd.WBE_LOST] == 1


def test_broadcast_question_about_unknown_request_is_ignored() -> None:
    bench = Bench(ledger=None)
    assert bench.server.on_inquiry([("id-1", 1)], "engine", to_this_worker=False) == []


@pytest.mark.parametrize(("expires", "runs"), [(100.0, True), (99.9, False)])
def test_expired_request_is_rejected(expires: float, runs: bool) -> None:
    bench = Bench(ledger=None)
    effects = bench.request(ledger=None, more={hd.EXPIRES: expires}, now=100.0)
    assert (server.Run in kinds(effects)) == runs
    if not runs:
        refusal(effects, exc.Expired)
        assert ending(bench.request("again", ledger=None)) == ending(effects)


def test_with_ledger_expires_header_is_ignored() -> None:
    job = Bench().granted(more={hd.EXPIRES: 5.0}, now=100.0)
    assert job.expires is None


@pytest.mark.parametrize(
    "value",
    [float("nan"), "soon", -1, None, True, [1]],
    ids=["nan", "text", "negative", "none", "bool", "list"],
)
def test_invalid_expires_header_is_ignored(value: Any) -> None:
    bench = Bench(ledger=None)
    assert bench.started(more={hd.EXPIRES: value}, now=100.0).expires is None


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        pytest.param([10, 5], (5.0, 10.0), id="both"),
        pytest.param([10.5, None], (None, 10.5), id="hard"),
        pytest.param([None, 2], (2.0, None), id="soft"),
        pytest.param((None, None), (None, None), id="two_none"),
        pytest.param(None, (None, None), id="none"),
        pytest.param([5, 10], (None, None), id="soft_above_hard"),
        pytest.param([0, 0], (None, None), id="zero"),
        pytest.param([1], (None, None), id="one_value"),
        pytest.param("ab", (None, None), id="text"),
        pytest.param(7, (None, None), id="number"),
        pytest.param([10**400, 1], (None, None), id="huge"),
        pytest.param({"hard": 1, "soft": 2}, (None, None), id="dict"),
    ],
)
def test_time_limit_header_has_hard_limit_first(value: Any, limit: tuple[Any, Any]) -> None:
    assert Bench().granted(more={hd.TIMELIMIT: value}).limit == limit


def test_running_request_is_cancelled_once_and_keeps_its_result(bench: Bench) -> None:
    job = bench.granted()
    assert bench.server.on_cancel([("id-1", 1), ("id-2", 1)]) == [server.Cancel(job)]
    assert bench.server.on_cancel([("id-1", 1)]) == []
    assert ending(bench.finish(job, 7))["data"] == {"result": 7}


def test_cancel_of_a_lower_epoch_is_ignored(bench: Bench) -> None:
    job = bench.granted(epoch=3)
    assert bench.server.on_cancel([("id-1", 2)]) == []
    assert bench.server.on_cancel([("id-1", 4)]) == [server.Cancel(job)]


def test_request_cancelled_while_claimed_does_not_run(bench: Bench) -> None:
    claim = only(server.Claim, bench.request())
    assert bench.server.on_cancel([("id-1", 1)]) == []
    effects = bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
    refusal(bench.stored(effects, claim.job), exc.Cancelled)
    assert bench.server.counts == {"cancelled": 1}


def test_without_ledger_request_cancelled_before_arrival_is_rejected() -> None:
    bench = Bench(ledger=None)
    assert bench.server.on_cancel([("id-1", 2)]) == []
    refusal(bench.request(ledger=None), exc.Cancelled)
    refusal(bench.request(ledger=None, epoch=2), exc.Cancelled)
    assert bench.started(epoch=3)  # It was resent after the cancellation.
    assert bench.server.counts == {"cancelled": 2}


def test_cancel_of_an_ended_request_keeps_its_reply() -> None:
    bench = Bench(ledger=None)
    done = bench.finish(bench.started(), 5)
    bench.server.on_cancel([("id-1", 1)])
    assert ending(bench.request(ledger=None)) == ending(done)


def test_number_of_remembered_cancellations_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REMEMBERED", 3)
    bench = Bench(ledger=None)
    for number in range(5):
        bench.server.on_cancel([(f"id-{number}", 1)])
    refusal(bench.request(id="id-2", ledger=None), exc.Cancelled)
    assert bench.started(id="id-1")


# Slots.


def test_requests_over_the_slots_wait_without_a_running_reply() -> None:
    bench = Bench(ledger=None, slots=1)
    first = bench.started()
    assert bench.request(id="id-2", ledger=None) == []
    assert bench.request(id="id-3", ledger=None) == []
    answer, running, run = bench.finish(first)
    assert isinstance(answer, server.Reply) and answer.terminal
    assert isinstance(running, server.Reply) and running.envelope.correlation_id == "id-2"
    assert isinstance(run, server.Run) and run.job.id == "id-2"
    assert bench.server.life.current == (("id-2", "job"),)


def test_request_waiting_for_a_slot_can_be_cancelled() -> None:
    bench = Bench(slots=1)
    first = bench.granted()
    claim = only(server.Claim, bench.request(id="id-2"))
    assert bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1)) == []
    effects = bench.server.on_cancel([("id-2", 1)])
    refusal(bench.stored(effects, claim.job), exc.Cancelled)
    assert kinds(bench.finish(first)) == [server.Finish, server.Reply]


def row(**other: Any) -> ledgers.Row:
    return ledgers.Row(**{"id": "id-1", "epoch": 1, "state": "claimed", "holder": "w1", **other})


@pytest.mark.parametrize(
    ("found", "runs"),
    [
        (row(), True),
        (None, False),
        (row(epoch=2), False),
        (row(holder="w2"), False),
        (row(state="open", epoch=2, holder=None), False),
        (row(state="done"), False),
    ],
    ids=["own_claim", "missing_row", "other_epoch", "other_worker", "open_row", "done_row"],
)
def test_delayed_job_runs_only_if_its_claim_is_still_valid(
    bench: Bench, found: Any, runs: bool
) -> None:
    job = bench.granted()
    assert bench.server.on_unstarted(job) == [server.Check(job)]
    effects = bench.server.on_checked(job, found)
    assert effects == ([server.Run(job)] if runs else [server.Acknowledge("receipt")])
    assert bench.server.running == int(runs)
    assert bench.server.counts["thawed"] == int(not runs)
    if not runs:  # No reply: another worker owns the request.
        assert bench.finish(job) == [] == bench.server.on_unstarted(job)


class Observed:
    """Records the events of jobs."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda job, *rest: self.events.append(f"{name} {job.id}")


@pytest.mark.parametrize("found", [None, row(state="open", holder=None)])
def test_observer_receives_return_of_delayed_job(found: Any) -> None:
    observer = Observed()
    bench = Bench(observers=[observer])
    bench.server.on_checked(bench.granted(), found)
    assert observer.events == ["received id-1", "started id-1", "returned id-1"]


def test_observer_receives_jobs_that_a_stopped_worker_gives_up() -> None:
    observer = Observed()
    bench = Bench(observers=[observer])
    bench.granted()
    bench.server.shut_down(1.0)
    assert observer.events == ["received id-1", "started id-1", "given_up id-1"]


def test_renamed_ledger_is_announced_and_former_names_are_accepted() -> None:
    changing = Bench().server
    changing.rename_ledger("new", "older")
    assert changing.ledger == "new"
    assert all(map(changing.is_known_ledger, ["new", LEDGER, "older"]))
    assert not changing.is_known_ledger("other")


def test_fenced_result_is_acknowledged_without_a_reply(bench: Bench) -> None:
    job = bench.granted()
    only(server.Finish, bench.server.on_finished(job, invocation.Outcome(1)))
    assert bench.server.on_stored(job, fenced=True) == [server.Acknowledge("receipt")]
    assert bench.server.counts["fenced"] == 1
    assert ids(bench) == []


def ids(bench: Bench) -> list[str]:
    notice = bench.server.on_query("engine", 5.0)[0]
    assert isinstance(notice, server.Reply)
    running_ids: list[str] = notice.envelope.headers[hd.WBE_IDS]
    return running_ids


def test_request_is_listed_until_its_reply_is_published(bench: Bench) -> None:
    job = bench.granted()
    bench.granted(id="id-2", reply_to="another")
    assert ids(bench) == ["id-1"]
    bench.server.on_finished(job, invocation.Outcome(1))
    assert ids(bench) == ["id-1"]
    assert terminal(bench.server.on_stored(job))
    assert ids(bench) == ["id-1"]  # A heartbeat may arrive before the reply.
    bench.server.on_answered(job)
    assert ids(bench) == []
    for notice in bench.server.heartbeat.announce_tasks(env.ALL_ENGINES, None):
        assert isinstance(notice, server.Reply) and hd.WBE_IDS not in notice.envelope.headers


# State of the worker.


def notices_in(effects: list[server.Effect]) -> list[tuple[str, Any, str, int]]:
    """Return receiver, kind, worker state and busy slots of each notice."""
    replies = [e.envelope for e in effects if isinstance(e, server.Reply) and e.job is None]
    return [
        (
            notice.routing_key,
            notice.headers[hd.WBE_STATE],
            notice.headers[hd.WBE_LIFE]["state"],
            notice.headers[hd.WBE_RUNNING],
        )
        for notice in replies
        if notice.body["topic"] == "t"
    ]


def test_server_announces_ready_draining_and_stopped_once() -> None:
    bench = Bench(birth=10.0)
    assert bench.server.life.state == "started"
    ready = bench.server.heartbeat.announce_tasks(env.ALL_ENGINES, None)
    assert notices_in(ready) == [(env.ALL_ENGINES, notices.READY, "idle", 0)]
    job = bench.granted()
    assert bench.server.life.state == "busy"
    bench.finish(job)
    failure = Failure.from_exception(RuntimeError("no"))
    bench.finish(bench.granted(id="id-2"), failure)
    life = bench.server.life
    assert (life.successes, life.failures, life.working) == (1, 1, 3.0)
    assert notices_in(bench.server.drain(20.0)) == [(env.ALL_ENGINES, notices.BEAT, "draining", 2)]
    assert bench.server.drain(30.0) == []
    dead = [(env.ALL_ENGINES, notices.STOPPED, "dead", 2)]
    assert notices_in(bench.server.shut_down(40.0)) == dead
    assert bench.server.shut_down(50.0) == []
    life = bench.server.life
    assert (life.birth, life.shutdown_requested, life.death) == (10.0, 20.0, 40.0)


def test_suspended_server_returns_requests_and_finishes_running_ones() -> None:
    bench = Bench(ledger=None)
    bench.server.heartbeat.announce_tasks(env.ALL_ENGINES, None)
    job = bench.started()
    assert notices_in(bench.server.suspend()) == [(env.ALL_ENGINES, notices.BEAT, "suspended", 2)]
    assert bench.server.suspend() == []
    (back,) = bench.request("r2", id="id-2", ledger=None)
    assert isinstance(back, server.Return) and back.fresh and back.job.receipt == "r2"
    assert ending(bench.finish(job))
    assert notices_in(bench.server.resume()) == [(env.ALL_ENGINES, notices.BEAT, "idle", 0)]
    assert bench.server.resume() == []
    assert bench.started(id="id-2")  # The requeued copy.


def test_suspended_server_reports_redelivered_request_lost() -> None:
    bench = Bench(ledger=None)
    bench.server.suspend()
    answer = terminal(bench.request(ledger=None, redelivered=True))
    assert answer.headers[hd.WBE_LOST] == 1


def test_drain_cannot_be_ended_by_resume_or_suspend() -> None:
    bench = Bench(ledger=None)
    bench.server.suspend()
    bench.server.drain(1.0)
    assert bench.server.resume() == [] == bench.server.suspend()
    only(server.Return, bench.request(ledger=None))
    draining = [("engine", notices.BEAT, "draining", 2)]
    assert notices_in(bench.server.on_query("engine", 5.0)) == draining


def test_draining_server_returns_requests_without_a_claim(bench: Bench) -> None:
    bench.server.drain(1.0)
    (back,) = bench.request()
    assert isinstance(back, server.Return) and not back.fresh
    # A request that was claimed on receipt is released first.
    claim = only(server.Claim, bench.request("r", claimed=True))
    effects = bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
    assert effects == [server.Release(claim.job)]
    assert bench.server.on_released(claim.job, True) == [server.Return(claim.job, False)]
    assert bench.server.running == 0


@pytest.mark.parametrize("arguments", [{"x": 1, "new": 2}, {}])
def test_unaccepted_arguments_return_the_request_later(
    bench: Bench, arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker may have the code of the engine."""
    claim = only(server.Claim, bench.request(arguments=arguments))
    assert bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1)) == []
    assert "does not accept the arguments" in caplog.text
    assert bench.server.return_unaccepted() == [server.Release(claim.job)]
    assert bench.server.return_unaccepted() == []
    assert bench.server.on_released(claim.job, False) == []
    assert bench.server.return_unaccepted() == [server.Release(claim.job)]
    assert bench.server.on_released(claim.job, True) == [server.Return(claim.job, False)]
    assert bench.server.running == 0


def test_unaccepted_request_without_ledger_returns_as_new_message() -> None:
    bench = Bench(ledger=None)
    assert bench.request(ledger=None, arguments={"y": 1}) == []
    back = only(server.Return, bench.server.return_unaccepted())
    assert back.fresh
    assert bench.started()


def test_unaccepted_request_that_is_cancelled_is_refused(bench: Bench) -> None:
    claim = only(server.Claim, bench.request(arguments={"y": 1}))
    bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
    bench.server.on_cancel([("id-1", 1)])
    effects = bench.stored(bench.server.return_unaccepted(), claim.job)
    assert "Cancelled" in str(ending(effects))


def test_unaccepted_arguments_of_taskflow_fail_the_request() -> None:
    bench = Bench(ledger=None)
    effects = bench.request(ours=False, ledger=None, arguments={"y": 1})
    assert server.Run in kinds(effects)


def test_code_version_is_announced() -> None:
    bench = Bench(code_version="v43")
    announced = bench.server.on_query("engine", 5.0)[0]
    assert isinstance(announced, server.Reply)
    assert notices.Heartbeat.from_message(announced.envelope).code == "v43"


def test_request_with_a_failed_release_runs_while_draining() -> None:
    bench = Bench(slots=1)
    job = bench.granted()
    claim = only(server.Claim, bench.request(id="id-2"))
    bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
    *_, release = bench.server.drain(1.0)
    assert release == server.Release(claim.job)
    assert bench.server.on_released(claim.job, False) == []
    assert bench.server.running == 2
    assert kinds(bench.finish(job)) == [server.Finish, server.Reply, server.Run, server.Reply]
    assert ending(bench.finish(claim.job))


def test_request_released_without_confirmation_is_returned(bench: Bench) -> None:
    """The request is not lost either, because its message is not acknowledged."""
    job = bench.granted()
    assert bench.server.on_unstarted(job) == [server.Check(job)]
    released = row(state="open", holder=None)
    assert bench.server.on_checked(job, released) == [server.Return(job, fresh=False)]
    assert bench.server.running == 0 and bench.finish(job) == []


def test_drain_returns_requests_waiting_for_a_slot() -> None:
    bench = Bench(ledger=None, slots=1)
    job = bench.started()
    bench.request("r2", id="id-2", ledger=None)
    *_, back = bench.server.drain(1.0)
    assert isinstance(back, server.Return) and back.job.receipt == "r2"
    assert kinds(bench.finish(job)) == [server.Reply]
    assert bench.server.running == 0


def test_server_drains_after_max_tasks() -> None:
    bench = Bench(ledger=None, max_tasks=2)
    first = bench.started()
    *_, drain = bench.request(id="id-2", ledger=None)
    assert drain == server.Drain()
    for number in (3, 4):
        only(server.Return, bench.request(id=f"id-{number}", ledger=None))
    assert kinds(bench.finish(first)) == [server.Reply]


def test_server_ignores_results_and_events_after_shutdown(bench: Bench) -> None:
    job = bench.granted()
    bench.server.shut_down(1.0)
    assert bench.finish(job) == []
    assert bench.server.on_event(job, "e", {}) == []
    assert bench.server.on_released(job, False) == []
    assert bench.server.on_checked(job, row()) == []


def test_question_about_an_unpublished_result_receives_the_result(bench: Bench) -> None:
    """Result and reply could not be sent yet, so a denial would arrive before the reply."""
    bench.finish(bench.granted(), 7)
    (reply,) = bench.ask(("id-1", 2048))
    assert reply.body == {"state": pr.SUCCESS, "data": {"result": 7}}


# Plain protocol of TaskFlow.


def test_plain_server_answers_taskflow_notify_without_headers() -> None:
    """With a period, the worker would count as lost: the next question may reach another worker."""
    bench = Bench(ledger=None, plain=True)
    notices_sent = [reply.envelope for reply in bench.server.on_query("engine", 5.0)]  # type: ignore[union-attr]
    assert [(notice.body["topic"], notice.headers) for notice in notices_sent] == [
        ("t", {}),
        ("u", {}),
    ]
    assert all(notice.body["tasks"] == [JOB] for notice in notices_sent)


@pytest.mark.parametrize("ending", [True, False])
def test_draining_or_suspended_plain_server_ignores_notify(ending: bool) -> None:
    """TaskFlow would conclude from an empty list that no worker of the topic offers any task."""
    bench = Bench(ledger=None, plain=True)
    bench.server.drain(0.0) if ending else bench.server.suspend()
    assert bench.server.on_query("engine", 5.0) == []
