"""Tables and statements of the transport through MySQL and MariaDB.

The statements have the names, values and results of those for PostgreSQL
(`postgresql_statements`). Each is SQL, or a function that executes several in one transaction at
level READ COMMITTED, which locks no gaps between rows. These rules prevent most deadlocks:

- Rows are locked in the order: queues, consumers, messages, rows of requests by id.
- Messages are changed by their primary keys. A scan would also lock the rows of others.
- `wbe_messages_place` contains the order of a take. A take that sorts would lock a whole queue.

A locking read sees newer rows than other reads of the same statement. So a result is read after its
message is locked.

    wbe_transport   format, and the version of the routing
    wbe_queues      name, whether a connection owns the queue, and when its consumers last reported
    wbe_bindings    exchange, key and queue
    wbe_messages    waiting messages (consumer ''), and taken ones with the name of their consumer
    wbe_consumers   consumers and their last reports

Times are seconds on the clock of the server.
"""
# The functions have the names of statements.
# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import pymysql

from wbengine._sql import dialects
from wbengine.transports._table_ledger import CLAIMED, DONE, OPEN, replacing_open_rows

Values = Mapping[str, Any]
Rows = list[tuple[Any, ...]]

NOW: Final = dialects.now(dialects.MYSQL)

_TABLE: Final = "ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
_KEY: Final = f"varchar({dialects.MAX_KEY_LENGTH})"
TABLES: Final = (
    f"""CREATE TABLE IF NOT EXISTS wbe_queues(
  name {_KEY} PRIMARY KEY, owned boolean NOT NULL, used double NOT NULL) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS wbe_bindings(
  exchange {_KEY}, routing_key {_KEY}, queue {_KEY},
  PRIMARY KEY (exchange, routing_key, queue)) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS wbe_consumers(
  name varchar(32) PRIMARY KEY, beat double NOT NULL) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS wbe_messages(
  n bigint AUTO_INCREMENT PRIMARY KEY, queue {_KEY} NOT NULL, place smallint NOT NULL,
  at double NOT NULL, consumer varchar(32) NOT NULL DEFAULT '', take bigint,
  claimed boolean NOT NULL DEFAULT false, again boolean NOT NULL DEFAULT false,
  id {_KEY}, epoch bigint, result_of {_KEY}, size int NOT NULL DEFAULT 0, data longblob,
  INDEX wbe_messages_place (consumer, queue, place, n)) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS wbe_transport(
  one smallint PRIMARY KEY, format int NOT NULL, routes bigint NOT NULL,
  swept double NOT NULL) {_TABLE}""",
)
FORMAT: Final = "SELECT format FROM wbe_transport"
CREATE_ABOUT: Final = f"INSERT IGNORE INTO wbe_transport VALUES (1, %(format)s, 0, {NOW})"
DIGEST: Final = "SELECT digest FROM wbe_ledger_about"

#: Maximum size of an INSERT of several rows. A larger row is inserted alone.
_MAX_INSERT_BYTES: Final = 1024 * 1024
#: Largest message that is read together with its lock; others are read after their batch is chosen.
_MAX_INLINE_BYTES: Final = 64 * 1024


