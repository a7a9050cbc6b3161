"""Names of message headers.

Only the package `messages` uses them; the rest of the wire reads attributes of typed messages.
"""

from __future__ import annotations

from typing import Final

from wbengine._text import data_formats

#: The format of the message. Peers that do not send it are TaskFlow's.
VERSION: Final = str(data_formats.MESSAGE.written)

# Headers of Celery's protocol.
#: Language of the task: `py`.
LANG: Final = "lang"
#: Class of the task.
TASK: Final = "task"
#: Id of the request.
ID: Final = "id"
#: Id of the flow.
ROOT_ID: Final = "root_id"
#: Number of earlier attempts of the task: the attempt minus one.
RETRIES: Final = "retries"
#: `[hard, soft]` in seconds or null.
TIMELIMIT: Final = "timelimit"
#: Unix seconds after which a request must not be started. Only used without a ledger.
EXPIRES: Final = "expires"
#: The arguments for display, masked and truncated (see `argument_display`).
ARGSREPR: Final = "argsrepr"
KWARGSREPR: Final = "kwargsrepr"

# Headers of wbengine.
#: Format of the message.
WBE_VERSION: Final = "wbe-version"
#: Number of this execution or reversion of the atom within its flow.
WBE_ATTEMPT: Final = "wbe-attempt"
#: Epoch of the request; it increases each time the engine resends the same attempt.
WBE_EPOCH: Final = "wbe-epoch"
#: Number of this reply among the replies for one (id, epoch), from 1.
WBE_SEQ: Final = "wbe-seq"
#: Identity of the worker process that sends the message.
WBE_WORKER: Final = "wbe-worker"
#: Number of slots of the worker, and number of its running tasks.
WBE_SLOTS: Final = "wbe-slots"
WBE_RUNNING: Final = "wbe-running"
#: Ids of the requests that the worker runs for the receiving engine. Absent in broadcasts.
WBE_IDS: Final = "wbe-ids"
#: Unix time when a worker sends the message, or when a request was dead-lettered.
WBE_TIME: Final = "wbe-time"
#: State of the worker (see `life`).
WBE_LIFE: Final = "wbe-life"
#: In a terminal FAILURE: no worker completed the request, and its effects are unknown.
WBE_LOST: Final = "wbe-lost"
#: In a dead letter: the reason.
WBE_DEAD: Final = "wbe-dead"
#: In an announcement: formats of requests that the worker reads.
WBE_FORMATS: Final = "wbe-formats"
#: In a dead letter: queue from which it was consumed.
WBE_QUEUE: Final = "wbe-queue"
#: Heartbeat period in seconds, of a worker or requested by an engine.
WBE_PERIOD: Final = "wbe-period"
#: Kind of a worker's NOTIFY: READY, STOPPED or BEAT.
WBE_STATE: Final = "wbe-state"
#: In an announcement: version of wbengine of the worker.
WBE_SOFTWARE: Final = "wbe-software"
#: Version of the user's code.
WBE_CODE: Final = "wbe-code"
#: Digest of the ledger with the row of a request; in an announcement, of the worker's ledger.
WBE_LEDGER: Final = "wbe-ledger"
#: In a request: the engine stores the log records of its task.
WBE_LOGS: Final = "wbe-logs"
#: In a request: the engine reads results that are stored out of line.
WBE_PAYLOADS: Final = "wbe-payloads"
#: In a request of a task with a transaction: the key of its row, and the highest attempt whose
#: result was recorded before its latest execution began (see `_calls.invocation`).
WBE_ROW: Final = "wbe-row"
WBE_SETTLED: Final = "wbe-settled"
#: In a reply: number of the ask that it answers; 0 if it answers none.
WBE_ASK: Final = "wbe-ask"
#: Marks a message that an engine sends to itself, to verify that it still receives messages.
WBE_ECHO: Final = "wbe-echo"
#: Unix time of the start and the end of a task on the worker's clock. The start is also in replies
#: about a running task.
WBE_STARTED: Final = "wbe-started"
WBE_ENDED: Final = "wbe-ended"

#: Signature: version, key id, time, nonce, receiver and MAC (see `signing`).
WBE_SIGNATURE: Final = "wbe-signature"
#: Id of the key that decrypts the body. An encrypted body is base64 text.
WBE_ENCRYPTED: Final = "wbe-encrypted"

#: Headers that brokers add to delivered messages.
ADDED_BY_BROKERS: Final = (
    "x-death", "x-delivery-count", "x-acquired-count",
    "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
    "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
)  # fmt: skip
