"""Tables and statements of the transport through PostgreSQL.

Each step is one statement, which is a transaction: it changes messages, and the rows of their
requests (`request_tables`), completely or not at all. Data-modifying parts of a statement see
the same snapshot. Parts that depend on each other read the rows that the others return.

    wbe_transport   format, and the version of the routing
    wbe_queues      name, whether a connection owns the queue, and when its consumers last reported
    wbe_bindings    exchange, key and queue
    wbe_messages    waiting messages, and taken ones with the name of their consumer
    wbe_consumers   consumers and their last reports
    wbe_waiters     consumers that wait for a notification, by queue

Times are seconds on the clock of the server.

Statistics of these tables are often wrong, because queues grow and shrink within seconds, and
deleted rows remain in indexes as long as a transaction of any program is open. Searches are
therefore limited to few entries of an index, whatever the plan, by a LATERAL with LIMIT or OFFSET.
Columns that are compared have the same collation; otherwise no index is used.
"""

from __future__ import annotations

from typing import Final

from wbengine._sql import dialects
from wbengine.transports._table_ledger import CLAIMED, DONE, OPEN, replacing_open_rows

NOW: Final = dialects.now(dialects.POSTGRESQL)

#: Definitions of indexes of `wbe_messages` by name.
INDEXES: Final = {
    "wbe_messages_waiting": "ON wbe_messages(queue, place, n) WHERE consumer IS NULL",
    "wbe_messages_taken": "ON wbe_messages(consumer, n) WHERE consumer IS NOT NULL",
}
_CREATE_INDEXES: Final = "".join(
    f"CREATE INDEX IF NOT EXISTS {name} {definition};\n" for name, definition in INDEXES.items()
)
TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS wbe_queues(
  name text COLLATE "C" PRIMARY KEY, owned boolean NOT NULL, used double precision NOT NULL);
CREATE TABLE IF NOT EXISTS wbe_bindings(
  exchange text COLLATE "C", key text COLLATE "C", queue text COLLATE "C",
  PRIMARY KEY (exchange, key, queue));
CREATE TABLE IF NOT EXISTS wbe_consumers(
  name text COLLATE "C" PRIMARY KEY, beat double precision NOT NULL) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE IF NOT EXISTS wbe_waiters(
  queue text COLLATE "C", consumer text COLLATE "C", since double precision NOT NULL,
  PRIMARY KEY (queue, consumer));
CREATE TABLE IF NOT EXISTS wbe_messages(
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text COLLATE "C" NOT NULL,
  place smallint NOT NULL, at double precision NOT NULL, consumer text COLLATE "C", take bigint,
  claimed boolean NOT NULL DEFAULT false, again boolean NOT NULL DEFAULT false,
  id text, epoch bigint, result_of text, data bytea,
  CHECK ((id IS NULL) = (epoch IS NULL)))
  WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
{_CREATE_INDEXES}CREATE TABLE IF NOT EXISTS wbe_transport(
  one smallint PRIMARY KEY, format integer NOT NULL, routes bigint NOT NULL,
  swept double precision NOT NULL);
"""
FORMAT: Final = "SELECT format FROM wbe_transport"
CREATE_ABOUT: Final = (
    f"INSERT INTO wbe_transport VALUES (1, %(format)s, 0, {NOW}) ON CONFLICT DO NOTHING"
)
DIGEST: Final = "SELECT digest FROM wbe_ledger_about"

#: Condition, always true, with which a transaction does not wait for the disk. After a crash of the
#: server it may be undone: messages are then delivered again.
_NOT_DURABLE: Final = "set_config('synchronous_commit', 'off', true) IS NOT NULL"

# Routing.

ROUTES: Final = "SELECT routes FROM wbe_transport"
BINDINGS: Final = "SELECT queue, exchange, key FROM wbe_bindings ORDER BY exchange, queue, key"
QUEUES: Final = "SELECT name FROM wbe_queues"
_NEW_ROUTES: Final = "UPDATE wbe_transport SET routes = routes + 1 WHERE EXISTS (SELECT 1 FROM {})"
DECLARE_QUEUE: Final = f"""
WITH made AS (
  INSERT INTO wbe_queues VALUES (%(queue)s, %(owned)s, {NOW}) ON CONFLICT DO NOTHING RETURNING 1),
