"""Requests without recent reports: lost workers, resends and asks, without I/O."""

from __future__ import annotations

from typing import Final

import pytest

from tests.unit.tracker_scripts import Script, play
from tests.unit.trackers import T0, Bench, Fleet
from wbengine.engines.worker_based._engine_side.ledger_operations import LedgerWriter
from wbengine.engines.worker_based._engine_side.tracker_events import FlowGuards, LockedTracker
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.recovery_with_ledger import MAX_FRONT_ROWS
from wbengine.engines.worker_based._requests.tracker import RequestTracker
from wbengine.transports._memory.memory_broker import MemoryLedger

#: The loss of the worker of `a`, with a ledger: its row is reopened, or concluded.
REOPENED: Final = "lost w1 > read a lost=w1; row a CLAIMED w1 lost=w1 > reopen a2; reopened a"
CONCLUDED: Final = "lost w1 > read a lost=w1; row a CLAIMED w1 lost=w1 > conclude a w1; concluded a"
#: Times of the copies of a request that idle workers do not start. The pauses grow, because at a
#: constant pace, a slow queue would grow.
COPIES: Final = (10, 30, 60, 110, 170, 230, 290)
UNCONFIRMED: Final = "unconfirmed a 1 > ask all a1, ask q/0 a1"

SCENARIOS: Final[dict[str, str]] = {
    # Lost owner.
    "row of repeatable request is reopened once, and replies of the frozen worker are dropped":
        f"running a kind=Again; {REOPENED} > send a2; reopened a;"
        " get a state worker epoch resends > PENDING None 2 1;"
        " reply a SUCCESS w1 3 epoch=1 > ack; ignored > old_epoch=1;"
        " reply a SUCCESS w2 3 > end a 3 by w2",
    "row of a lost worker with two topics is reopened twice, and another worker has the request":
        f"running a kind=Again; {REOPENED} > send a2; reply a RUNNING w2 > ack; reopened a epoch=2;"
        " get a state epoch resends > RUNNING 2 1; reply a SUCCESS w2 3 > end a 3 by w2",
    "incidents are stored before the resend":
        f"running a sink=True kind=Again; {REOPENED} > WORKER_LOST a w1, RESENT a w1, send a2",
    "ledger=None: incidents are stored before the resend":
        "running a sink=True kind=Again; lost w1 > WORKER_LOST a w1, RESENT a w1, send a2",
    "incident is stored before the task fails":
        f"running a sink=True; {CONCLUDED} > WORKER_LOST a w1, end a WorkerLost by w1",
    "ledger=None: incident is stored before the task fails":
        "running a sink=True; lost w1 > WORKER_LOST a w1, end a WorkerLost by w1",
    "claimed request without a slot is queued until it runs":
        "pending a sink=True; snapshot a > queued None; row a CLAIMED w1 > claimed a w1;"
        " snapshot a > queued w1; reply a RUNNING w1 > started a w1, ack;"
        " snapshot a > started w1; reply a RUNNING w1 > ack; ignored > duplicate=1",
    "reply to an ask has a start time if the task runs":
        "pending a sink=True; row a CLAIMED w1 > claimed a w1; has a w1 > ack;"
        " snapshot a > queued w1; has a w1 started_at=5.0 > started a w1, ack;"
        " snapshot a > started w1",
    "claimed request ends":
        "pending a sink=True; row a CLAIMED w1 > claimed a w1;"
        " reply a SUCCESS w1 3 > end a 3 by w1; snapshot a > finished w1",
    "reopen finds a result": f"running a kind=Again; {REOPENED} 3 > end a 3 by w1",
    **{
        f"ledger={ledger} on_worker_lost={option}: {action} of {kind}":
            f"running a kind={kind} action={action}; " + (
                (REOPENED if ledger else "lost w1") + " > send a2"
                if kind == "Again" or (kind, option) == ("Job", "resend")
                else (CONCLUDED if ledger else "lost w1") + " > end a WorkerLost by w1"
            )
        for ledger in ("ledger-1", None) for option in ("fail", "resend")
        for kind in ("Job", "Never", "Again") for action in ("execute", "revert")
    },
    "max_resends=1: task kills its workers":
        f"running a kind=Again; {REOPENED} > send a2; reply a RUNNING w2 > ack;"
        " lost w2 > read a lost=w2; row a CLAIMED w2 lost=w2 > conclude a w2;"
        " concluded a > dead a, end a WorkerLost by w2; failure a ~ 2 workers were lost",
    "ledger=None max_resends=2: task kills its workers":
        "running a kind=Again; lost w1 > send a2; reply a RUNNING w2 > ack; lost w2 > send a3;"
        " reply a RUNNING w3 > ack; lost w3 > dead a, end a WorkerLost by w3;"
        " failure a ~ 3 workers were lost with this task",
    "ledger is unavailable after the loss":
        "running a kind=Again; lost w1 > read a lost=w1; row a UNKNOWN lost=w1;"
        " @3 timer > read a; row a CLAIMED w1 > reopen a2",
    "reopen fails":
        "running a kind=Again; lost w1 > read a lost=w1; row a CLAIMED w1 lost=w1 > reopen a2;"
        " @6 timer > read a; row a CLAIMED w1 > reopen a2; get a resends > 0",
    "recent heartbeat in the ledger overrides the loss, but not the announced end":
        "running a kind=Again; lost w1 > read a lost=w1;"
        " row a CLAIMED w1 lost=w1 silence=7.4; get a state worker > RUNNING w1;"
        " lost w1 announced=True > read a lost=w1;"
        " row a CLAIMED w1 lost=w1 silence=0.4 > reopen a2",
    **{
        f"worker releases {kind}, which it claimed from a forged copy":
            f"pending a kind={kind}; lacks a w2 ask_number=0 > read a, ack;"
            " row a CLAIMED w1 > ask w1 a1; lacks a w1 > read a, ack; row a OPEN > send a1;"
            " get a state worker resends lookups > PENDING None 0 0;"
            " get a claimed denied > False False;"
            " reply a SUCCESS w1 3 epoch=1 > end a 3 by w1"
        for kind in ("Never", "Again")
    },
    "row is missing":
        "running c kind=Never worker=w2; lost w2 > read c lost=w2;"
        " row c None lost=w2 > end c WorkerLost by w2;"
        " running a kind=Again; lost w1 > read a lost=w1; row a None lost=w1 > send a2;"
        " get a resends state > 1 PENDING;"
        " pending b kind=Again; row b None > send b2; get b resends state > 1 PENDING",
    "timeout=None: repeated checks leave one timer":
        f"running a kind=Again; {REOPENED[:-12]}; "
        + "; ".join(f"@{60 * n} timer > read a; row a CLAIMED w1 > reopen a2" for n in range(1, 20))
        + "; timers > 1",
    # Requests that no worker started.
    "open row is published again after two reports of free slots":
        "pending a; reports 0 1; @5 round; reports 0 2; @10 round > read a; publishing False;"
        " row a OPEN > send a1; get a since > 1000.0; @15 round; @16 publish a;"
        " @60 timer > revoke a",
    "timeout of a request that was published again recently is extended":
        "pending a; @58 publish a; @60 timer; @67 timer; @68 timer > revoke a",
    "timeout=None: pauses between copies grow":
        "pending a; reports 0 2; " + "; ".join(
            f"@{now} round > read a; row a OPEN" + " > send a1" * (now in COPIES)
            for now in range(10, 300, 10)
        ),
    "unknown owner of a row is watched":
        "pending a; reports 0 2; @10 round > read a; row a CLAIMED w9 silence=9.5;"
        " get a worker > w9; watched ~ w9:9.5",
    "ledger=None: idle workers are asked before a resend, and the first copy is cancelled":
        "pending a b kind=Never; reports 0 2; @10 round > ask all a1 b1; has a w1 epoch=1 > ack;"
        " get a state > RUNNING; @20 round > send b2, cancel all b1",
    "ledger=None: no copy of a repeatable request is cancelled":
        "pending a kind=Again; reports 0 2; @10 round > ask all a1; @20 round > send a2",
    "request is overtaken":
        "period 20; pending a b; @9 reply b RUNNING w1 > ack; @10 round; @10.1 round > read a;"
        " row a OPEN > send a1",
    "worker of the free slot may have died after its claim":
        "queue q 4 2; pending a b c; @5 round; @6 round > read a, read b; row a OPEN;"
        " row b CLAIMED w9 silence=6.0; get b state worker > RUNNING w9; queue q 4 0; @66 round",
    "request that was taken before a resend does not count as overtaking":
        "queue q 1 0; pending a b c; @5 reply c RUNNING w1 > ack; @6 publish a; publish b;"
        " @17 round; @18 reply b RUNNING w1 > ack; @19 round > read a",
    **{
        f"ledger=None: lost worker may have had {kind}":
            f"pending a kind={kind}; @5 lost w1; reports 2 2; @10 round > ask all a1;"
            f" @11 round > {end}; get a resends > {resends}"
        for kind, end, resends in (("Again", "send a2", 1), ("Never", "end a WorkerLost", 0))
    },
    "short heartbeat period shortens the check for overtaken requests":
        "period 0.5; pending a b; @0.5 reply b RUNNING w1 > ack; @1 round; @1.1 round > read a",
    # Results of publishing.
    "ledger=None: unrouted request is published again while there are workers":
        "pending a; unrouted a 1; @1 timer > send a1; @2 unrouted a 1; unserve; @10 timer;"
        " queue q 1 1; @11 timer > send a1; @12 unrouted a 0; @20 timer",
    "unconfirmed request is published again":
        "pending a; unconfirmed a 0; unconfirmed a 1 > send a1",
    "ledger=None: workers are asked about an unconfirmed request":
        f"pending a kind=Never; {UNCONFIRMED}; reports 2; @10 round; timer > ask all a1;"
        " reports 2 2; @20 round > send a2, cancel all a1",
    "ledger=None: reply to the ask in the queue shows that earlier messages were consumed":
        "pending a kind=Never priority=7; unconfirmed a 1 > ask all a1, ask q/7 a1; reports 2;"
        " @10 round; lacks a w5 > ask q/7 a1, ack; @20 round; lacks a w5 > ask all a1, ack;"
        " lacks a w6 > ack; reports 1; @30 round; reports 2; searching > True;"
        " @40 round > send a2, cancel all a1; searching > False",
    "ledger=None: request runs that was searched for":
        f"pending a kind=Never; {UNCONFIRMED}; has a w5 epoch=1 > ack; lacks a w6 > ack;"
        " get a state lookups worker > RUNNING 0 w5; reports 2; @20 round",
    "ledger=None: ask in the queue is repeated":
        f"pending a kind=Never; {UNCONFIRMED}; @4 timer > ask all a1; @11 timer > ask all a1;"
        " @24 timer > ask all a1, ask q/0 a1; @50 timer > ask all a1, ask q/0 a1",
    "ledger=None: queue of TaskFlow's workers receives no ask":
        "pending a kind=Never; taskflow; unconfirmed a 1 > ask all a1",
    "ledger=None: reply ends a search":
        f"pending a; {UNCONFIRMED}; reply a RUNNING w1 > ack; reports 2 2; @20 round;"
        " get a live > True; searching > False",
    "ledger=None: search restarts after an outage of the broker":
        f"pending a; {UNCONFIRMED}; reports 0 2; missed 7.0; @20 round > ask all a1;"
        " get a epoch search_started_at > 1 1020.0",
    # Redelivery to a second worker.
    "ledger=None: first worker still runs the redelivered request":
        "running a; redelivered a w2 > ask w1 a1, ack; has a w1 epoch=1 > ack; reports 2;"
        " @20 round; reply a SUCCESS w1 3 > end a 3 by w1",
    **{
        f"ledger=None: first worker does not have the redelivered {kind}":
            f"running a kind={kind}; redelivered a w2 > ask w1 a1, ack; lacks a w1 > {end}, ack"
        for kind, end in (("Again", "send a2"), ("Never", "end a WorkerLost by w1"))
    },
    **{
        f"ledger=None: no worker has the redelivered {kind}":
            f"pending a kind={kind}; redelivered a w2 > ask all a1, ack; get a state > PENDING;"
            f" reports 1; @5 round; reports 2; @10 round > {end}"
        for kind, end in (("Again", "send a2"), ("Never", "end a WorkerLost"))
    },
    "ledger=None: request is redelivered after an outage, and no worker is lost":
        "pending a kind=Never; redelivered a w2 > ask all a1, ack; reports 2; outage -2 1;"
        " @5 round > ask all a1; @10 round > send a2",
    "ledger=None: request is redelivered after an outage, and a worker is lost":
        "pending a kind=Never; redelivered a w2 > ask all a1, ack; @2 lost w1; reports 2;"
        " outage -2 1; @5 round > ask all a1; @10 round > end a WorkerLost",
    "ledger=None: request is redelivered, and there are no workers":
        "pending a; redelivered a w2 > ask all a1, ack; unserve; lost w2; @1 round;"
        " get a state > WAITING; @3 timer > ask all a1; @6 round > end a WorkerLost",
    "ledger=None: frozen worker still runs an old epoch":
        "running a kind=Again; lost w1 > send a2; reply a RUNNING w2 > ack;"
        " redelivered a w3 > ask w2 a2, ack; has a w1 epoch=1 > ack; get a lookups > 1;"
        " has a w2 epoch=2 > ack; get a lookups > 0",
    "ledger=None: returning worker finds the request in its queue":
        "pending a kind=Never; unserve; lost w1; get a state > WAITING; queue q 1 1;"
        " @30 gained Never; get a state epoch sent_at > PENDING 1 1030.0;"
        " reply a SUCCESS w1 3 epoch=1 > end a 3 by w1",
    "ledger=None: lost worker may have had the request that returning workers do not start":
        "pending a kind=Never; @1 unserve; lost w1; queue q 1 1; @30 gained Never; reports 2 2;"
        " @40 round > ask all a1; @50 round > end a WorkerLost",
    # Lost replies.
    "request is missing in two heartbeats":
        "running a b; beat w1 b; @0.01 beat w1 b; @5 beat w2; beat w1 b > read a; @10 beat w1 b;"
        " row a CLAIMED w1 > ask w1 a1",
    "request is missing in alternate heartbeats":
        "running a; " + "; ".join(f"@{n} beat w1; @{n + 5} beat w1 a" for n in range(0, 40, 10)),
    "ledger=None: reply is lost":
        "running a; lacks a w1 > ack; beat w1; @5 beat w1 > ask w1 a1;"
        " reply a SUCCESS w1 3 seq=3 > end a 3 by w1",
    "frequent reports are needed while a queue stands still":
        "needs > False; pending a b; @1 needs > False; @6 needs > True; reply a RUNNING w1 > ack;"
        " @7 needs > False; reply b SUCCESS w1 3 > end b 3 by w1; @100 needs > False",
    "frequent reports are needed while a request is checked":
        "running a; needs > False; row a UNKNOWN; needs > True; @121 needs > False",
    "workers=False: frequent reports are needed while a request waits": "request a; needs > True",
    "dropped replies are counted by reason":
        "pending a sink=True; reply a EVENT w1 1 seq=2 > started a w1, event a e 1, ack;"
        " reply a EVENT w1 1 seq=2 > ack; reply a RUNNING w1 > ack; reply a RUNNING w1 > ack;"
        " reply a RUNNING w1 epoch=7 > ack; reply a SUCCESS w1 3 > end a 3 by w1;"
        " reply a SUCCESS w1 3 > ack; save a > drop a, ack; reply a SUCCESS w1 3 > ack;"
        " ignored > duplicate=2 late=1 old_epoch=1 reordered=1 unknown=1",
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_request_without_recent_reports_has_expected_effects(name: str) -> None:
    play(name, SCENARIOS[name])


def test_failure_after_the_first_loss_mentions_no_other_workers() -> None:
    script = play(
        "max_resends=0:", f"running a kind=Again; {CONCLUDED} > dead a, end a WorkerLost by w1"
    )
    assert "workers were lost" not in script.failure("a")


def test_first_publication_after_opening_the_row_counts_as_one() -> None:
    """The count determines the pause before the next copy."""
    entry = Bench().pending()
    effect = fx.Dispatch(entry, 1, env.Envelope("", {}))
    requests = LockedTracker(RequestTracker("e", Fleet()), print)
    writer = LedgerWriter(None, requests, FlowGuards())
    writer.use(MemoryLedger())
    message = writer.message(effect)
    message.hooks.prepare([message])
    writer.close()
    assert entry.publish_count == 1 and not message.withdrawn


def test_only_front_and_overtaken_requests_of_a_queue_are_inspected() -> None:
    """Otherwise each lost worker would cost a lookup of every queued request."""
    script = Script()
    script.queue("q", 1000, 0)
    labels = [f"r{n}" for n in range(MAX_FRONT_ROWS + 50)]
    script.request(*labels)
    for label in labels:
        script.publish(label)
    line = list(script.entries.values())[:-1]
    assert script.lost("w1") == [fx.Inspect(entry, "w1") for entry in line[:MAX_FRONT_ROWS]]
    script.now = T0 + 5
    script.reply(labels[-1], "RUNNING", "w1")
    script.now = T0 + 11
    assert script.round() == [fx.Inspect(entry) for entry in line]
    script.unserve()  # Without workers, all requests of the queue are inspected.
    assert script.lost("w2") == [fx.Inspect(entry, "w2") for entry in line]
