"""Recovery of requests that earlier runs left."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.unit.tracker_scripts import FENCE, Script, play
from wbengine.engines.worker_based import executor
from wbengine.engines.worker_based import protocol as pr

HERE = "no ledger with the broker amqp://me:**@host"
#: A request whose row has the owner `w1`.
HELD: Final = f"left a > read a; row a CLAIMED w1 > ask w1 a{FENCE}"
#: A reply that arrives before its request is submitted.
EARLY: Final = "inherit; pending a; forget a"

SCENARIOS: Final[dict[str, str]] = {
    # With a ledger.
    "request is not published before its row is read":
        "left a > read a; unstarted > a; inherited a > True",
    "row of a later owner is not revoked":
        f"left a > read a; row a OPEN epoch={FENCE + 1024}; row a OPEN epoch={FENCE + 1};"
        f" get a live > True; row a OPEN > revoke a; row a OPEN epoch={FENCE} > revoke a",
    "result is in the row":
        "left a > read a; row a DONE result=3 > end a 3 by w1; save a > drop a",
    "result in the row cannot be decoded": "left a > read a; row a DONE > end a WorkerLost",
    "open row is revoked before the resend, because workers could claim both messages":
        f"left a > read a; row a OPEN > revoke a; revoked a > send a{FENCE};"
        " get a state > PENDING; reply a SUCCESS w1 3 epoch=1 > ack; ignored > old_epoch=1;"
        " reply a SUCCESS w1 3 > end a 3 by w1",
    "two checks revoke the row, the second one after the resend":
        f"left a > read a; row a OPEN > revoke a; @3 timer > read a; row a OPEN > revoke a;"
        f" revoked a > send a{FENCE}; revoked a > send a{FENCE + 1};"
        " reply a SUCCESS w1 3 > end a 3 by w1",
    "revoke fails": "left a > read a; row a OPEN > revoke a; revoked a False > read a",
    "there is no row": f"left a > read a; row a None > send a{FENCE}",
    "there is no row in the present ledger":
        "expect other; left a kind=Again > read a; row a None > send a2048;"
        " left b > read b; row b None > end b WorkerLost",
    "no earlier run used workers": f"expect None; left a > send a{FENCE}",
    "owner has the request":
        f"{HELD}; get a state worker epoch > RUNNING w1 1; has a w1 > ack; get a lookups > 0;"
        " ignored > ; reply a SUCCESS w1 3 > end a 3 by w1",
    "owner that does not reply is asked again with growing pauses":
        f"{HELD}; has a w1 ask_number=1024 > ack; reply a RUNNING w1 > ack; "
        + "; ".join(
            f"next > {due}; @{due} timer > read a; row a CLAIMED w1 > ask w1 a{FENCE}"
            for due in (3, 9, 21, 45, 93, 153, 213)
        )
        + "; has a w1 > ack; @9999 timer",
    "event that was sent before the ask is no reply to it":
        f"{HELD}; reply a EVENT w1 1 > ack; get a state lookups > RUNNING 1; @3 timer > read a",
    "owner does not have the request":
        f"{HELD}; lacks a w1 > read a, ack; row a CLAIMED w1 > conclude a w1;"
        " concluded a > end a WorkerLost by w1",
    "another worker has the request that its owner does not have":
        f"{HELD}; lacks a w1 > read a, ack; row a CLAIMED w2 > ask w2 a{FENCE};"
        f" row a CLAIMED w2 > ask w2 a{FENCE}; row a CLAIMED w2 silent=True > conclude a w2;"
        " concluded a > end a WorkerLost by w2",
    "worker that is not the owner does not have the request":
        f"left a > read a; row a CLAIMED w2 > ask w2 a{FENCE}; lacks a w1 > ack;"
        " get a state > RUNNING",
    "owner is dead":
        "left a b > read a, read b; row a CLAIMED w1 silent=True > conclude a w1;"
        " concluded a > end a WorkerLost by w1; failure a ~ w1;"
        " row b CLAIMED w1 lost=w1 > conclude b w1",
    "repeatable request of a dead owner is reopened, or done":
        "left a b kind=Again > read a, read b;"
        f" row a CLAIMED w1 silent=True > reopen a{FENCE}; reopened a > send a{FENCE};"
        f" row b CLAIMED w1 silent=True > reopen b{FENCE}; reopened b 3 > end b 3 by w1",
    "ledger is unavailable": "left a > read a; row a UNKNOWN; @3 timer > read a",
    "new request is claimed, because the store is older than the ledger":
        "pending a; lacks a w9 ask_number=0 > read a, ack; row a CLAIMED w7 > ask w7 a1;"
        " get a state > RUNNING; lacks a w9 ask_number=0 > ack; has a w7 > ack;"
        " lacks a w9 ask_number=0 > ack",
    "row was reopened by a run that did not store that":
        "pending a; row a OPEN epoch=3 > send a3; get a epoch lowest_epoch > 3 3;"
        " row a OPEN epoch=3",
    "row of a waiting request cannot be read":
        "pending a; @3600 row a UNKNOWN; get a since > 4600.0",
    "row of a running request cannot be read": "running a; row a UNKNOWN; @3 timer > read a",
    # Without a ledger.
    "ledger=None: all workers are asked in one message":
        f"left a b c; ask > ask all a{FENCE} b{FENCE} c{FENCE}; ask",
    **{
        f"ledger=None: reply has epoch {epoch}":
            f"left a; reply a RUNNING w1 epoch={epoch} > ack;"
            " get a state worker lookups > RUNNING w1 0;"
            f" reply a SUCCESS w1 3 epoch={epoch} > end a 3 by w1"
        for epoch in (1, 2, FENCE)
    },
    "ledger=None: reply arrives before the request of an earlier run is submitted":
        "left a; forget a; inherit; reply a SUCCESS w1 3 epoch=1 receipt=r;"
        " left a > end a 3 by w1; save a > drop a, ack r; ask",
    **{
        f"ledger=None: reply with epoch {epoch} arrives before a new request is submitted":
            f"{EARLY}; reply a SUCCESS w1 3 epoch={epoch} receipt=r; request a > end a 3 by w1"
        for epoch in (1, 2)
    },
    "early reply with another epoch does not stop the publication":
        f"{EARLY}; reply a SUCCESS w1 3 epoch=2 receipt=r; request a > ack r, send a1",
    "second early reply is acknowledged":
        f"{EARLY}; reply a SUCCESS w1 3 epoch=1 receipt=r;"
        " reply a SUCCESS w1 3 epoch=1 receipt=s > ack s; request a > end a 3 by w1",
    **{
        f"early reply is dropped by: {step}":
            f"{EARLY}; reply a SUCCESS w1 3 epoch=1 receipt=r; {step}; request a > send a1"
        for step in ("disown None", "close; reopen")
    },
    "ledger=None: repeatable request is sent without a search of its queue":
        f"left a kind=Again; left b; ask > ask all a{FENCE} b{FENCE}; reports 1;"
        f" @1 round > ask all b{FENCE}, ask q/0 b{FENCE}; @3 timer > send a{FENCE},"
        f" ask all b{FENCE}; redelivered a w2 epoch=1 > ack",
    "ledger=None: no worker has the request":
        f"left a; @3 timer > ask all a{FENCE}; get a state > PENDING;"
        f" @62 timer > ask all a{FENCE}; @63 timer > end a WorkerLost",
    "ledger=None: workers and queue are asked, late copies are cancelled":
        f"left a; ask > ask all a{FENCE}; round; reports 1;"
        f" @1 round > ask all a{FENCE}, ask q/0 a{FENCE};"
        f" lacks a w1 > ask q/0 a{FENCE}, ack; lacks a w1 > ask all a{FENCE}, ack; reports 2;"
        f" @15 round; @16 round > end a WorkerLost, cancel all a{FENCE - 1}",
    "ledger=None: outage extends the wait for unknown workers":
        f"left a; reports 2 2; @1 round > ask all a{FENCE}, ask q/0 a{FENCE}; outage 2 12;"
        f" @12 round > ask all a{FENCE}; @24 round; get a live > True;"
        f" @26 round > end a WorkerLost, cancel all a{FENCE - 1}",
    "ledger=None workers=False: there is no queue":
        f"left a; ask > ask all a{FENCE}; @1 round; @30 round; get a live > True",
    "ledger=None workers=False: there are two queues":
        "queue q 1 1; queue p 1 1; reports 2 2; reports 2 2 p;"
        f" left a; ask > ask all a{FENCE}; @1 round; @30 round; get a live > True",
    "ledger=None: redelivered request is lost despite an outage":
        "left a; outage -5 2;"
        f" @3 redelivered a w2 epoch=1 > ask all a{FENCE}, ack; timer > ask all a{FENCE};"
        f" @4 round > ask all a{FENCE}; get a live > True;"
        f" @18 round > end a WorkerLost, cancel all a{FENCE - 1}",
    "ledger=None: timeout restarts while all workers are busy":
        f"left a; queue q 1 0; @3 timer > ask all a{FENCE};"
        f" @63 timer > ask all a{FENCE}; get a live > True; queue q 1 1;"
        " @123 timer > end a WorkerLost",
    "ledger=None timeout=None: default timeout applies":
        f"left a; @3 timer > ask all a{FENCE}; @{3 + pr.REQUEST_TIMEOUT} timer > end a WorkerLost",
    "ledger=None: repeatable request is sent after a pause, and any reply counts":
        f"left a kind=Again; @3 timer > send a{FENCE}; reply a RUNNING w2 > ack;"
        " reply a SUCCESS w1 3 epoch=1 > end a 3 by w1; get a worker > w1",
    # TaskFlow's workers.
    "ledger=None plain=True: only repeatable request is sent again":
        f"taskflow; left a > end a WorkerLost; left b kind=Again > send b{FENCE}",
    "ledger=None plain=True on_worker_lost=resend: running request fails with the last worker":
        "taskflow; pending a b; reply a RUNNING None > ack; unserve;"
        " @60 lost None > end a WorkerLost by q; get a worker > None; get b live > True",
    "ledger=None plain=True: queued request does not move, because a worker may still reply":
        "taskflow; pending a b; unserve; lost None; queue q2 1 1; @50 gained;"
        " get a state epoch > WAITING 1; reply a RUNNING None > ack;"
        " reply a SUCCESS None 7 > end a 7 by q; @120 timer > end b RequestTimeout",
    # Shutdown and cancellation.
    "flow is disowned":
        "left a > read a; running b flow_uuid=flow; pending c flow_uuid=flow;"
        " reply c SUCCESS w1 3 receipt=r > end c 3 by w1; pending d flow_uuid=other;"
        " disown flow; get b live > False; count > 1; save c;"
        " close > end d ExecutionFailure, drop d",
    "closed tracker rejects the request": "close; left a > end a ExecutionFailure",
    "cancelled request waits for its row":
        "left a b > read a, read b; cancel a b; row a OPEN > revoke a;"
        f" revoked a > end a Cancelled; row b CLAIMED w1 > cancel w1 b{FENCE}, ask w1 b{FENCE}",
    "ledger=None: cancelled request is not sent again":
        f"left a kind=Again; ask > ask all a{FENCE}; cancel a > cancel all a{FENCE};"
        " @3 timer > end a Cancelled",
    "request that is cancelled when it is submitted is not sent, but its result is awaited":
        "left a b cancelled=True > read a, read b; row a None > end a Cancelled;"
        f" row b CLAIMED w1 > ask w1 b{FENCE}; get b live > True",
    "ledger=None: request is cancelled when it is submitted":
        f"left a cancelled=True > cancel all a{FENCE}; @3 timer > end a Cancelled",
    "request is cancelled when it is submitted, and no earlier run used workers":
        "expect None; left a cancelled=True > end a Interrupted",
    "request is cancelled when it is submitted, and its row is in another ledger":
        "expect other; left a cancelled=True kind=Again > read a; row a None > end a WorkerLost",
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_recovered_request_has_expected_effects(name: str) -> None:
    play(name, SCENARIOS[name])


def test_request_without_row_is_lost_if_flow_used_another_ledger() -> None:
    script = Script()
    script.expect("an earlier run used redis://one, and this run uses redis://two")
    script.play("left a > read a; row a None > end a WorkerLost")
    assert script.failure("a") == (
        "whether task 'a' (execute) ran is unknown, because an earlier run used redis://one,"
        " and this run uses redis://two; resume the flow with the broker and ledger of its earlier"
        " run, or set idempotent = True if the task may run twice"
    )


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ({"": HERE}, ""),
        ({"": HERE, "a": "the ledger redis://h"}, "used the ledger redis://h, and this run"),
        ({"a": "the ledger y", "b": "the ledger x"}, "used the ledger x and the ledger y, and"),
        ({"a": HERE}, "rows of an earlier run in no ledger"),
    ],
    ids=["same-ledger", "both-ledgers", "other-ledgers", "lost-rows"],
)
def test_executor_names_the_ledgers_of_earlier_runs(used: dict[str, str], reason: str) -> None:
    made = executor.WorkerTaskExecutor("one", "default", url="amqp://me:secret@host")
    assert made.ledger_place == HERE
    made.expect("flow", used)
    found = made._tracker._origins["flow"]
    assert found is not None and (re.search(reason, found) if reason else not found)


@pytest.mark.parametrize(
    ("url", "place", "shown"),
    [
        ("amqp://here", "redis://me:secret@host:1/2", "the ledger redis://host:1/2"),
        ("amqp://here", "dir:///tmp/rows", "the ledger dir:///tmp/rows"),
        ("amqp://here", "none", "no ledger with the broker amqp://here"),
        ("memory://here", None, "the ledger of the broker memory://here"),
    ],
)
def test_place_of_ledger_is_shown_without_password(url: str, place: str | None, shown: str) -> None:
    made = executor.WorkerTaskExecutor("one", "default", url=url, ledger=place)
    assert made.ledger_place == shown