used AS (
  UPDATE wbe_queues SET used = {NOW}, owned = owned OR %(owned)s WHERE name = %(queue)s)
{_NEW_ROUTES.format("made")}"""
_DELETE_QUEUES: Final = f"""
WITH gone AS (DELETE FROM wbe_queues WHERE {{}} RETURNING name),
unbound AS (DELETE FROM wbe_bindings WHERE queue IN (SELECT name FROM gone)),
messages AS (DELETE FROM wbe_messages WHERE queue IN (SELECT name FROM gone) RETURNING consumer),
changed AS ({_NEW_ROUTES.format("gone")})
SELECT count(*) FROM messages WHERE consumer IS NULL"""
DELETE_QUEUE: Final = _DELETE_QUEUES.format("name = %(queue)s")
#: Deletes owned queues whose owners are silent.
DELETE_SILENT_QUEUES: Final = _DELETE_QUEUES.format(
    f"owned AND used < {NOW} - %(seconds)s AND name <> ALL(%(own)s)"
)
#: Deletes queues without recent messages that are not consumed.
DELETE_UNUSED_QUEUES: Final = _DELETE_QUEUES.format(
    f"used < {NOW} - %(seconds)s AND NOT EXISTS"
    f" (SELECT 1 FROM wbe_messages m WHERE m.queue = name AND at > {NOW} - %(seconds)s)"
)
#: Deletes messages that were published while their queues were deleted.
DELETE_ORPHANS: Final = f"""
DELETE FROM wbe_messages WHERE at < {NOW} - %(seconds)s AND NOT EXISTS
  (SELECT 1 FROM wbe_queues WHERE name = queue)"""
PURGE: Final = """
WITH gone AS (DELETE FROM wbe_messages WHERE queue = %(queue)s AND consumer IS NULL RETURNING 1)
SELECT count(*) FROM gone"""
SIZE: Final = "SELECT count(*) FROM wbe_messages WHERE queue = %(queue)s AND consumer IS NULL"
BIND: Final = f"""
WITH made AS (
  INSERT INTO wbe_bindings VALUES (%(exchange)s, %(key)s, %(queue)s) ON CONFLICT DO NOTHING
  RETURNING 1)
{_NEW_ROUTES.format("made")}"""
UNBIND: Final = f"""
WITH gone AS (
  DELETE FROM wbe_bindings WHERE exchange = %(exchange)s AND key = %(key)s AND queue = %(queue)s
  RETURNING 1)
{_NEW_ROUTES.format("gone")}"""
SILENT_QUEUES: Final = f"SELECT name FROM wbe_queues WHERE owned AND used < {NOW} - %(seconds)s"
#: Reserves the sweep of unused queues and their messages.
SWEEP_DUE: Final = f"""
UPDATE wbe_transport SET swept = {NOW} WHERE swept < {NOW} - %(seconds)s RETURNING 1"""

# Messages. Statements that publish do nothing unless the routing has the expected version.

_IF_ROUTED: Final = "(SELECT routes FROM wbe_transport) = %(routes)s::bigint"
#: The number of each message, with one of its queues and its place there.
_PLACES: Final = """unnest(%(numbers)s::bigint[], %(queues)s::text[], %(places)s::smallint[])
    AS m(number, queue, place)"""
PUBLISH: Final = f"""
WITH sent AS (
  INSERT INTO wbe_messages(queue, place, at, id, epoch, data)
  SELECT m.queue, m.place, {NOW}, m.id, m.epoch, m.data
  FROM unnest(%(queues)s::text[], %(places)s::smallint[], %(ids)s::text[], %(epochs)s::bigint[],
    %(data)b::bytea[]) WITH ORDINALITY AS m(queue, place, id, epoch, data, number)
  WHERE {_IF_ROUTED} ORDER BY m.number RETURNING 1)
