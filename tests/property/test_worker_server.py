"""The core of a worker: random histories, compared with an oracle, and past faults."""

from __future__ import annotations

import logging
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.property import worker_oracle as oracle
from tests.property.worker_oracle import Worker
from tests.seams import server
from tests.support.amounts import amount

HISTORIES, STEPS = amount(15, 300), 20

VERDICTS: Final = ("HELD", "MISSING", "STALE", *oracle.RESULTS)
#: What can follow for a request in each phase.
MOVES: Final[dict[str, list[str]]] = {
    "claiming": [
        *["claim"] * 9,
        "forget",
        *[f"claim {verdict} {holder}" for verdict in VERDICTS for holder in ("w1", "w2")],
    ],
    "running": [
        *["finish", "finish long"] * 4,
        "finish ended=None",
        "finish ended=0.5",
        *[f"finish {each}" for each in oracle.OUTCOMES],
        *[f"event {each}" for each in oracle.EVENTS],
        *[f"check {each}" for each in oracle.FOUND],
    ],
    "storing": [
        *["store"] * 2, "store fenced=True", "store sent=True", "store True True", "refuse_result"
    ],
    "unsent": ["answer"],
    "releasing": ["release", "release False"],
}  # fmt: skip
IDS, ENGINES = st.sampled_from("abcd"), st.sampled_from(["e1", "e1", "e2"])
EPOCHS = st.sampled_from([1, 1, 2, 3])
CONTENTS = st.sampled_from(["good"] * 6 + sorted(oracle.CONTENTS))
WAYS = st.sampled_from(
    [""] * 12 + ["ours=False"] * 4 + ["claimed=True"] * 2 + [
        "redelivered=True", "redelivered=True ours=False", "expires=99.0", "expires=101.0",
        "ledger=other",
    ]
)  # fmt: skip
COMMANDS = st.sampled_from(
    ["ask", "ask direct=False", "cancel", "cancel", "resume", "resume", "suspend",
     "return_unaccepted", "query e1, beat", "query e2, finish_again", "admit", "drain"]
)  # fmt: skip
REQUESTS = st.lists(st.tuples(IDS, EPOCHS, ENGINES, CONTENTS, WAYS), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def limit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    server.limit_memory(monkeypatch, oracle.REMEMBERED, oracle.REMEMBERED_BYTES)


class Machine(RuleBasedStateMachine):
    """Send requests and commands to a worker, and perform its effects in any order."""

    @initialize(
        ledger=st.booleans(), slots=st.integers(1, 2), tasks=st.sampled_from([None, None, 4])
    )
    def begin(self, **options: Any) -> None:
        self.worker = Worker(**options)

    @rule(
        requests=st.lists(st.tuples(IDS, EPOCHS, ENGINES, CONTENTS, WAYS), min_size=1, max_size=4)
    )
    def receive(self, requests: list[tuple[Any, ...]]) -> None:
        for id, epoch, to, content, way in requests:
            self.worker.play(f"request {id} {epoch} {to} content={content} {way}")

    @precondition(lambda self: self.worker.all(*MOVES))
    @rule(moves=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 63)), min_size=1, max_size=6))
    def proceed(self, moves: list[tuple[int, int]]) -> None:
        for which, way in moves:
            requests = self.worker.all(*MOVES)
            if requests:
                request = requests[which % len(requests)]
                ways, others = MOVES[request.phase], self.worker.all(request.phase)
                self.worker.play(f"{ways[way % len(ways)]} which={others.index(request)}")

    @rule(command=COMMANDS, named=st.lists(st.tuples(IDS, EPOCHS), max_size=3), to=ENGINES)
    def command(self, command: str, named: list[tuple[str, int]], to: str) -> None:
        if command.startswith(("ask", "cancel")):
            command = " ".join([command, *(f"{id}:{number}" for id, number in named)])
            command += f" to={to}" if "ask" in command else ""
        self.worker.play(command)

    def teardown(self) -> None:
        if hasattr(self, "worker"):
            self.worker.complete()
            self.worker.stop()


