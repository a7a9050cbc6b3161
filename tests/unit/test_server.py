"""A worker's side, told one thing at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wbengine import exceptions as exc
from wbengine import invocation, task
from wbengine.engines.worker_based import asking, endpoint, recent, server
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.types.failure import Failure

LEDGER = "ledger-1"


class Job(task.Task):
    def execute(self, x: Any) -> Any:
        return x


JOB = f"{__name__}.Job"


class Bench:
    def __init__(self, limit: int = 10_000, ledger: str | None = LEDGER) -> None:
        self.server = server.Server(
            "w1",
            {"t": "t.abc", "u": "u.abc"},
            endpoint.endpoints_of([Job]),
            2,
            ledger=ledger,
            max_message_size=limit,
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
        **body: Any,
    ) -> list[server.Effect]:
        headers: dict[str, Any] = {}
        if ours:
            headers = {env.WBE_VERSION: env.VERSION, env.WBE_EPOCH: epoch}
            if ledger is not None:
                headers[env.WBE_LEDGER] = ledger
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
        return self.server.on_request(message, receipt)

    def granted(self, **options: Any) -> server.Job:
        (claim,) = self.request(**options)
        assert isinstance(claim, server.Claim)
        effects = self.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
        assert [type(effect) for effect in effects] == [server.Reply, server.Run]
        return claim.job

    def started(self, **options: Any) -> server.Job:
        running, run = self.request(ledger=None, **options)
        assert isinstance(running, server.Reply)
        assert isinstance(run, server.Run)
        return run.job

    def finish(self, job: server.Job, value: Any = 3) -> list[server.Effect]:
        effects = self.server.on_finished(job, invocation.Outcome(value, "w1", 1.0, 2.5))
        if any(isinstance(effect, server.Finish) for effect in effects):
            assert self.server.on_stored(job) == []
        return effects

    def ask(self, *asked: tuple[str, int], reply_to: str | None = "heir") -> list[env.Envelope]:
        effects = self.server.on_ask(asked, reply_to)
        found = [effect.envelope for effect in effects if isinstance(effect, server.Reply)]
        assert len(found) == len(effects)
        assert all(answer.routing_key == reply_to for answer in found)
        return found


def ending(effects: list[server.Effect]) -> dict[str, Any]:
    """The body of the only, and last, terminal answer among `effects`; it is a valid RESPONSE."""
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


# The usual way -----------------------------------------------------------------------------------


def test_claim_run_answer() -> None:
    bench = Bench()
    (claim,) = bench.request()
    assert isinstance(claim, server.Claim)
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
    assert answer.headers[env.WBE_WORKER] == "w1"
    assert answer.headers[env.WBE_EPOCH] == 1
    assert (answer.headers[env.WBE_STARTED], answer.headers[env.WBE_ENDED]) == (1.0, 2.5)
    assert env.thaw(stored.frozen, "id-1").body == answer.body
    assert (bench.server.running, bench.server.counts) == (0, {pr.SUCCESS: 1})


def test_answers_are_numbered() -> None:
    bench = Bench()
    job = bench.granted()
    effects = bench.server.on_event(job, "e", {}) + bench.finish(job)
    numbers = [e.envelope.headers[env.WBE_SEQ] for e in effects if isinstance(e, server.Reply)]
    assert numbers == [2, 3]


def test_a_second_end_is_nothing() -> None:
    bench = Bench()
    job = bench.granted()
    bench.finish(job)
    assert bench.finish(job) == []
    assert bench.server.on_event(job, "e", {}) == []


def test_an_end_before_its_start_is_nothing() -> None:
    bench = Bench()
    job = bench.granted()
    other = Bench().granted(id="id-9")
    assert bench.finish(other) == []
    assert bench.server.running == 1
    assert ending(bench.finish(job))


def test_typed_values_to_our_own_plain_ones_to_others() -> None:
    bench = Bench()
    assert ending(bench.finish(bench.granted(), (1, 2)))["state"] == pr.SUCCESS
    plain = bench.started(id="id-2", ours=False)
    assert "plain" in refusal(bench.finish(plain, (1, 2)), exc.NotEncodable)


# Whatever a task does ----------------------------------------------------------------------------


def test_a_failure_is_an_answer() -> None:
    failure = Failure.from_exception(RuntimeError("Woot!"))
    bench = Bench()
    assert refusal(bench.finish(bench.granted(), failure), RuntimeError) == "Woot!"
    assert bench.server.counts == {pr.FAILURE: 1}


def test_an_exit_is_an_answer() -> None:
    bench = Bench()
    body = ending(bench.finish(bench.granted(), Failure.from_exception(SystemExit(3))))
    assert body["state"] == pr.FAILURE


def test_a_result_that_can_not_be_sent_is_a_failure_with_its_path() -> None:
    bench = Bench()
    text = refusal(bench.finish(bench.granted(), {"a": [1, {2, object()}]}), exc.NotEncodable)
    assert text.startswith("result['a'][1]")


def test_a_result_that_is_too_large_is_a_failure_with_figures() -> None:
    bench = Bench(limit=2000)
    text = refusal(bench.finish(bench.granted(), "x" * 3000), exc.TooLarge)
    assert "job" in text
    assert "2,000" in text


def test_a_failure_that_is_too_large_is_a_smaller_one() -> None:
    bench = Bench(limit=4000)
    failure = Failure.from_exception(RuntimeError("y" * 100_000))
    effects = bench.finish(bench.granted(), failure)
    text = refusal(effects, exc.TooLarge)
    assert "yyy" in text
    assert "job" in text


@pytest.mark.parametrize(
    "args", [(object(),), (10**5000,), ("\ud800",), (float("inf"),), ([1, (2,)],)]
)
def test_strange_arguments_of_exceptions_stay_behind(args: tuple[Any, ...]) -> None:
    bench = Bench()
    failure = Failure.from_exception(ValueError(*args))
    refusal(bench.finish(bench.granted(), failure), ValueError)


def test_the_value_of_a_hostile_object_is_a_failure() -> None:
    class Hostile(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("never")

    bench = Bench()
    assert ending(bench.finish(bench.granted(), Hostile(a=1)))["state"] == pr.FAILURE


# Events ------------------------------------------------------------------------------------------


def test_events_are_sent_with_typed_details() -> None:
    bench = Bench()
    job = bench.granted()
    (event,) = bench.server.on_event(job, "update_progress", {"at": (1, 2)})
    assert isinstance(event, server.Reply)
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
)
def test_events_that_can_not_be_sent_are_left_out(kind: Any, details: Any) -> None:
    bench = Bench()
    job = bench.granted()
    assert bench.server.on_event(job, kind, details) == []
    assert ending(bench.finish(job))["state"] == pr.SUCCESS


# Refusing ----------------------------------------------------------------------------------------


def refused(bench: Bench, **options: Any) -> list[server.Effect]:
    """What is refused is claimed first, so that it is refused once, and for good."""
    (claim,) = bench.request(**options)
    assert isinstance(claim, server.Claim)
    effects = bench.server.on_claim(claim.job, ledgers.Claim(ledgers.GRANTED, 1))
    assert isinstance(effects[0], server.Finish)
    assert bench.server.counts == {"refused": 1}
    assert bench.server.running == 0
    return effects


def test_an_unknown_task_class_is_named_with_a_near_one() -> None:
    bench = Bench()
    text = refusal(refused(bench, task_cls=JOB + "s"), exc.NotFound)
    assert JOB + "s" in text
    assert f"did you mean '{JOB}'" in text


def test_arguments_that_can_not_be_read() -> None:
    refusal(refused(Bench(), arguments={"x": {"$wbe": "nonsense"}}), exc.InvalidFormat)


def test_a_version_of_the_future() -> None:
    bench = Bench()
    bench.server._check_version(env.Envelope("", {}, headers={env.WBE_VERSION: "1"}))
    bench.server._check_version(env.Envelope("", {}))
    with pytest.raises(exc.IncompatibleVersion, match="version 999"):
        bench.server._check_version(env.Envelope("", {}, headers={env.WBE_VERSION: "999"}))


@pytest.mark.parametrize(("named", "held"), [("other", LEDGER), ("other", None), (7, LEDGER)])
def test_a_ledger_that_it_does_not_hold(named: Any, held: str | None) -> None:
    bench = Bench(ledger=held)
    effects = bench.request(ledger=named)
    text = refusal(effects, exc.NotFound)
    assert str(named) in text
    assert str(held or "none") in text
    assert bench.server.running == 0


@pytest.mark.parametrize("reply_to", [None, "", "../up", "a b", "x" * 200, "a.*", "a\nb"])
def test_nobody_to_answer_to(reply_to: str | None) -> None:
    bench = Bench()
    assert bench.request(reply_to=reply_to) == [server.Acknowledge("receipt")]
    assert bench.request(id="../up") == [server.Acknowledge("receipt")]
    assert bench.server.counts == {"unanswerable": 2}


# Repeats -----------------------------------------------------------------------------------------


def test_a_repeat_of_what_runs_is_acknowledged() -> None:
    bench = Bench()
    job = bench.granted()
    assert bench.request("again") == [server.Acknowledge("again")]
    assert ending(bench.finish(job))


def test_a_repeat_of_what_is_done_is_answered_from_the_ledger() -> None:
    bench = Bench()
    stored = bench.finish(bench.granted())[0]
    assert isinstance(stored, server.Finish)
    (claim,) = bench.request("again", reply_to="engine")
    assert isinstance(claim, server.Claim)
    done = ledgers.Claim(ledgers.DONE, 1, stored.frozen, "w1")
    effects = bench.server.on_claim(claim.job, done)
    assert ending(effects) == {"state": pr.SUCCESS, "data": {"result": 3}}
    (reply,) = effects
    assert isinstance(reply, server.Reply)
    assert reply.job is claim.job
    assert reply.envelope.headers[env.WBE_WORKER] == "w1"
    assert bench.server.running == 0


@pytest.mark.parametrize("verdict", [ledgers.HELD, ledgers.MISSING, ledgers.STALE])
def test_what_is_not_granted_is_not_run(verdict: Any) -> None:
    bench = Bench()
    (claim,) = bench.request()
    assert isinstance(claim, server.Claim)
    effects = bench.server.on_claim(claim.job, ledgers.Claim(verdict, 1, holder="w2"))
    assert (bench.server.running, bench.server.counts) == (0, {verdict: 1})
    if verdict == ledgers.MISSING:
        assert effects == [server.Acknowledge("receipt")]
    else:  # whoever sent it should look who has it
        assert told_elsewhere(effects) == "engine"


def told_elsewhere(effects: list[server.Effect]) -> str:
    """Who is told that somebody else has it, or that it is answered to another address."""
    (reply,) = effects
    assert isinstance(reply, server.Reply) and reply.terminal
    assert reply.envelope.body == {"state": pr.PENDING, "data": {}}
    assert reply.envelope.headers[env.WBE_ASK] == 0
    pr.Response.validate(reply.envelope.body)
    return reply.envelope.routing_key


def test_a_repeat_of_what_runs_for_somebody_else_is_told_so() -> None:
    bench = Bench()
    job = bench.granted()
    assert told_elsewhere(bench.request("again", reply_to="heir")) == "heir"
    assert job.reply_to == "engine"


def test_a_repeat_while_the_ledger_is_told_of_the_end_is_no_loss() -> None:
    bench = Bench()
    job = bench.granted()
    bench.server.on_finished(job, invocation.Outcome(3))
    assert told_elsewhere(bench.request("again")) == "engine"
    assert bench.server.on_stored(job) == []


def test_a_peer_that_is_not_ours_is_told_nothing_of_that_kind() -> None:
    bench = Bench(ledger=None)
    bench.started(ours=False)
    assert bench.request("r", ours=False, reply_to="x") == [server.Acknowledge("r")]


# Questions of engines that go on with what others began -----------------------------------------


def test_who_asks_is_answered_from_now_on() -> None:
    bench = Bench()
    job = bench.granted()
    (told,) = bench.ask(("id-1", 2048))
    assert (told.body["state"], told.headers[env.WBE_ASK]) == (pr.RUNNING, 2048)
    (event,) = bench.server.on_event(job, "update", {"n": 1})
    assert isinstance(event, server.Reply) and event.envelope.routing_key == "heir"
    _, reply = bench.finish(job)
    assert isinstance(reply, server.Reply) and reply.envelope.routing_key == "heir"
    assert reply.envelope.headers[env.WBE_EPOCH] == 1


def test_of_two_that_ask_the_later_owner_is_answered() -> None:
    bench = Bench()
    job = bench.granted()
    bench.ask(("id-1", 3072), reply_to="second")
    assert bench.ask(("id-1", 2048), reply_to="first") == []
    assert job.reply_to == "second"


def test_an_engine_from_before_the_request_was_sent_asks_in_vain() -> None:
    """Its question was under way while another one took the flow over and sent it anew."""
    bench = Bench()
    job = bench.granted(epoch=3072)
    assert bench.ask(("id-1", 2048), reply_to="first") == []
    assert job.reply_to == "engine"


def test_who_asks_while_the_ledger_is_told_of_the_end_is_answered_after_that() -> None:
    bench = Bench()
    job = bench.granted()
    bench.server.on_finished(job, invocation.Outcome(3))
    assert bench.ask(("id-1", 2048)) == []
    (reply,) = bench.server.on_stored(job)
    assert isinstance(reply, server.Reply)
    assert (reply.envelope.routing_key, reply.envelope.body["state"]) == ("heir", pr.SUCCESS)


def test_with_a_ledger_what_is_not_here_is_said_to_be_elsewhere() -> None:
    bench = Bench()
    bench.finish(bench.granted())
    (answer,) = bench.ask(("id-1", 2048))
    assert (answer.body["state"], answer.correlation_id) == (pr.PENDING, "id-1")
    assert answer.headers[env.WBE_ASK] == 2048 and answer.headers[env.WBE_WORKER] == "w1"


def test_without_a_ledger_what_is_remembered_is_told_again() -> None:
    bench = Bench(ledger=None)
    bench.finish(bench.started(), 7)
    bench.started(id="id-2")
    done, running = bench.ask(("id-1", 9), ("id-0", 9), ("id-2", 9))
    assert (done.body["data"], done.headers[env.WBE_EPOCH]) == ({"result": 7}, 1)
    assert (running.correlation_id, running.body["state"]) == ("id-2", pr.RUNNING)


@pytest.mark.parametrize("reply_to", [None, "", "../up", "a b"])
def test_nobody_to_answer_a_question_to(reply_to: str | None) -> None:
    bench = Bench()
    bench.granted()
    assert bench.ask(("id-1", 2), reply_to=reply_to) == []


@pytest.mark.parametrize(
    "body",
    [
        {}, [], None, {"asked": None}, {"asked": [1]}, {"asked": [["a"]]}, {"asked": [["a", "1"]]},
        {"asked": [["a", True]]}, {"asked": [["../a", 1]]}, {"asked": [["a", 1]] * 501},
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(body: Any) -> None:
    with pytest.raises(exc.InvalidFormat):
        asking.validate(body)


def test_questions_are_asked_in_pieces() -> None:
    made = list(asking.questions([(f"id-{n}", n) for n in range(1001)], "all", "me"))
    assert [len(question.body["asked"]) for question in made] == [500, 500, 1]
    for question in made:
        asking.validate(json.loads(question.encoded))
    assert asking.read(made[2].body) == [("id-1000", 1000)]


def test_without_a_ledger_a_repeat_gets_the_same_answer() -> None:
    bench = Bench()
    job = bench.started()
    assert bench.request("again", ledger=None) == [server.Acknowledge("again")]
    first = bench.finish(job)
    assert ending(first) == ending(bench.request("again", ledger=None))
    assert bench.server.counts == {pr.SUCCESS: 1, "repeated": 2}


def test_without_a_ledger_a_new_epoch_is_run_and_an_old_one_is_not() -> None:
    bench = Bench()
    first = bench.started()
    second = bench.started(epoch=2)
    assert bench.server.running == 2
    assert bench.request("old", ledger=None) == [server.Acknowledge("old")]
    for job in (first, second):
        (reply,) = bench.finish(job, job.epoch)
        assert isinstance(reply, server.Reply)
        assert reply.envelope.headers[env.WBE_EPOCH] == job.epoch
    assert bench.request("old", ledger=None) == [server.Acknowledge("old")]
    assert ending(bench.request("again", ledger=None, epoch=2))["data"] == {"result": 2}


def test_without_a_ledger_what_is_delivered_again_is_not_run() -> None:
    bench = Bench()
    effects = bench.request(ledger=None, redelivered=True)
    assert "no ledger knows" in refusal(effects, exc.WorkerLost)
    assert bench.server.running == 0
    # The one that runs it is not disturbed by that.
    job = bench.started(id="id-2")
    again = bench.request("again", id="id-2", ledger=None, redelivered=True)
    assert again == [server.Acknowledge("again")]
    assert ending(bench.finish(job))["state"] == pr.SUCCESS


def test_with_a_ledger_what_is_delivered_again_is_the_ledgers_matter() -> None:
    (claim,) = Bench().request(redelivered=True)
    assert isinstance(claim, server.Claim)


def test_it_remembers_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "REMEMBERED", 3)
    bench = Bench()
    for number in range(5):
        bench.finish(bench.started(id=f"id-{number}"))
    assert ending(bench.request(id="id-4", ledger=None))
    assert ending(bench.request(id="id-2", ledger=None))
    assert bench.started(id="id-1")


def test_answers_are_kept_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "REMEMBERED_BYTES", 2500)
    bench = Bench()
    for number in range(5):
        bench.finish(bench.started(id=f"id-{number}"), "x" * 1000)
    assert bench.server._recent._bytes <= 2500
    assert ending(bench.request(id="id-4", ledger=None))
    # The answer is gone, what it was an answer to is not forgotten.
    assert bench.request("r", id="id-0", ledger=None) == [server.Acknowledge("r")]


def test_what_goes_back_to_the_broker_is_taken_again() -> None:
    bench = Bench()
    (claim,) = bench.request()
    assert isinstance(claim, server.Claim)
    bench.server.forget(claim.job)
    assert bench.server.running == 0
    assert ending(bench.finish(bench.granted()))


@pytest.mark.parametrize("epoch", [-1, 1.5, "2", True, None, 10**400])
def test_an_epoch_that_is_none_is_the_first(epoch: Any) -> None:
    (claim,) = Bench().request(epoch=epoch)
    assert isinstance(claim, server.Claim)
    assert claim.job.epoch == 1


# What others should know -------------------------------------------------------------------------


def test_a_question_is_answered_for_each_topic() -> None:
    bench = Bench()
    bench.granted()
    question = env.Envelope(pr.NOTIFY, {}, reply_to="engine")
    effects = bench.server.on_notify(question, 5.0)
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
        env.WBE_VERSION: env.VERSION,
        env.WBE_WORKER: "w1",
        env.WBE_STATE: env.READY,
        env.WBE_QUEUE: "t.abc",
        env.WBE_SLOTS: 2,
        env.WBE_RUNNING: 1,
        env.WBE_PERIOD: 5.0,
    }


@pytest.mark.parametrize("reply_to", [None, "", "../up", "a b"])
def test_questions_of_nobody(reply_to: str | None) -> None:
    question = env.Envelope(pr.NOTIFY, {}, reply_to=reply_to)
    assert Bench().server.on_notify(question, 5.0) == []


def test_beats_go_to_those_whose_requests_run_here() -> None:
    bench = Bench()
    assert bench.server.beat(5.0) == []
    job = bench.granted(reply_to="engine-1")
    bench.granted(id="id-2", reply_to="engine-1")
    bench.granted(id="id-3", reply_to="engine-2")
    bench.started(id="id-4", reply_to="plain", ours=False)
    keys = [e.envelope.routing_key for e in bench.server.beat(5.0) if isinstance(e, server.Reply)]
    assert keys == ["engine-1"] * 2 + ["engine-2"] * 2
    bench.finish(job)
    assert len(bench.server.beat(5.0)) == 4