SELECT count(*) FROM sent"""

#: Opens rows, which replace OPEN rows with lower epochs, and publishes their requests, except those
#: of runs below their fence. The messages of rows that an earlier attempt tried to open are
#: published only if this statement opens them.
OPEN_AND_PUBLISH: Final = f"""
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(%(ids)s::text[], %(epochs)s::bigint[], %(tried)s::boolean[],
    %(fences)s::text[], %(runs)s::bigint[], %(data)b::bytea[])
    WITH ORDINALITY AS g(id, epoch, tried, fence, run, data, number)
  WHERE {_IF_ROUTED}),
permitted AS MATERIALIZED (
  SELECT * FROM given g WHERE NOT EXISTS (
    SELECT 1 FROM wbe_ledger f WHERE f.id = g.fence AND f.epoch > g.run)),
opened AS (
  INSERT INTO wbe_ledger(id, epoch, state, changed)
  SELECT DISTINCT ON (id) id, epoch, {OPEN}, {NOW} FROM permitted ORDER BY id, epoch DESC
  {replacing_open_rows("wbe_ledger")} RETURNING id),
sent AS (
  INSERT INTO wbe_messages(queue, place, at, id, epoch, data)
  SELECT m.queue, m.place, {NOW}, g.id, g.epoch, g.data
  FROM {_PLACES} JOIN permitted g USING (number)
  WHERE NOT g.tried OR g.id IN (SELECT id FROM opened) ORDER BY number)
SELECT count(*) FROM given"""

#: Finishes requests: stores each result, publishes the reply, deletes the message. A request whose
#: row belongs to another process is only deleted. Returns the number of all requests, and the
#: positions of these. The lock makes PostgreSQL read the present version of a row that another
#: process finished after this statement began.
FINISH: Final = f"""
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(%(ids)s::text[], %(epochs)s::bigint[], %(taken)s::bigint[],
    %(data)b::bytea[]) WITH ORDINALITY AS g(id, epoch, n, data, number)
  WHERE {_IF_ROUTED}),
done AS (
  UPDATE wbe_ledger l SET state = {DONE}, holder = NULL, result = g.data, changed = {NOW}
  FROM given g WHERE l.id = ANY(%(ids)s) AND l.id = g.id AND l.epoch = g.epoch
    AND l.state = {CLAIMED} AND l.holder = %(holder)s
  RETURNING g.number, g.id),
undone AS MATERIALIZED (SELECT * FROM given WHERE number NOT IN (SELECT number FROM done)),
foreign_rows AS (
  SELECT u.number FROM undone u JOIN wbe_ledger l ON l.id = u.id
  WHERE l.id = ANY(ARRAY(SELECT id FROM undone)) AND NOT (l.epoch = u.epoch AND l.state = {DONE})
  FOR SHARE OF l),
sent AS (
  INSERT INTO wbe_messages(queue, place, at, result_of, data)
  SELECT m.queue, m.place, {NOW}, done.id, CASE WHEN done.id IS NULL THEN g.data END
  FROM {_PLACES} JOIN given g USING (number) LEFT JOIN done USING (number)
  WHERE number NOT IN (SELECT number FROM foreign_rows) ORDER BY number),
gone AS (
  DELETE FROM wbe_messages WHERE n = ANY(%(taken)s) AND consumer = ANY(%(consumers)s)
    AND EXISTS (SELECT 1 FROM given))
