"""One worker, told one thing at a time: what engines of other kinds, and brokers, do to it."""

from __future__ import annotations

from tests.seams import server
from tests.simulation.kinds import One
from wbengine import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env

KIND = f"{One.__module__}.{One.__name__}"


def asked(worker: server.Server, action: str) -> list[server.Effect]:
    """What the worker does about a request of TaskFlow, which has nothing of ours in it."""
    body = {
        "task_cls": KIND, "task_name": "one", "task_version": [1, 0], "action": action,
        "arguments": {"seconds": 1.0},
    }  # fmt: skip
    if action == "revert":
        body |= {"result": ["success", 1], "failures": {}}
    message = env.Envelope(pr.REQUEST, body, correlation_id="same", reply_to="taskflow")
    return worker.on_request(message, "receipt", 0.0)


def test_what_taskflow_asks_under_the_same_id_is_done_each_time() -> None:
    """It executes an atom, reverts it and executes it again, all under one id."""
    worker = server.Server("w", {"t": "t"}, server.offer([One]), 1)
    for action in ("execute", "revert", "execute"):
        (run,) = [each for each in asked(worker, action) if isinstance(each, server.Run)]
        *_, answer = worker.on_finished(run.job, invocation.Outcome(1))
        assert isinstance(answer, server.Answer)
        worker.on_answered(run.job)


def sent(worker: server.Server, id: str, *, ledger: bool) -> list[server.Effect]:
    """What the worker does about a request of ours."""
    body = {
        "task_cls": KIND, "task_name": "one", "task_version": [1, 0], "action": "execute",
        "arguments": {"seconds": 1.0},
    }  # fmt: skip
    headers = {env.WBE_VERSION: env.VERSION, env.WBE_EPOCH: 1}
    if ledger:
        headers[env.WBE_LEDGER] = "rows"
    message = env.Envelope(pr.REQUEST, body, correlation_id=id, reply_to="e", headers=headers)
    return worker.on_request(message, id, 0.0)


def test_request_whose_ledger_could_not_be_asked_is_claimed_when_it_comes_again() -> None:
    worker = server.Server("w", {"t": "t"}, server.offer([One]), 1, ledger="rows")
    for _ in range(2):
        (claim,) = sent(worker, "id", ledger=True)
        assert isinstance(claim, server.Claim)
        worker.forget(claim.job)
        assert worker.running == 0


def test_answer_to_a_repeated_request_is_that_of_the_latest_one() -> None:
    """Only so many bytes of answers are kept: the oldest go first."""
    worker = server.Server("w", {"t": "t"}, server.offer([One]), 1)
    large = "x" * 5 * 1024 * 1024
    for id in "abcdefghijklmn":
        (run,) = [each for each in sent(worker, id, ledger=False) if isinstance(each, server.Run)]
        worker.on_finished(run.job, invocation.Outcome(large))
        worker.on_answered(run.job)
    assert [type(each) for each in sent(worker, "n", ledger=False)] == [server.Answer]
    assert [type(each) for each in sent(worker, "a", ledger=False)] == [server.Acknowledge]


def test_worker_that_drains_takes_nothing_new_and_says_so() -> None:
    worker = server.Server("w", {"t": "t"}, server.offer([One]), 1, ledger="rows")
    worker.announce(["e"], env.READY, 5.0)
    (told,) = worker.drain(0.0, 5.0)
    assert isinstance(told, server.Say)
    assert told.message.headers[env.WBE_LIFE]["state"] == "draining"
    assert [type(each) for each in sent(worker, "id", ledger=True)] == [server.Return]