class Transaction:
    """A transaction. Its owner ends it.

    :param max_message_bytes: the maximum size of a message that the server accepts.
    :ivar routes: the version of the routing that a statement has read; None: not yet.
    """

    def __init__(self, driver: Any, max_message_bytes: int) -> None:
        self._cursor = driver.cursor()
        self._max_insert_bytes = min(_MAX_INSERT_BYTES, max_message_bytes)
        self.routes: int | None = None

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Any]:
        self._cursor.execute(statement, values)
        return list(self._cursor.fetchall())

    def count(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
        """Execute a statement. Return the number of matching rows."""
        return int(self._cursor.execute(statement, values))

    def roll_back(self) -> None:
        """Undo all statements, and begin again."""
        self._cursor.execute("ROLLBACK")
        self.routes = None

    def insert_new(self, statement: str, values: Mapping[str, Any]) -> bool:
        """Insert a row unless it exists. Return whether it is new."""
        try:
            self._cursor.execute(statement, values)
        except pymysql.IntegrityError:
            return False
        return True

    def insert(
        self, start: str, row: str, rows: Sequence[Mapping[str, Any]], end: str = ""
    ) -> None:
        """Insert rows in their order, with as many statements as their sizes require.

        :param start: the statement before its rows, and `row` is one of them.
        """
        texts_of_rows = [self._cursor.mogrify(row, values) for values in rows]
        for texts in _batches(texts_of_rows, self._max_insert_bytes):
            self._cursor.execute(f"{start} {', '.join(texts)} {end}")


def _batches(texts: Sequence[str], max_bytes: int) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > max_bytes:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


# Routing.

ROUTES: Final = "SELECT routes FROM wbe_transport"
BINDINGS: Final = (
    "SELECT queue, exchange, routing_key FROM wbe_bindings ORDER BY exchange, queue, routing_key"
)
QUEUES: Final = "SELECT name FROM wbe_queues"
PURGE_LIMIT: Final = 1000
_WAITING: Final = "FROM wbe_messages FORCE INDEX (wbe_messages_place) WHERE consumer = ''"
SIZE: Final = f"SELECT count(*) {_WAITING} AND queue = %(queue)s"
SILENT_QUEUES: Final = f"SELECT name FROM wbe_queues WHERE owned AND used < {NOW} - %(seconds)s"
_NEW_ROUTES: Final = "UPDATE wbe_transport SET routes = routes + 1"


def DECLARE_QUEUE(transaction: Transaction, values: Values) -> Rows:
    used = f"UPDATE wbe_queues SET used = {NOW}, owned = owned OR %(owned)s WHERE name = %(queue)s"
    if not transaction.count(used, values):
        queue = f"INSERT INTO wbe_queues VALUES (%(queue)s, %(owned)s, {NOW})"
        if transaction.insert_new(queue, values):
            transaction.count(_NEW_ROUTES)
        else:  # Another process has just declared it.
            transaction.count(used, values)
    return []


def BIND(transaction: Transaction, values: Values) -> Rows:
    binding = "INSERT INTO wbe_bindings VALUES (%(exchange)s, %(key)s, %(queue)s)"
    if transaction.insert_new(binding, values):
        transaction.count(_NEW_ROUTES)
    return []


def UNBIND(transaction: Transaction, values: Values) -> Rows:
    binding = "exchange = %(exchange)s AND routing_key = %(key)s AND queue = %(queue)s"
    if transaction.count(f"DELETE FROM wbe_bindings WHERE {binding}", values):
        transaction.count(_NEW_ROUTES)
    return []


def DELETE_QUEUE(transaction: Transaction, values: Values) -> Rows:
    return [(_delete_queues(transaction, "name = %(queue)s", values),)]


def DELETE_SILENT_QUEUES(transaction: Transaction, values: Values) -> Rows:
    """Delete owned queues whose owners are silent."""
    own = {**values, "own": [*values["own"], ""]}  # SQL has no empty list.
    is_silent = f"owned AND used < {NOW} - %(seconds)s AND name NOT IN %(own)s"
    return [(_delete_queues(transaction, is_silent, own),)]


def DELETE_UNUSED_QUEUES(transaction: Transaction, values: Values) -> Rows:
    """Delete queues without recent messages that are not consumed."""
    is_unused = (
        f"used < {NOW} - %(seconds)s AND NOT EXISTS (SELECT 1 FROM wbe_messages m"
        f" WHERE m.queue = name AND at > {NOW} - %(seconds)s)"
    )
    return [(_delete_queues(transaction, is_unused, values),)]


def _delete_queues(transaction: Transaction, condition: str, values: Values) -> int:
    """Delete queues and their messages. Return the number of waiting ones."""
    names = _column(transaction.rows(f"SELECT name FROM wbe_queues WHERE {condition}", values))
    if names:  # Their owners may have reported since.
        is_still = f"name IN %(names)s AND {condition} FOR UPDATE"
        again = {**values, "names": names}
        names = _column(transaction.rows(f"SELECT name FROM wbe_queues WHERE {is_still}", again))
    if not names:
        return 0
    given = {"names": names}
    transaction.count("DELETE FROM wbe_queues WHERE name IN %(names)s", given)
    transaction.count("DELETE FROM wbe_bindings WHERE queue IN %(names)s", given)
    transaction.count(_NEW_ROUTES)
    waiting = _column(transaction.rows(f"SELECT n {_WAITING} AND queue IN %(names)s", given))
    taken = f"SELECT n {_WAITING.replace('=', '>')} AND queue IN %(names)s"
    _delete_messages(transaction, [*waiting, *_column(transaction.rows(taken, given))])
    return len(waiting)


def _delete_messages(transaction: Transaction, numbers: Sequence[int]) -> None:
    for start in range(0, len(numbers), PURGE_LIMIT):
        part = {"numbers": numbers[start : start + PURGE_LIMIT]}
        transaction.count("DELETE FROM wbe_messages WHERE n IN %(numbers)s", part)


def DELETE_ORPHANS(transaction: Transaction, values: Values) -> Rows:
    """Delete messages that were published while their queues were deleted."""
    orphans = (
        f"SELECT n FROM wbe_messages WHERE at < {NOW} - %(seconds)s AND NOT EXISTS"
        " (SELECT 1 FROM wbe_queues WHERE name = queue)"
    )
    _delete_messages(transaction, _column(transaction.rows(orphans, values)))
    return []


def PURGE(transaction: Transaction, values: Values) -> Rows:
    waiting = f"SELECT n {_WAITING} AND queue = %(queue)s FOR UPDATE SKIP LOCKED"
    numbers = _column(transaction.rows(waiting, values))
    _delete_messages(transaction, numbers)
    return [(len(numbers),)]


def SWEEP_DUE(transaction: Transaction, values: Values) -> Rows:
    """Reserve the sweep of unused queues and their messages."""
    is_due = f"swept < {NOW} - %(seconds)s"
    if not transaction.rows(f"SELECT 1 FROM wbe_transport WHERE {is_due}", values):
        return []
    reserved = transaction.count(f"UPDATE wbe_transport SET swept = {NOW} WHERE {is_due}", values)
    return [(1,)] * reserved


# Messages. Statements that publish do nothing unless the routing has the expected version.


def _is_routed(transaction: Transaction, values: Values) -> bool:
    if transaction.routes is None:
        ((transaction.routes,),) = transaction.rows(ROUTES)
    return bool(transaction.routes == values["routes"])


def _publish(transaction: Transaction, messages: Iterable[Values]) -> None:
    transaction.insert(
        "INSERT INTO wbe_messages(queue, place, at, id, epoch, result_of, size, data) VALUES",
        f"(%(queue)s, %(place)s, {NOW}, %(id)s, %(epoch)s, %(result_of)s, %(size)s, %(data)s)",
        [{"id": None, "epoch": None, "result_of": None, **message} for message in messages],
    )


def PUBLISH(transaction: Transaction, values: Values) -> Rows:
    if not _is_routed(transaction, values):
        return [(0,)]
    names = "queue", "place", "id", "epoch", "data"
    columns = (values[name] for name in ("queues", "places", "ids", "epochs", "data"))
    messages = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    _publish(transaction, ({**message, "size": len(message["data"])} for message in messages))
    return [(len(messages),)]


def _places(values: Values) -> Iterable[tuple[int, str, int]]:
    """Yield the index of each message, with one of its queues and its place there."""
    columns = values["numbers"], values["queues"], values["places"]
    for number, queue, place in zip(*columns, strict=True):
        yield number - 1, queue, place


def OPEN_AND_PUBLISH(
    transaction: Transaction, values: Values, fenced: Set[str] = frozenset()
) -> Rows:
    """Open rows, which replace OPEN rows with lower epochs, and publish their requests.

    Requests of runs below their fence are left out. The messages of rows that an earlier attempt
    tried to open are published only if this statement opens them.

    :param fenced: ids of rows whose runs are known to be below their fences.
    """
    if not _is_routed(transaction, values):
        return [(0,)]
    ids, epochs, data = values["ids"], values["epochs"], values["data"]
    tried = [id for id, was_tried in zip(ids, values["tried"], strict=True) if was_tried]
    left_out = {*fenced}
    new = sorted(row for row in zip(ids, epochs, strict=True) if row[0] not in left_out)
    if tried:
        epochs_by_id = dict(new)
        left_out |= {
            id
            for id, (epoch, state, *_) in _locked_rows(transaction, tried).items()
            if state != OPEN or epoch >= epochs_by_id.get(id, 0)
        }
    transaction.insert(
        "INSERT INTO wbe_ledger(id, epoch, state, changed) VALUES",
        f"(%(id)s, %(epoch)s, {OPEN}, {NOW})",
        [{"id": id, "epoch": epoch} for id, epoch in new],
        replacing_open_rows("wbe_ledger", is_mysql=True),
    )
    # This process can be frozen before each statement. Now a run that raises a fence after the
    # check waits for the locks of the rows.
    below_fence = _below_fence(transaction, values)
    if not below_fence <= fenced:
        transaction.roll_back()
        return OPEN_AND_PUBLISH(transaction, values, below_fence)
    _publish(
        transaction,
        (
            {
                "queue": queue, "place": place, "id": ids[index], "epoch": epochs[index],
                "size": len(data[index]), "data": data[index],
            }
            for index, queue, place in _places(values)
            if ids[index] not in left_out
        ),
    )  # fmt: skip
    return [(len(ids),)]


def _below_fence(transaction: Transaction, values: Values) -> set[str]:
    """Return the ids of the rows whose runs are below their fences."""
    fences = sorted({fence for fence in values["fences"] if fence})
    if not fences:
        return set()
    rows = "SELECT id, epoch FROM wbe_ledger WHERE id IN %(fences)s"
    raised = dict(transaction.rows(rows, {"fences": fences}))
    runs = zip(values["ids"], values["fences"], values["runs"], strict=True)
    return {id for id, fence, run in runs if raised.get(fence, run) > run}


def _locked_rows(
    transaction: Transaction, ids: Iterable[str]
) -> dict[str, tuple[int, int, str | None, bytes | None]]:
    """Lock the rows of requests. Return epoch, state, holder and result by id."""
    given = sorted({*ids})
    if not given:  # SQL has no empty list.
        return {}
    statement = (
        "SELECT id, epoch, state, holder, result FROM wbe_ledger WHERE id IN %(ids)s"
        " ORDER BY id FOR UPDATE"
    )
    return {id: tuple(row) for id, *row in transaction.rows(statement, {"ids": given})}


def FINISH(transaction: Transaction, values: Values) -> Rows:
    """Finish requests: store each result, publish the reply, delete the message.

    A request whose row belongs to another process is only deleted. Return the number of all
    requests, and the positions of these.
    """
    if not _is_routed(transaction, values):
        return [(0, [])]
    ids, epochs, data = values["ids"], values["epochs"], values["data"]
    SETTLE(transaction, {"numbers": values["taken"], "consumers": values["consumers"]})
    rows = _locked_rows(transaction, ids)
    done = [
        id in rows and rows[id][:3] == (epoch, CLAIMED, values["holder"])
        for id, epoch in zip(ids, epochs, strict=True)
    ]
    is_foreign = [
        not is_done and id in rows and rows[id][:2] != (epoch, DONE)
        for is_done, id, epoch in zip(done, ids, epochs, strict=True)
    ]
    results = zip(ids, epochs, data, done, strict=True)
    transaction.insert(
        "INSERT INTO wbe_ledger(id, epoch, state, changed, result) VALUES",
        f"(%(id)s, %(epoch)s, {DONE}, {NOW}, %(data)s)",
        sorted(
            ({"id": id, "epoch": epoch, "data": result} for id, epoch, result, is_done in results
             if is_done),
            key=lambda row: str(row["id"]),
        ),
        "ON DUPLICATE KEY UPDATE state = VALUES(state), holder = NULL, changed = VALUES(changed),"
        " result = VALUES(result)",
    )  # fmt: skip
    _publish(
        transaction,
        (
            {
                "queue": queue, "place": place, "size": len(data[index]),
                "result_of": ids[index] if done[index] else None,
                "data": None if done[index] else data[index],
            }
            for index, queue, place in _places(values)
            if not is_foreign[index]
        ),
    )  # fmt: skip
    return [(len(ids), [number for number, foreign in enumerate(is_foreign, 1) if foreign])]


PICK: Final = f"""
SELECT n, queue, again, id, epoch, result_of, size, IF(size <= {_MAX_INLINE_BYTES}, data, NULL)
{_WAITING} AND queue = %(queue)s
  AND EXISTS (SELECT 1 FROM wbe_consumers WHERE name = %(consumer)s)
ORDER BY place, n LIMIT %(limit)s FOR UPDATE SKIP LOCKED"""


def TAKE(transaction: Transaction, values: Values) -> Rows:
    """Take the first messages of the queues, and claim the rows of their requests for the holder.

    See `postgresql_statements.TAKE`.
    """
    if values["routes"] is not None and not _is_routed(transaction, values):
        return []
    picked: Rows = []
    for queue in values["queues"]:
        if len(picked) < values["limit"]:
            limit = values["limit"] - len(picked)
            picked += transaction.rows(PICK, {**values, "queue": queue, "limit": limit})
    chosen: Rows = []
    total = 0
    for row in picked:
        total += row[6]
        if chosen and total > values["bytes"]:
            break
        chosen.append(row)
    if not chosen:
        return []
    ids = [id for _, _, _, id, *_ in chosen if id is not None]
    rows = {} if values["holder"] is None else _locked_rows(transaction, ids)
    claimed = _claim(transaction, values["holder"], chosen, rows)
    transaction.count(
        "UPDATE wbe_messages SET consumer = %(consumer)s, take = %(take)s,"
        " claimed = n IN %(claimed)s WHERE n IN %(numbers)s",
        # No message has the number 0. SQL has no empty list.
        {**values, "claimed": [*claimed, 0], "numbers": _column(chosen)},
    )
    data = _data(transaction, chosen)
    return [
        (
            len(picked), n, queue, bool(again), data[n], id, epoch, n in claimed,
            *((None,) * 4 if n in claimed else rows.get(id, (None,) * 4)),
        )
        for n, queue, again, id, epoch, *_ in chosen
    ]  # fmt: skip


def _claim(
    transaction: Transaction,
    holder: str | None,
    messages: Rows,
    rows: Mapping[str, tuple[Any, ...]],
) -> set[int]:
    """Claim the open rows. Return the first message of each."""
    claimed: dict[str, int] = {}
    for n, _, _, id, epoch, *_ in messages:
        if id in rows and rows[id][:2] == (epoch, OPEN):
            claimed[id] = min(n, claimed.get(id, n))
    statement = (
        f"UPDATE wbe_ledger SET state = {CLAIMED}, holder = %(holder)s, changed = {NOW}"
        " WHERE id IN %(ids)s AND EXISTS"
        " (SELECT 1 FROM wbe_ledger_holders h WHERE h.holder = %(holder)s)"
    )
    values = {"holder": holder, "ids": sorted(claimed)}
    return {*claimed.values()} if claimed and transaction.count(statement, values) else set()


def _data(transaction: Transaction, messages: Rows) -> dict[int, bytes | None]:
    """Return the data of messages. None: it was the result of a row that has been deleted."""
    data = {n: inline for n, *_, inline in messages}
    results = [result_of for *_, result_of, _, _ in messages if result_of is not None]
    large = [n for n, *_, result_of, _, inline in messages if inline is None and result_of is None]
    if large:
        statement = "SELECT n, data FROM wbe_messages WHERE n IN %(numbers)s"
        data.update(transaction.rows(statement, {"numbers": large}))
    if results:
        statement = "SELECT id, result FROM wbe_ledger WHERE id IN %(ids)s"
        stored = dict(transaction.rows(statement, {"ids": results}))
        for n, *_, result_of, _, _ in messages:
            if result_of is not None:
                data[n] = stored.get(result_of)
    return data


def SETTLE(transaction: Transaction, values: Values) -> Rows:
    # The expression prevents a scan of the index by consumer.
    condition = "n IN %(numbers)s AND concat(consumer, '') IN %(consumers)s"
    return [()] * transaction.count(f"DELETE FROM wbe_messages WHERE {condition}", values)


_OLD: Final = """
SELECT n, queue, id, epoch, claimed, take FROM wbe_messages
WHERE n = %(n)s AND concat(consumer, '') = %(consumer)s FOR UPDATE"""


def _unclaim(transaction: Transaction, messages: Rows, holder: str | None) -> None:
    """Undo the claims that were made with these messages."""
    for _, _, id, epoch, claimed, _ in sorted(messages, key=lambda row: str(row[2])):
        if claimed and holder is not None:
            transaction.count(
                f"UPDATE wbe_ledger SET state = {OPEN}, holder = NULL, changed = {NOW}"
                f" WHERE id = %(id)s AND epoch = %(epoch)s AND state = {CLAIMED}"
                " AND holder = %(holder)s",
                {"id": id, "epoch": epoch, "holder": holder},
            )


def _requeue(transaction: Transaction, messages: Rows, again: bool) -> None:
    """Requeue messages in their old places."""
    numbers = _column(messages)
    for start in range(0, len(numbers), PURGE_LIMIT):
        transaction.count(
            "UPDATE wbe_messages SET consumer = '', take = NULL, claimed = false,"
            " again = again OR %(again)s WHERE n IN %(numbers)s",
            {"again": again, "numbers": numbers[start : start + PURGE_LIMIT]},
        )


def REQUEUE(transaction: Transaction, values: Values) -> Rows:
    """Requeue a message in its old place. `undo` undoes its take as well."""
    old = transaction.rows(_OLD, values)
    if values["undo"]:
        _unclaim(transaction, old, values["holder"])
    _requeue(transaction, old, not values["undo"])
    return [(queue,) for _, queue, *_ in old]


def REFUSE(transaction: Transaction, values: Values) -> Rows:
    old = transaction.rows(_OLD, values)
    _unclaim(transaction, old, values["holder"])
    _delete_messages(transaction, _column(old))
    return []


def LEAVE(transaction: Transaction, values: Values) -> Rows:
    """Requeue all messages of a consumer that leaves.

    Messages that it did not receive, and those of takes without a reply, are requeued as if they
    had not been taken.
    """
    transaction.count("DELETE FROM wbe_consumers WHERE name = %(consumer)s", values)
    old = transaction.rows(
        "SELECT n, queue, id, epoch, claimed, take FROM wbe_messages WHERE consumer = %(consumer)s"
        " FOR UPDATE",
        values,
    )
    undelivered, unanswered = {*values["undelivered"]}, {*values["unanswered"]}
    undone = [row for row in old if row[0] in undelivered or row[5] in unanswered]
    _unclaim(transaction, undone, values["holder"])
    _requeue(transaction, undone, again=False)
    _requeue(transaction, [row for row in old if row not in undone], again=True)
    return [(queue,) for _, queue, *_ in old]


# Consumers.

JOIN: Final = f"INSERT INTO wbe_consumers VALUES (%(consumer)s, {NOW})"


def REPORT(transaction: Transaction, values: Values) -> Rows:
    """Report a consumer, and the use of its queues.

    Return the seconds since its report before; no row if it is unknown.
    """
    if values["queues"]:
        transaction.count(
            f"UPDATE wbe_queues SET used = {NOW} WHERE name IN %(queues)s"
            f" AND used < {NOW} - IF(owned, 1.5, 1800)",
            values,
        )
    consumer = "FROM wbe_consumers WHERE name = %(consumer)s"
    old: Rows = transaction.rows(f"SELECT {NOW} - beat {consumer} FOR UPDATE", values)
    if old:
        transaction.count(
            f"UPDATE wbe_consumers SET beat = {NOW} WHERE name = %(consumer)s", values
        )
    return old


def SWEEP(transaction: Transaction, values: Values) -> Rows:
    """Requeue the messages of consumers that have not reported, and of unknown ones.

    Each name is used once, so an unknown consumer does not come back. Messages that hold claims of
    workers that are not `gone` are left for `LEAVE`, because no other worker can run them.
    """
    is_dead = f"abs({NOW} - beat) > %(seconds)s"
    names = _column(transaction.rows(f"SELECT name FROM wbe_consumers WHERE {is_dead}", values))
    if names:
        transaction.count(
            f"DELETE FROM wbe_consumers WHERE name IN %(names)s AND {is_dead}",
            {**values, "names": names},
        )
    unknown = """
    SELECT consumer FROM (SELECT DISTINCT consumer FROM wbe_messages WHERE consumer > '') AS taken
    WHERE NOT EXISTS (SELECT 1 FROM wbe_consumers WHERE name = consumer)"""
    claimed = f"""
    SELECT STRAIGHT_JOIN n FROM wbe_messages m
    JOIN wbe_ledger l ON l.id = m.id AND l.epoch = m.epoch
    JOIN wbe_ledger_holders h ON h.holder = l.holder
    WHERE consumer = %(name)s AND claimed AND state = {CLAIMED}
      AND abs({NOW} - beat) <= %(gone)s"""
    counts: dict[str, int] = {}
    for name in _column(transaction.rows(unknown)):
        old = transaction.rows(
            "SELECT n, queue FROM wbe_messages WHERE consumer = %(name)s FOR UPDATE", {"name": name}
        )
        left = {*_column(transaction.rows(claimed, {**values, "name": name}))}
        old = [row for row in old if row[0] not in left]
        _requeue(transaction, old, again=True)
        for _, queue in old:
            counts[queue] = counts.get(queue, 0) + 1
    return [*counts.items()]


def _column(rows: Rows) -> list[Any]:
    return [first for first, *_ in rows]