SELECT (SELECT count(*) FROM given), ARRAY(SELECT number FROM foreign_rows)"""

#: Parts of the index of waiting messages: a queue, the first place and number, and the place before
#: which the part ends.
_RANGES: Final = """unnest(%(queues)s::text[], %(places)s::smallint[], %(lows)s::bigint[],
    %(befores)s::smallint[])"""
_IN_RANGE: Final = """queue = q.queue AND consumer IS NULL
      AND (place, n) >= (q.place, q.low) AND place < q.before"""
#: Takes the first messages of the queues, in their order, and claims the rows of their requests for
#: the holder, which needs a heartbeat. Returns with each message the number of messages that were
#: found, of which the last ones may exceed the limit of bytes. Without a holder nothing is claimed.
#: With `routes`, nothing is taken if the routing has changed.
#: A consumer that is treated as dead takes nothing.
#: If the queues are then empty, the consumer is registered for notifications of `waiting` queues.
TAKE: Final = f"""
WITH mode AS MATERIALIZED (SELECT CASE WHEN %(holder)s::text IS NULL THEN {_NOT_DURABLE}
  ELSE true END AS is_set),
picked AS MATERIALIZED (
  SELECT m.* FROM {_RANGES} WITH ORDINALITY AS q(queue, place, low, before, rank)
  CROSS JOIN LATERAL (
    SELECT n, q.rank, place, id, epoch, coalesce(octet_length(data),
      (SELECT octet_length(r.result) FROM wbe_ledger r WHERE r.id = result_of), 0) AS size
    FROM wbe_messages WHERE {_IN_RANGE}
    ORDER BY place, n LIMIT %(limit)s FOR UPDATE SKIP LOCKED) AS m
  WHERE (SELECT is_set FROM mode)
    AND (%(routes)s::bigint IS NULL OR {_IF_ROUTED})
    AND EXISTS (SELECT 1 FROM wbe_consumers WHERE name = %(consumer)s)
  LIMIT %(limit)s),
chosen AS (
  SELECT * FROM (
    SELECT *, sum(size) OVER (ORDER BY rank, place, n ROWS UNBOUNDED PRECEDING) AS total
    FROM picked) AS sized
  WHERE total <= %(bytes)s OR total = size),
claimed AS (
  UPDATE wbe_ledger l SET state = {CLAIMED}, holder = %(holder)s, changed = {NOW}
  FROM (SELECT DISTINCT ON (id, epoch) id, epoch, n FROM chosen WHERE id IS NOT NULL
    ORDER BY id, epoch, n) AS c
  WHERE l.id = c.id AND l.epoch = c.epoch AND l.state = {OPEN}
    AND EXISTS (SELECT 1 FROM wbe_ledger_holders h WHERE h.holder = %(holder)s)
  RETURNING c.n),
taken AS (
  UPDATE wbe_messages m SET consumer = %(consumer)s, take = %(take)s,
    claimed = m.n IN (SELECT n FROM claimed)
  FROM chosen c WHERE m.n = c.n
  RETURNING m.n, m.queue, m.again, m.id, m.epoch, m.claimed, m.result_of, m.data, c.rank,
    m.place),
registered AS (
  INSERT INTO wbe_waiters SELECT queue, %(consumer)s, {NOW}
  FROM unnest(%(waiting)s::text[]) q(queue) WHERE (SELECT count(*) FROM picked) < %(limit)s
  ON CONFLICT DO NOTHING)
SELECT (SELECT count(*) FROM picked), t.n, t.queue, t.again,
  coalesce(t.data, (SELECT r.result FROM wbe_ledger r WHERE r.id = t.result_of)),
  t.id, t.epoch, t.claimed, l.epoch, l.state, l.holder, l.result, t.place
FROM taken t LEFT JOIN LATERAL (
  SELECT * FROM wbe_ledger WHERE id = t.id AND NOT t.claimed OFFSET 0) AS l ON true