TWO: Final = "request, claim, request b, claim"
#: Events that showed a fault. Workers have a ledger and one slot unless the name begins so.
SCENARIOS: Final[dict[str, str]] = {
    "replies are numbered": "request, claim, event, event too-large, finish",
    "result is refused": f"{TWO}, finish, refuse_result, ask a:1, store, ask a:2 to=e1",
    "request is listed until its reply is published":
        f"query, {TWO}, query, finish, query, store, query, beat, answer, query, beat",
    "result is fenced": f"{TWO}, finish, store fenced=True, query",
    "result is stored and sent":
        f"{TWO}, finish, finish, ask a:2 b:2, store sent=True, store True True, query",
    "duplicate of another engine":
        "request, request to=e2, claim, request to=e2, request, finish, request, store, request,"
        " claim DONE",
    "ledger is unreachable twice": "request, forget, request redelivered=True, forget, request",
    "ledger is renamed":
        "request ledger=other, rename_ledger new other, query, request ledger=other,"
        " request b ledger=rows, request c ledger=older",
    "ask of an earlier engine":
        "request epoch=2, claim, ask a:1, ask a:4, ask a:3 to=e1, event, finish,"
        " ask a:5 to=e1, ask a:4, store, ask a:1",
    "ask about waiting requests": f"{TWO}, ask b:2 a:2, ask b:1, finish, store",
    "ask to all workers": "ask a:1 direct=False, ask a:1",
    "request is cancelled twice":
        "request epoch=3, claim, cancel a:2, cancel a:4, cancel a:4, finish",
    "request is cancelled during its claim": "request, cancel a:1, claim",
    "request is cancelled while it waits": f"{TWO}, cancel b:1, finish, store",
    "request is cancelled although its arguments are unaccepted":
        "request content=other-code, claim, cancel a:1, return_unaccepted",
    "release of unaccepted request fails":
        "request content=missing, claim, return_unaccepted, return_unaccepted, release False,"
        " return_unaccepted, release",
    "release fails while the worker drains":
        f"{TWO}, drain, release False, finish, finish, beat",
    "request was claimed on receipt while the worker drains":
        "drain, request, request b claimed=True, claim, release",
    "stopped with running tasks": f"query, {TWO}, stop, stop, finish_again, beat",
    "tasks=2: last task has no request": "admit, request, claim, admit, admit",
    # Without a ledger.
    "ledger=False: engine has a ledger": "request ledger=other, query",
    "ledger=False: only a higher epoch runs again":
        "request epoch=2, request epoch=3, request, request epoch=3, finish, request epoch=2,"
        " finish long, request epoch=2, request epoch=3 to=e2, ask a:9 b:9, answer, answer,"
        " ask a:9",
    "ledger=False: request is redelivered":
        "request redelivered=True, request redelivered=True, ask a:1, request,"
        " request redelivered=True, finish, suspend, request b redelivered=True",
    "ledger=False: TaskFlow's request is redelivered":
        "request ours=False, request to=e2 ours=False redelivered=True, finish,"
        " request ours=False redelivered=True, request b ours=False redelivered=True",
    "ledger=False: TaskFlow reverts with the same id":
        "request ours=False, finish, answer, request ours=False content=revert, finish, answer,"
        " request ours=False, finish",
    "ledger=False slots=2: TaskFlow's requests share an id":
        "request ours=False, cancel a:1, request ours=False, cancel a:2, finish, finish",
    "ledger=False: number of remembered replies":
        "request a, finish, request b, finish, request c, finish, request d, finish, request d,"
        " request b, request a",
    "ledger=False: size of remembered replies":
        "request a, finish long, request b, finish long, request c, finish long, request a,"
        " request b, request c, request b 2, finish long, request c, request b 2",
    "ledger=False: reply is too large to remember":
        "request a, finish, request b, finish longest, request a, request b",
    "ledger=False: request is expired": "request expires=99.9, request, request b expires=100.0",
    "ledger=False: heartbeats of requests":
        "beat, request, request b to=e2 ours=False, beat, request c to=e2, beat, finish, beat",
    "ledger=False: request is cancelled before it arrives":
        "cancel a:2, cancel a:1, request, request epoch=2, request epoch=3, finish, cancel a:3,"
        " request epoch=3, cancel b:1 c:1 d:1, cancel e1:1, request b, request c, request d",
    "ledger=False: unaccepted request returns":
        "request content=other-code, suspend, resume, request",
    "ledger=False: waiting requests return":
        "request, request b, request c, drain, request d, finish",
    "ledger=False: worker is suspended":
        "query, request, suspend, suspend, query, request b, finish, resume, resume, request b,"
        " suspend, drain, drain, resume, suspend, query, stop, drain, resume",
    "ledger=False tasks=2: last task":
        "request, request b, request c, finish, request d, finish, admit",
    "ledger=False plain=True: TaskFlow's notices":
        "query, request ours=False, query, beat, suspend, query, resume, query, drain, query, stop",
    **{
        f"claim {verdict} of {holder}": f"request, claim {verdict} {holder}, request, claim"
        for verdict in VERDICTS for holder in ("w1", "w2")
    },
    **{f"row {row}": f"{TWO}, check {row}, finish_again, finish" for row in oracle.FOUND},
    **{f"{each}": f"request content={each}, claim" for each in oracle.CONTENTS},
    **{
        f"ledger=False: outcome {each}, ours={ours}": f"request ours={ours}, request b,"
        f" finish {each} ended={0.5 if ours else None}, answer, query"
        for each in oracle.OUTCOMES for ours in (True, False)
    },
    **{
        f"ledger=False: event {each}": f"request, event {each}, finish, request ours=False,"
        f" event {each}" for each in oracle.EVENTS
    },
    **{
        f"name {name}": f"request to={name}, request id={name}, query {name}, ask a:2 to={name}"
        for name in ("None", "''", "../up", "'a\\x20b'", "x" * 200, "a.*", "'a\\nb'")
    },
}  # fmt: skip


