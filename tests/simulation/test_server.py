"""A single worker with messages from other kinds of engines and from brokers."""

from __future__ import annotations

from tests.seams import server
from tests.simulation.kinds import One
from wbengine._calls import invocation
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices

KIND = f"{One.__module__}.{One.__name__}"


def asked(worker: server.Server, action: str) -> list[server.Effect]:
    """Return the effects of a TaskFlow request without wbengine headers."""
    body = {
        "task_cls": KIND, "task_name": "one", "task_version": [1, 0], "action": action,
        "arguments": {"seconds": 1.0},
    }  # fmt: skip
    if action == "revert":
        body |= {"result": ["success", 1], "failures": {}}
    message = env.Envelope(pr.REQUEST, body, correlation_id="same", reply_to="taskflow")
    return worker.on_request(message, "receipt", 0.0)


def test_each_taskflow_request_with_same_id_is_executed() -> None:
    """TaskFlow executes, reverts and executes an atom again with one id."""
    worker = server.Server("w", ["t"], server.offer([One]), 1)
    for action in ("execute", "revert", "execute"):
        (run,) = [each for each in asked(worker, action) if isinstance(each, server.Run)]
        *_, answer = worker.on_finished(run.job, invocation.Outcome(1))
        assert isinstance(answer, server.Answer)
        worker.on_answered(run.job)


def sent(worker: server.Server, id: str, *, ledger: bool) -> list[server.Effect]:
    """Return the effects of a wbengine request."""
    body = {
        "task_cls": KIND, "task_name": "one", "task_version": [1, 0], "action": "execute",
        "arguments": {"seconds": 1.0},
    }  # fmt: skip
    headers = {hd.WBE_VERSION: hd.VERSION, hd.WBE_EPOCH: 1}
    if ledger:
        headers[hd.WBE_LEDGER] = "rows"
    message = env.Envelope(pr.REQUEST, body, correlation_id=id, reply_to="e", headers=headers)
    return worker.on_request(message, id, 0.0)


def test_redelivered_request_is_claimed_after_ledger_was_unreachable() -> None:
    worker = server.Server("w", ["t"], server.offer([One]), 1, ledger="rows")
    for _ in range(2):
        (claim,) = sent(worker, "id", ledger=True)
        assert isinstance(claim, server.Claim)
        worker.forget(claim.job)
        assert worker.running == 0


def test_oldest_stored_replies_are_dropped_first() -> None:
    """The total size of stored replies is limited."""
    worker = server.Server("w", ["t"], server.offer([One]), 1)
    large = "x" * 5 * 1024 * 1024
    for id in "abcdefghijklmn":
        (run,) = [each for each in sent(worker, id, ledger=False) if isinstance(each, server.Run)]
        worker.on_finished(run.job, invocation.Outcome(large))
        worker.on_answered(run.job)
    assert [type(each) for each in sent(worker, "n", ledger=False)] == [server.Answer]
    assert [type(each) for each in sent(worker, "a", ledger=False)] == [server.Acknowledge]


def test_draining_worker_announces_it_and_returns_new_requests() -> None:
    worker = server.Server("w", ["t"], server.offer([One]), 1, ledger="rows")
    worker.announce(["e"], notices.READY, 5.0)
    (notice,) = worker.drain(0.0, 5.0)
    assert isinstance(notice, server.PublishNotice)
    assert notice.message.headers[hd.WBE_LIFE]["state"] == "draining"
    assert [type(each) for each in sent(worker, "id", ledger=True)] == [server.Return]