ORDER BY t.rank, t.place, t.n"""

SETTLE: Final = f"""
WITH mode AS MATERIALIZED (SELECT {_NOT_DURABLE} AS is_set)
DELETE FROM wbe_messages WHERE n = ANY(%(numbers)s) AND consumer = ANY(%(consumers)s)
  AND (SELECT is_set FROM mode)
RETURNING 1"""

#: Undoes the claims that were made with these messages.
_UNCLAIM: Final = f"""
  UPDATE wbe_ledger l SET state = {OPEN}, holder = NULL, changed = {NOW}
  FROM old o WHERE o.claimed AND o.unclaim AND l.id = o.id AND l.epoch = o.epoch
    AND l.state = {CLAIMED} AND l.holder = %(holder)s"""
#: Requeues messages in their old places. `undo` undoes their takes as well.
REQUEUE: Final = f"""
WITH old AS MATERIALIZED (
  SELECT n, queue, id, epoch, claimed, %(undo)s::boolean AS unclaim FROM wbe_messages
  WHERE n = %(n)s AND consumer = %(consumer)s FOR UPDATE),
opened AS ({_UNCLAIM})
UPDATE wbe_messages m SET consumer = NULL, take = NULL, claimed = false,
  again = again OR NOT o.unclaim
FROM old o WHERE m.n = o.n RETURNING m.queue"""
REFUSE: Final = f"""
WITH old AS MATERIALIZED (
  SELECT n, queue, id, epoch, claimed, true AS unclaim FROM wbe_messages
  WHERE n = %(n)s AND consumer = %(consumer)s FOR UPDATE),
opened AS ({_UNCLAIM})
DELETE FROM wbe_messages WHERE n IN (SELECT n FROM old)"""
#: Requeues all messages of a consumer that leaves. Messages that it did not receive, and those of
#: takes without a reply, are requeued as if they had not been taken.
LEAVE: Final = f"""
WITH old AS MATERIALIZED (
  SELECT n, queue, id, epoch, claimed,
    n = ANY(%(undelivered)s::bigint[]) OR take = ANY(%(unanswered)s::bigint[]) AS unclaim
  FROM wbe_messages WHERE consumer = %(consumer)s FOR UPDATE),
opened AS ({_UNCLAIM}),
gone AS (DELETE FROM wbe_consumers WHERE name = %(consumer)s),
waiting AS (DELETE FROM wbe_waiters WHERE consumer = %(consumer)s)
UPDATE wbe_messages m SET consumer = NULL, take = NULL, claimed = false,
  again = again OR NOT o.unclaim
FROM old o WHERE m.n = o.n RETURNING m.queue"""

# Consumers.

JOIN: Final = f"INSERT INTO wbe_consumers VALUES (%(consumer)s, {NOW})"
#: Reports a consumer, and the use of its queues. Returns the seconds since its report before; no
#: row if it is unknown.
REPORT: Final = f"""
WITH mode AS MATERIALIZED (SELECT {_NOT_DURABLE} AS is_set),
used AS (
  UPDATE wbe_queues SET used = {NOW}
  WHERE name = ANY(%(queues)s) AND used < {NOW} - CASE WHEN owned THEN 1.5 ELSE 1800 END),
old AS MATERIALIZED (
  SELECT name, beat FROM wbe_consumers WHERE name = %(consumer)s AND (SELECT is_set FROM mode)
  FOR UPDATE)
UPDATE wbe_consumers c SET beat = {NOW} FROM old WHERE c.name = old.name
RETURNING c.beat - old.beat"""
#: Requeues the messages of consumers that have not reported, and of unknown ones. Those that hold
#: claims of workers that are not `gone` are left for `LEAVE`, because no other worker can run them.
#: Only the parts of the index between the names of living consumers are read: as long as a
#: transaction of any program is open, the index contains all messages that these have taken since
#: its start.
SWEEP: Final = f"""
WITH dead AS (DELETE FROM wbe_consumers WHERE abs({NOW} - beat) > %(seconds)s RETURNING name),
waiting AS (DELETE FROM wbe_waiters WHERE consumer IN (SELECT name FROM dead)),
gaps AS MATERIALIZED (
  SELECT name AS low, lead(name, 1, '~') OVER (ORDER BY name) AS high FROM (
    SELECT '' COLLATE "C" UNION ALL
    SELECT name FROM wbe_consumers WHERE abs({NOW} - beat) <= %(seconds)s) AS living(name)),