@pytest.mark.parametrize("fault", SCENARIOS)
def test_past_fault_of_a_worker_does_not_return(fault: str) -> None:
    options = fault.partition(":")[0].split() if ":" in fault else ()
    worker = Worker(
        **{"slots": 1} | {k: oracle.read(v) for k, v in (o.split("=") for o in options)}
    )
    worker.play(SCENARIOS[fault])
    worker.complete()


def played(events: str, **options: Any) -> Worker:
    worker = Worker(**options)
    worker.play(events)
    return worker


def test_second_outcome_and_late_events_are_ignored() -> None:
    assert +played("request, claim, finish, finish_again, store").counts == {"SUCCESS": 1}


def test_system_exit_of_a_task_is_answered_as_failure() -> None:
    assert +played("request, claim, finish exit").counts == {"FAILURE": 1}


def test_worker_with_a_ledger_rejects_request_that_uses_no_ledger() -> None:
    """Without a row, a repeated execution cannot be detected."""
    worker = played("request ledger=None, request b ours=False")
    assert +worker.counts == {"refused": 2} and not worker.having()


def test_unknown_task_class_is_rejected_with_a_suggestion() -> None:
    assert +played("request content=unknown, claim").counts == {"refused": 1}


def test_arguments_are_decoded_only_after_the_claim_is_granted() -> None:
    """Decoding may kill the worker, which then counts as a lost worker of the request."""
    oracle.DECODED.clear()
    played("request content=recorded redelivered=True", ledger=False)
    worker = played("request b content=unknown, claim, request content=recorded")
    assert oracle.DECODED == []
    worker.play("claim")
    assert oracle.DECODED == ["new"]


def test_unaccepted_arguments_of_a_task_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        played("request content=other-code, request b content=other-code", ledger=False)
    assert caplog.text.count("does not accept the arguments new, x of request a") == 1
    assert "of request b" not in caplog.text


def test_random_history_of_a_worker_matches_the_oracle() -> None:
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=HISTORIES, stateful_step_count=STEPS)
    )
