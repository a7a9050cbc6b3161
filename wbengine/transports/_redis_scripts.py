"""Lua scripts of the Redis transport. Each runs atomically in the server.

Keys, all below one prefix:

    m         id of the data (new after a loss), version of the routing, last message number,
              time of the last `tend`, and time since which `tend` has run without a long pause
    x, b      exchanges with their kinds; bindings as `exchange NUL queue NUL key`
    qs, own   queues; owned queues with the time of the owner's last report
    q:QUEUE   waiting messages: numbers, with an `r` if redelivered, by (9 - priority, number)
    d:QUEUE   waiting and taken messages, by number
    b:ID      body that is stored out of line. The number of its message is `number@ID`, or
              `number&ID` if a row of the ledger owns the body, which is then deleted with the
              row. A body without a message expires soon
    c         consumers with the time of their last report (server clock, milliseconds)
    h:WHO     messages of a consumer: `queue number`, with the place in the queue and the take
    bell:QUEUE, n:WHO   lists for blocking waits

Keys of the ledger in the same database. The script that takes requests also claims its rows:

    r:ID          a row: epoch `e`, state `s`, holder `h`, result `d`, ID of the rest of the result
                  `b` if it is out of line, name of the claim `k`, incarnation in which the row was
                  opened `l`, milliseconds until a DONE row expires `t` if its engine wants less
                  than a week
    rows          ids, by the time at which their rows were opened or finished (server clock,
                  milliseconds)
    held:HOLDER   ids of the rows that a holder has claimed
    beats         holders with the time of their last heartbeat
    ledger        identifier of the ledger
    server        `run_id` of the server `run`, number of its incarnation `life`, number of claims
                  and revocations `count`, and its value at the start of the incarnation `boot`;
                  time until which claims are refused `hold`; rows that were OPEN before the
                  incarnation `from` are treated as lost
    users         processes that use the ledger, with the time of their last report
    session:USER  number of the session of a user, and of the last row that was created in one step
                  with publishing its request; `*`: the server may have lost this number

A restarted server begins a new incarnation, perhaps with less data: a request that was OPEN when
the data was saved may have run since. Each connection to a ledger begins with `arrive`, which
detects a new incarnation before any claim.

A server without free memory refuses a script whose first write needs memory, but no later write.
Scripts that must always work therefore begin with a write that needs none. `publish` begins with a
write that needs memory, so it is refused before it changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wbengine import _lua
from wbengine.transports.broker import MAX_BATCH_BYTES

#: Time after which a consumer without reports is dead and its messages are requeued.
DEAD_AFTER_SECONDS: Final = 10
#: Time without reports of its owner after which an owned queue is deleted.
OWNED_QUEUE_SECONDS: Final = 600
#: Time after which silent consumers no longer prevent that the last leaving one deletes all keys.
GONE_AFTER_SECONDS: Final = 15
#: Time after which unused keys expire.
UNUSED_KEY_SECONDS: Final = 7 * 24 * 3600
#: Time after which an out-of-line body expires.
BODY_SECONDS: Final = 30 * 24 * 3600
#: Time after which an unused ledger and its users expire.
UNUSED_LEDGER_SECONDS: Final = 30 * 24 * 3600
#: Time in which a restarted server refuses claims. In this time all clients reconnect, and report
#: claims that the server lost.
CLAIM_REFUSAL_SECONDS: Final = 3
#: Holder of rows that are OPEN although a worker may have claimed them before a loss of data.
FORGOTTEN: Final = "forgotten-by-redis"
#: Time after which an unused row expires.
ROW_SECONDS: Final = 7 * 24 * 3600

#: Constants of the scripts of the transport and of the ledger. Times are in milliseconds.
CONSTANTS: Final[Mapping[str, int | str]] = {
    "TTL": UNUSED_KEY_SECONDS * 1000,
    "OWNED": OWNED_QUEUE_SECONDS * 1000,
    "GONE": GONE_AFTER_SECONDS * 1000,
    "BODY_TTL": BODY_SECONDS * 1000,
    "FORGOTTEN": FORGOTTEN,
    "HOLD": CLAIM_REFUSAL_SECONDS * 1000,
    "LEDGER_TTL": UNUSED_LEDGER_SECONDS * 1000,
    "ROW_TTL": ROW_SECONDS * 1000,
    "MAX_BATCH_BYTES": MAX_BATCH_BYTES,
}
_FOLDER: Final = Path(__file__).parent / "redis_scripts"
#: Functions that scripts of the ledger use too.
SHARED: Final = _FOLDER / "shared"
SCRIPTS: Final = _lua.load(_FOLDER, CONSTANTS)