old AS MATERIALIZED (
  SELECT m.* FROM gaps CROSS JOIN LATERAL (
    SELECT n, consumer, claimed, id, epoch FROM wbe_messages
    WHERE consumer > low AND consumer < high OFFSET 0) AS m
  WHERE NOT claimed OR NOT EXISTS (
    SELECT 1 FROM wbe_ledger l JOIN wbe_ledger_holders h ON h.holder = l.holder
    WHERE l.id = m.id AND l.epoch = m.epoch AND l.state = {CLAIMED}
      AND abs({NOW} - h.beat) <= %(gone)s OFFSET 0)),
back AS (
  UPDATE wbe_messages m SET consumer = NULL, take = NULL, claimed = false, again = true
  FROM old WHERE m.n = ANY(ARRAY(SELECT n FROM old)) AND m.n = old.n AND m.consumer = old.consumer
  RETURNING queue)
SELECT queue, count(*) FROM back GROUP BY queue"""

# Notifications. A consumer registers, and then looks for messages. A publisher commits, and then
# looks for consumers. So one of them sees the other. `TAKE` looks before its registration is
# committed, so another search must follow it.

CHANNEL: Final = "wbe_"
#: Start of the payload, before the name of the queue, if messages returned to their old places.
REQUEUED: Final = "!"
REGISTER: Final = f"""
INSERT INTO wbe_waiters SELECT queue, %(consumer)s, {NOW} FROM unnest(%(queues)s::text[]) q(queue)
ON CONFLICT DO NOTHING"""
NONEMPTY: Final = f"""
SELECT q.queue FROM {_RANGES} AS q(queue, place, low, before)
CROSS JOIN LATERAL (SELECT 1 FROM wbe_messages WHERE {_IN_RANGE} LIMIT 1) AS waiting"""
#: Notifies for each queue as many waiting consumers as it has new messages. This never waits for
#: another notification of the same consumers: two could wait for each other.
RING: Final = f"""
WITH due AS MATERIALIZED (
  SELECT w.* FROM unnest(%(queues)s::text[], %(counts)s::integer[]) AS s(queue, number)
  CROSS JOIN LATERAL (
    SELECT queue, consumer FROM wbe_waiters WHERE queue = s.queue
    ORDER BY since LIMIT s.number FOR UPDATE SKIP LOCKED) AS w),
gone AS (
  DELETE FROM wbe_waiters w USING (
    SELECT queue, consumer FROM wbe_waiters WHERE consumer IN (SELECT consumer FROM due)
    FOR UPDATE SKIP LOCKED) AS old
  WHERE w.queue = old.queue AND w.consumer = old.consumer)
SELECT pg_notify('{CHANNEL}' || consumer, %(prefix)s || queue) FROM due"""
#: Whether the role may vacuum the tables. Otherwise the server would log a warning for each.
CAN_VACUUM: Final = """
SELECT pg_has_role(c.relowner, 'USAGE') OR pg_has_role(d.datdba, 'USAGE')
  OR CASE WHEN current_setting('server_version_num')::integer >= 170000
    THEN has_table_privilege(c.oid, 'MAINTAIN') END
FROM pg_class c, pg_database d
WHERE c.oid = 'wbe_messages'::regclass AND d.datname = current_database()"""
VACUUM: Final = "VACUUM (SKIP_LOCKED, TRUNCATE false) wbe_messages, wbe_ledger, wbe_waiters"
