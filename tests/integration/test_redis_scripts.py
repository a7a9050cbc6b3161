"""Each Lua script, run directly in a Redis: its result, its refusal and its guarantee."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.support import brokers
from wbengine import exceptions
from wbengine._redis.lua_scripts import Step
from wbengine.transports import _ledger
from wbengine.transports._broker import MAX_BATCH_BYTES
from wbengine.transports._redis import redis_scripts as scripts
from wbengine.transports._redis.redis_broker import RedisBroker
from wbengine.transports._redis.redis_ledger import RedisLedger
from wbengine.transports._redis.redis_link import Link, Place
from wbengine.transports._redis.redis_scripts import ClaimAttempt
from wbengine.transports._routing import Routes

T = TypeVar("T")

ATTEMPT = ClaimAttempt("a", 1, "w", "claim 1")
OPEN = _ledger.Row("a", 1, _ledger.ROW_OPEN)
CLAIMED = _ledger.Row("a", 1, _ledger.ROW_CLAIMED, "w")


class Routing(NamedTuple):
    version: str
    bindings: Sequence[tuple[str, str, str]]


class Server:
    """A Redis with an exchange, the queues `q` and `replies`, and a ledger with the user `u`."""

    def __init__(self, url: str, client: Any) -> None:
        self.place = Place.parse(url)
        self.link = Link(self.place)
        self.client = client
        for queue in "q", "replies":
            self(scripts.declare("data", [scripts.DeclaredQueue(queue, False)]))
            self(scripts.declare("", (), [scripts.Binding("ex", queue, queue)]))
        self.incarnation = self(scripts.arrive("", 0)).incarnation
        self(scripts.register("?digest", "u"))
        self(scripts.reconcile("u", 0, ()))

    def __call__(self, step: Step[T]) -> T:
        return self.link.run(step)

    def key(self, name: str) -> str:
        return self.place.prefix + name

    def contents(self) -> dict[bytes, bytes]:
        """Return the values of all keys."""
        return {key: self.client.dump(key) for key in self.client.keys("*")}

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check that the block changes no key."""
        before = self.contents()
        yield
        assert self.contents() == before

    def batch(
        self, *messages: bytes, queue: str = "q", priority: int = 5, **bodies: str
    ) -> scripts.RoutedBatch:
        routed = [
            scripts.RoutedMessage(priority, data, bodies.get(f"n{index}", ""), [queue])
            for index, data in enumerate(messages)
        ]
        return scripts.RoutedBatch(self.routing().version, routed)

    def routing(self) -> Routing:
        with contextlib.closing(RedisBroker(self.place, _ledger.RowAccess(), 10.0)) as broker:
            return Routing(str(broker._read_routes().version), [*broker.bindings()])

    def size(self, queue: str) -> int:
        return int(self.client.zcard(self.key(f"q:{queue}")))

    def numbers(self) -> list[str]:
        """Return the numbers of the messages that wait in `q`, or that `c` has taken from it."""
        waiting = self.client.zrange(self.key("q:q"), 0, -1)
        taken = [name.removeprefix(b"q ") for name in self.client.hkeys(self.key("h:c"))]
        return [text.split(b" ")[0].decode() for text in [*waiting, *taken] if text]

    def ids(self) -> set[str]:
        return {id.decode() for id in self.client.zrange(self.key("rows"), 0, -1)}

    def publish(self, *messages: bytes, **options: Any) -> list[int] | Routes | None:
        return self(scripts.publish(self.batch(*messages, **options)))

    def take(
        self, limit: int = 10, number: str = "1", queue: str = "q"
    ) -> Sequence[scripts.TakenEntry]:
        """Join, take messages and claim their rows for the holder `w`."""
        assert self(scripts.join("c", "data"))
        return self.take_joined(limit, number, queue)

    def take_joined(
        self, limit: int = 10, number: str = "1", queue: str = "q"
    ) -> Sequence[scripts.TakenEntry]:
        order = scripts.Take("c", number, "w", "digest", [(limit, [queue])])
        entries = self(scripts.take(order))
        assert entries is not None
        return entries

    def settle(self, *numbers: str, consumer: str = "c") -> int:
        messages = [f"q {number}" for number in numbers]
        return self(scripts.requeue(consumer, messages, is_refused=True))

    def silence(self, holder: str) -> float | None:
        heartbeat = self.client.zscore(self.key("beats"), holder)
        return None if heartbeat is None else self.client.time()[0] * 1000 - heartbeat

    def open(self, *rows: tuple[str, int], session: int = 0) -> Any:
        rows = rows or (("a", 1),)
        opened_rows = [scripts.OpenedRow(*row, 0, "") for row in rows]
        batch = scripts.RoutedBatch("", ())
        return self(
            scripts.open_and_publish(
                batch, opened_rows, "u", session, "digest", "", self.incarnation
            )
        )

    def revoke(self, *rows: tuple[str, int | None]) -> Any:
        return self(scripts.revoke_rows([(*row, _ledger.NO_FENCE) for row in rows]))

    def open_and_publish(
        self, row: scripts.OpenedRow, session: int = 0, incarnation: int | None = None, **batch: Any
    ) -> scripts.Opened | Routes | None:
        routed = batch.pop("routed", None) or self.batch(request(row.id, row.epoch), **batch)
        incarnation = self.incarnation if incarnation is None else incarnation
        return self(
            scripts.open_and_publish(routed, [row], "u", session, "digest", "", incarnation)
        )

    def claim(self, attempt: ClaimAttempt = ATTEMPT, session: int = 0) -> Any:
        return self(scripts.claim("u", session, attempt))

    def row(self, id: str = "a") -> _ledger.Row | None:
        return self(scripts.read_rows([id]))[0]

    def finish(
        self, epoch: int = 1, number: str = "1", order: scripts.Take | None = None, **batch: Any
    ) -> scripts.Finished | Routes | None:
        """Finish the request `a`, which the consumer `c` took."""
        finished = scripts.FinishedRequest("a", epoch, "c", "q", number)
        routed = batch.pop("routed", None) or self.batch(b"reply", queue="replies", **batch)
        return self(scripts.finish_requests(routed, [finished], "w", "", order))


def request(id: str = "a", epoch: int = 1) -> bytes:
    """Return a message with the label of a row."""
    return b"!%b %d digest\nrequest" % (id.encode(), epoch)


@pytest.fixture
def server(redis_url: Any, client: Any) -> Iterator[Server]:
    started = Server(str(redis_url), client)
    yield started
    started.link.close()
    client.flushdb()


# -- declarations


def test_declare_queue_returns_id_of_existing_data(server: Server) -> None:
    with server.unchanged():
        assert server(scripts.declare("other", [scripts.DeclaredQueue("q", False)])) == "data"
    server.client.flushdb()
    assert server(scripts.declare("new", [scripts.DeclaredQueue("q", False)])) == "new"


def test_declare_queue_keeps_messages_of_existing_queue(server: Server) -> None:
    server.publish(b"m")
    with server.unchanged():
        assert server(scripts.declare("other", [scripts.DeclaredQueue("q", False)])) == "data"
    server(scripts.declare("other", [scripts.DeclaredQueue("owned", True)]))
    assert server.client.zrange(server.key("own"), 0, -1) == [b"owned"]


def test_bind_and_unbind_change_the_version_only_with_the_bindings(server: Server) -> None:
    old = server.routing()
    assert old.bindings == [("q", "ex", "q"), ("replies", "ex", "replies")]
    server(scripts.declare("", (), [scripts.Binding("ex", "q", "q")]))
    server(scripts.declare("", (), (), [scripts.Binding("ex", "q", "other")]))
    assert server.routing() == old
    server(scripts.declare("", (), [scripts.Binding("ex", "q", "other")]))
    bound = server.routing()
    assert ("q", "ex", "other") in bound.bindings
    server(scripts.declare("", (), (), [scripts.Binding("ex", "q", "other")]))
    unbound = server.routing()
    assert unbound.bindings == old.bindings
    assert len({old.version, bound.version, unbound.version}) == 3


def test_binding_of_a_missing_queue_is_ignored(server: Server) -> None:
    old = server.routing()
    server(scripts.declare("", (), [scripts.Binding("ex", "missing", "k")]))
    assert server.routing() == old


def test_message_of_a_deleted_queue_is_not_requeued(server: Server) -> None:
    server.publish(b"1")
    server.take()
    server(scripts.empty_queue("q", True))
    assert server(scripts.requeue("c", ["q 1"])) == 1
    assert server.numbers() == []


def test_empty_queue_removes_messages_and_bindings(server: Server) -> None:
    batch = server.batch(b"m")
    server.publish(b"1", b"2")
    assert server(scripts.empty_queue("q", True)) == 2
    assert server.size("q") == 0
    refused = server(scripts.publish(batch))
    assert isinstance(refused, Routes)
    assert server.routing() == (refused.version, [("replies", "ex", "replies")])
    assert not refused.find("ex", "q")
    assert refused.find("ex", "replies") == ["replies"]
    assert server.publish(b"m") == [0]


def test_empty_queue_keeps_taken_messages(server: Server) -> None:
    server.publish(b"1", b"2", b"3")
    server.take(1)
    assert server(scripts.empty_queue("q", False)) == 2
    assert server(scripts.requeue("c", ["q 1"], True))
    assert server.size("q") == 1


# -- publishing


def test_publish_is_refused_without_a_change_if_the_routing_is_old(server: Server) -> None:
    batch = server.batch(b"m")
    server(scripts.declare("", (), [scripts.Binding("ex", "q", "new")]))
    with server.unchanged():
        refused = server(scripts.publish(batch))
        assert isinstance(refused, Routes)
        assert refused.version == server.routing().version
        assert refused.find("ex", "new") == ["q"]


def test_publish_is_refused_without_a_change_if_a_body_is_missing(server: Server) -> None:
    server.client.set(server.key("b:aa"), b"body")
    with server.unchanged():
        assert server.publish(b"1", b"2", n0="aa", n1="bb") is None
    assert server.publish(b"1", b"2", n0="aa") == [1, 1]


def test_publish_adds_messages_in_order_of_priority_and_time(server: Server) -> None:
    assert server.publish(b"1", b"2") == [1, 1]
    assert server.publish(b"3", priority=9) == [1]
    assert server.publish(b"lost", queue="no queue") == [0]
    assert server.size("q") == 3
    assert [entry.data for entry in server.take()] == [b"3", b"1", b"2"]


def test_messages_in_an_emptied_queue_expire_even_without_a_new_wake_up(server: Server) -> None:
    server.publish(b"1")
    server.take()
    server.settle("1")
    server.publish(b"2")
    assert server.client.ttl(server.key("q:q")) > 0
    server.take(number="2")
    assert server(scripts.requeue("c", ["q 2"], True))
    assert server.client.ttl(server.key("q:q")) > 0


@pytest.mark.parametrize(
    ("session", "incarnation"), [(1, None), (0, 2)], ids=["session", "incarnation"]
)
def test_open_and_publish_does_nothing_in_another_session(
    server: Server, session: int, incarnation: int | None
) -> None:
    with server.unchanged():
        row = scripts.OpenedRow("a", 1, 1, "")
        refused = server.open_and_publish(row, session, incarnation)
        assert refused == scripts.Opened([], None)


def test_open_and_publish_does_not_repeat_an_executed_attempt(server: Server) -> None:
    opened = scripts.Opened([1], scripts.Registration("digest", 0))
    assert server.open_and_publish(scripts.OpenedRow("a", 1, 5, "")) == opened
    assert server.row() == OPEN
    server(scripts.drop_rows(["a"]))
    before = server.contents()
    assert server.open_and_publish(scripts.OpenedRow("a", 1, 5, "1")) == opened
    assert {**server.contents(), **before} == before
    assert server.open_and_publish(scripts.OpenedRow("a", 1, 6, "1")) == opened
    assert (server.row(), server.size("q")) == (OPEN, 2)


def test_rows_without_messages_keep_number_of_last_request(server: Server) -> None:
    server.open_and_publish(scripts.OpenedRow("a", 1, 5, ""))
    fence = scripts.OpenedRow("fence-flow", 1, 7, "")
    server.open_and_publish(fence, routed=scripts.RoutedBatch("", ()))
    assert server.row("fence-flow") is not None
    server.open_and_publish(scripts.OpenedRow("b", 1, 6, "1"))
    assert server.row("b") == _ledger.Row("b", 1, _ledger.ROW_OPEN)
    assert server.size("q") == 2


def test_open_and_publish_replaces_only_open_rows_of_lower_epochs(server: Server) -> None:
    server.open(("a", 7))
    server.open_and_publish(scripts.OpenedRow("a", 1, 1, ""))
    assert server.row() == _ledger.Row("a", 7, _ledger.ROW_OPEN)
    server.open_and_publish(scripts.OpenedRow("a", 8, 2, ""))
    assert server.row() == _ledger.Row("a", 8, _ledger.ROW_OPEN)
    server.claim(ClaimAttempt("a", 8, "w", "1"))
    server.open_and_publish(scripts.OpenedRow("a", 9, 3, ""))
    assert server.row() == _ledger.Row("a", 8, _ledger.ROW_CLAIMED, "w")


def test_fence_can_be_raised_after_a_loss_of_data(server: Server) -> None:
    rows = ("a", 1), (f"{_ledger.FENCE_PREFIX}f", 1)
    server.open(*rows)
    server.client.hset(server.key("server"), "from", server.incarnation + 1)
    server.open(*((id, 2) for id, _ in rows))
    epochs = [row and row.epoch for row in server(scripts.read_rows([id for id, _ in rows]))]
    assert epochs == [1, 2]  # The request may have run.


def test_open_and_publish_is_refused_like_publish(server: Server) -> None:
    batch = server.batch(request())
    server(scripts.declare("", (), [scripts.Binding("ex", "q", "new")]))
    with server.unchanged():
        row = scripts.OpenedRow("a", 1, 1, "")
        assert isinstance(server.open_and_publish(row, routed=batch), Routes)
        assert server.open_and_publish(row, n0="aa") is None


# -- consuming


def test_join_is_refused_without_a_change_if_the_data_is_new(server: Server) -> None:
    with server.unchanged():
        assert not server(scripts.join("c", "earlier data"))
    assert server(scripts.join("c", ""))


def test_take_of_unknown_consumer_changes_nothing(server: Server) -> None:
    server.open()
    server.publish(request())
    with server.unchanged():
        order = scripts.Take("c", "1", "w", "digest", [(10, ["q"])])
        assert server(scripts.take(order)) is None


def test_take_claims_rows_and_obeys_limits_of_groups(server: Server) -> None:
    server.open(("a", 1), ("b", 1))
    server.publish(request("a"), request("missing"), b"no label", request("b"))
    first, second, third = server.take(3)
    assert first == scripts.TakenEntry(
        0, "q", "1", request("a"), (_ledger.Claim(_ledger.GRANTED, 1, None, "w"), 1)
    )
    assert second.claim == (_ledger.Claim(_ledger.MISSING, 1), 0)
    assert third == scripts.TakenEntry(0, "q", "3", b"no label", None)
    assert server.row("a") == CLAIMED
    assert server.row("b") == _ledger.Row("b", 1, _ledger.ROW_OPEN)
    assert server.size("q") == 1


def test_take_is_refused_while_a_server_has_just_restarted(server: Server) -> None:
    server.open()
    server.publish(request(), b"2")
    server.take(0)
    server.client.hset(server.key("server"), "hold", server.client.time()[0] * 1000 + 2000)
    before = server.client.dump(server.key("q:q"))
    assert server.take_joined() == []
    assert server.client.dump(server.key("q:q")) == before
    assert server.client.ttl(server.key("q:q")) > 0
    assert server.row() == OPEN


def test_take_leaves_messages_that_exceed_the_byte_limit_in_their_places(server: Server) -> None:
    half = b"x" * (MAX_BATCH_BYTES // 2)
    server.publish(b"1" + half, b"2" + half, b"3")
    assert [entry.number for entry in server.take()] == ["1"]
    assert server.client.ttl(server.key("q:q")) > 0
    assert [entry.number for entry in server.take(number="2")] == ["2", "3"]


def test_take_limits_the_bytes_of_stored_results(server: Server) -> None:
    server.open(("a", 1), ("b", 1))
    for id in "ab":
        server.claim(ClaimAttempt(id, 1, "w", id))
        server(scripts.finish_rows("w", "", [(id, 1, b"x" * MAX_BATCH_BYTES)]))
    server.publish(request("a"), request("b"))
    assert [entry.number for entry in server.take()] == ["1"]
    assert [entry.number for entry in server.take(number="2")] == ["2"]


def test_join_records_a_report_and_a_heartbeat(server: Server) -> None:
    assert server(scripts.join("c", "data", "w"))
    silence = server.silence("w")
    assert silence is not None and silence < 60_000
    server.client.zadd(server.key("c"), {"c": 1})
    server.take_joined()
    assert server.client.zscore(server.key("c"), "c") > 1


def test_settle_keeps_messages_that_the_consumer_does_not_have(server: Server) -> None:
    server.publish(b"1", b"2")
    server.take(1)
    with server.unchanged():
        assert server.settle("1", consumer="other") == 0
        assert server.settle("2") == 0
    assert server.settle("1", "2") == 1
    assert server.numbers() == ["2"]


def test_requeue_deletes_a_refused_message_and_its_claim(server: Server) -> None:
    server.open()
    server.publish(request(), b"2")
    server.take(1)
    with server.unchanged():
        server(scripts.requeue("c", ["q 2"], False, True))
    server(scripts.requeue("c", ["q 1"], False, True))
    assert server.row() == OPEN
    assert server.numbers() == ["2"]


@pytest.mark.parametrize("delivered", [False, True])
def test_requeue_returns_the_message_to_its_place(server: Server, delivered: bool) -> None:
    server.open()
    server.publish(request(), b"2")
    server.take(1)
    assert server(scripts.requeue("c", ["q 1"], delivered))
    assert not server(scripts.requeue("c", ["q 1"], delivered))
    assert server.row() == (CLAIMED if delivered else OPEN)
    numbers = [entry.number for entry in server.take(number="2")]
    assert numbers == ["1r" if delivered else "1", "2"]


def test_take_wakes_up_others_for_each_queue_that_it_leaves(server: Server) -> None:
    server(scripts.declare("", [scripts.DeclaredQueue("later"), scripts.DeclaredQueue("empty")]))
    server.publish(b"1", b"2")
    server.publish(b"3", queue="later")
    server.client.delete(*map(server.key, ("bell:q", "bell:later")))
    server(scripts.join("c", "data"))
    groups = [(1, ["q", "later", "empty"])]
    taken = server(scripts.take(scripts.Take("c", "1", "", "", groups)))
    assert taken is not None and [entry.data for entry in taken] == [b"1"]
    assert server.client.exists(*map(server.key, ("bell:q", "bell:later"))) == 2
    assert not server.client.exists(server.key("bell:empty"))


def test_end_wait_ends_the_next_wait_of_the_consumer(server: Server) -> None:
    server(scripts.end_wait("c"))
    assert server.client.blpop(server.key("n:c"), 60) is not None
    assert not server.client.exists(server.key("n:other"))


def test_tend_requeues_messages_of_dead_consumers_after_an_interval(server: Server) -> None:
    server.publish(b"m")
    server.take()
    server.client.zadd(server.key("c"), {"c": 0})
    assert server(scripts.sweep_dead_consumers(10, "", (), ())) == 0  # the first call for 10 s
    server.client.hset(server.key("m"), "since", 0)
    assert server(scripts.sweep_dead_consumers(10, "c", (), ())) == 0  # the consumer reports
    server.client.zadd(server.key("c"), {"c": 0})
    assert server(scripts.sweep_dead_consumers(10, "", (), ())) == 1
    assert server(scripts.join("c", ""))
    assert [entry.number for entry in server.take(number="2")] == ["1r"]


def test_silent_queues_are_those_of_owners_that_had_time_to_report(server: Server) -> None:
    for queue in ("mine", "theirs"):
        server(scripts.declare("data", [scripts.DeclaredQueue(queue, True)]))
    server.client.zadd(server.key("own"), {"theirs": 0})
    with RedisBroker(server.place, _ledger.RowAccess(), 10.0) as broker:
        assert broker.silent_queues() == frozenset()  # no process has swept
        server(scripts.sweep_dead_consumers(10, "", (), ()))
        assert broker.silent_queues() == frozenset()  # the server was away
        server.client.hset(server.key("m"), "since", 0)
        assert broker.silent_queues() == {"theirs"}


def test_tend_deletes_owned_queues_of_silent_owners(server: Server) -> None:
    server(scripts.declare("data", [scripts.DeclaredQueue("mine", True)]))
    server(scripts.declare("data", [scripts.DeclaredQueue("theirs", True)]))
    server(scripts.sweep_dead_consumers(10, "", (), ()))
    server.client.hset(server.key("m"), "since", 0)
    server.client.zadd(server.key("own"), {"mine": 0, "theirs": 0})
    server(scripts.sweep_dead_consumers(10, "", ["mine"], ["theirs"]))
    assert server.client.zrange(server.key("own"), 0, -1) == [b"mine"]
    assert server.client.smembers(server.key("qs")) == {b"q", b"replies", b"mine"}


def test_leave_requeues_messages_and_keeps_data_with_messages(server: Server) -> None:
    server.open(("a", 1), ("b", 1), ("c", 1))
    server.publish(*map(request, "abc"))
    server.take(1, number="1")
    server.take(1, number="2")
    server.take(1, number="3")
    assert not server(scripts.leave("c", ["2", "3:3"]))
    assert [server.row(id).state for id in "abc"] == [  # type: ignore[union-attr]
        _ledger.ROW_CLAIMED, _ledger.ROW_OPEN, _ledger.ROW_OPEN,
    ]  # fmt: skip
    assert [entry.number for entry in server.take(number="4")] == ["1r", "2", "3"]


def test_leave_of_the_last_consumer_deletes_all_keys_of_queues(server: Server) -> None:
    server.publish(b"m")
    server.take()
    server.settle("1")
    assert server(scripts.leave("c", ()))
    names = {key.partition(b"}:")[2] for key in server.client.keys("*")}
    assert names == {b"server", b"users"} | ({b"beats"} & names)


@pytest.mark.parametrize("undelivered", ["1", "1:1", "2", "1:2"])
def test_leave_undoes_claims_of_messages_that_others_requeued(
    server: Server, undelivered: str
) -> None:
    server.open()
    server.publish(request())
    server.take()
    server.client.zadd(server.key("c"), {"c": 0})
    server(scripts.sweep_dead_consumers(10, "", (), ()))
    server.client.hset(server.key("m"), "since", 0)
    assert server(scripts.sweep_dead_consumers(10, "", (), ())) == 1
    assert server.row() == CLAIMED
    server(scripts.leave("c", [undelivered], "w"))
    assert server.row() == (OPEN if undelivered in ("1", "1:1") else CLAIMED)


def test_leave_removes_silent_consumers_only_after_they_had_time_to_report(server: Server) -> None:
    """The first consumer that leaves after a downtime must not delete replies to the others."""
    server(scripts.declare("data", [scripts.DeclaredQueue("mine", True)]))
    server.publish(b"1")
    server.publish(b"reply", queue="mine")
    server.take()
    for key, name in ("c", "c"), ("own", "mine"):
        server.client.zadd(server.key(key), {name: 5})
    for gap in "before", "since":
        assert server(scripts.join("other", "data"))
        if gap == "since":
            server(scripts.sweep_dead_consumers(10, "other", (), ()))
        assert not server(scripts.leave("other", ()))
        assert (server.numbers(), server.size("mine")) == (["1"], 1)
    server.client.hset(server.key("m"), "since", 5)
    assert not server(scripts.leave("other", ()))
    assert (server.size("q"), server.size("mine")) == (1, 0)


def test_leave_after_a_downtime_within_dead_after_keeps_silent_consumers(server: Server) -> None:
    server.publish(b"1")
    server.take()
    seconds, _ = server.client.time()
    silent_since = seconds * 1000 - 20_000
    server.client.zadd(server.key("c"), {"c": silent_since})
    server.client.hset(server.key("m"), mapping={"t": silent_since, "since": 5})
    assert server(scripts.join("other", "data"))
    server(scripts.sweep_dead_consumers(60, "other", (), ()))
    assert not server(scripts.leave("other", ()))
    assert (server.numbers(), server.size("q")) == (["1"], 0)


# -- finishing


def test_finish_requests_stores_publishes_acknowledges_and_takes(server: Server) -> None:
    server.open(("a", 1), ("b", 1))
    server.publish(request("a"), request("b"))
    server.take(1)
    order = scripts.Take("c", "2", "w", "digest", [(1, ["q"])])
    result = server.finish(order=order)
    assert isinstance(result, scripts.Finished) and result.taken is not None
    assert result.counts == [1]
    assert [(entry.number, entry.claim[0].verdict) for entry in result.taken if entry.claim] == [
        ("2", "GRANTED")
    ]
    assert server.row() == _ledger.Row("a", 1, _ledger.ROW_DONE, None, b"reply")
    assert server.size("replies") == 1
    assert server.numbers() == ["2"]
    assert server.finish() == scripts.Finished([1], None)  # sent again
    assert server.size("replies") == 2


@pytest.mark.parametrize("lost", ["epoch", "holder"])
def test_finish_requests_of_a_lost_row_publishes_nothing(server: Server, lost: str) -> None:
    server.open()
    server.publish(request())
    server.take()
    server(scripts.reopen("a", 2))
    epoch, holder = (1, "w") if lost == "epoch" else (2, "other")
    server.claim(ClaimAttempt("a", 2, holder, "claim 2"))
    row = server.row()
    assert server.finish(epoch) == scripts.Finished([-1], None)
    assert server.row() == row
    assert server.size("replies") == 0
    assert server.numbers() == []


def test_finish_requests_without_a_row_publishes_the_reply(server: Server) -> None:
    server.open()
    server.publish(request())
    server.take()
    server(scripts.drop_rows(["a"]))
    assert server.finish() == scripts.Finished([1], None)
    assert server.row() is None
    assert server.size("replies") == 1


def test_finish_requests_is_refused_like_publish(server: Server) -> None:
    server.open()
    server.publish(request())
    server.take()
    batch = server.batch(b"reply", queue="replies")
    server(scripts.declare("", (), [scripts.Binding("ex", "q", "new")]))
    with server.unchanged():
        assert isinstance(server.finish(routed=batch), Routes)
        assert server.finish(n0="aa") is None


# -- users of the ledger


def test_arrive_detects_an_incarnation_with_less_data(server: Server) -> None:
    arrival = server(scripts.arrive("", 0))
    assert arrival == scripts.Arrival(arrival.run_id, 0, server.incarnation, 0, 2)
    assert server(scripts.arrive(arrival.run_id, 0)) == arrival
    assert server(scripts.arrive("earlier", 0)).intact_since == 0
    assert server(scripts.arrive("earlier", 1)).intact_since == server.incarnation


def test_arrive_never_repeats_the_number_of_an_incarnation(
    server: Server,
) -> None:
    incarnations = {server.incarnation}
    for _ in range(2):  # Each restart restores the data of the first incarnation.
        server.client.hset(server.key("server"), mapping={"run": "old", "life": server.incarnation})
        incarnations.add(server(scripts.arrive("old", 1)).incarnation)
        server.client.hdel(server.key("server"), "from")
        time.sleep(0.002)  # A restart takes longer than a millisecond, the unit of the numbers.
    assert len(incarnations) == 3


@pytest.mark.parametrize("is_evicted", [False, True])
@pytest.mark.parametrize("step", ["arrive", "reconcile", "register"])
def test_first_step_of_a_known_user_detects_that_the_server_was_wiped(
    server: Server, step: str, is_evicted: bool
) -> None:
    run_id = server(scripts.arrive("", 0)).run_id
    if is_evicted:
        server.client.delete(server.key("server"))
    else:
        server.client.flushdb()
    if step == "arrive":
        server(scripts.arrive(run_id, 1))
    elif step == "reconcile":
        server(scripts.reconcile("u", 1, ()))
    else:
        server(scripts.register("digest", "u"))
    lost = server(scripts.arrive("", 0)).intact_since
    assert lost
    registration, _ = server(scripts.register("digest", "u"))
    assert registration.intact_since == lost
    assert server(scripts.arrive(run_id, 1)).intact_since == lost


def test_register_returns_whether_a_digest_is_the_present_or_a_former_one(server: Server) -> None:
    present = scripts.Registration("digest", 0)
    assert server(scripts.register("?new", "v", digest="digest")) == (present, True)
    assert server(scripts.register("?new", "v", digest="new")) == (present, False)
    assert server(scripts.register("older", "v", digest="older")) == (present, True)
    assert server(scripts.register("digest", "v", digest="older")) == (present, True)
    assert server(scripts.register("digest", "v", digest="other")) == (present, False)


def test_register_keeps_the_digest_of_an_existing_ledger(server: Server) -> None:
    assert server(scripts.register("?new", "v")) == (scripts.Registration("digest", 0), False)
    assert server.client.hkeys(server.key("users")) == [b"u", b"v"]
    server.client.hdel(server.key("server"), "ledger")
    assert server(scripts.register("?new", "v"))[0].digest == "new"
    assert not server.client.exists(server.key("former"))
    assert server(scripts.register("digest", "u"))[0].digest == "new"
    assert server.client.smembers(server.key("former")) == {b"digest"}


def test_steps_of_a_closed_session_change_nothing(server: Server) -> None:
    server.open()
    server.claim()
    server(scripts.reconcile("u", 1, ()))
    with server.unchanged():
        assert server.open(("b", 1)) == scripts.Opened([], None)
        assert server.claim(ClaimAttempt("a", 1, "w", "claim 2")) is None
        assert server(scripts.release("u", 0, "a", 1, "w")) is None
        assert server.open_and_publish(scripts.OpenedRow("b", 1, 1, "")) == scripts.Opened([], None)
        server(scripts.reconcile("u", 0, ()))  # a late command
    assert server.open(("b", 1), session=1).registration is not None


def test_reconcile_reverses_only_the_given_claims(server: Server) -> None:
    server.open(("a", 1), ("b", 1))
    server.claim()
    server.claim(ClaimAttempt("b", 1, "w", "another claim"))
    server(scripts.reconcile("u", 1, [ATTEMPT, ClaimAttempt("b", 1, "w", "unknown")]))
    assert server.row("a") == OPEN
    assert server.row("b") == _ledger.Row("b", 1, _ledger.ROW_CLAIMED, "w")


def test_close_deletes_the_ledger_with_its_last_user_unless_rows_exist(server: Server) -> None:
    server(scripts.register("digest", "v"))
    server(scripts.register("digest", "u", "w"))
    server(scripts.close("v", []))
    assert server.client.hexists(server.key("server"), "ledger")
    assert server.silence("w") is not None
    server.open()
    server(scripts.close("u", ["w"]))
    assert server.client.hexists(server.key("server"), "ledger")
    assert server.silence("w") is None
    server(scripts.drop_rows(["a"]))
    server(scripts.close("u", []))
    assert not server.client.exists(*map(server.key, ("server", "users")))


def test_close_after_a_downtime_keeps_users_that_had_no_time_to_report(server: Server) -> None:
    server.client.hset(server.key("users"), "other.c", "5 0 0")
    server.client.hset(server.key("m"), mapping={"t": 5, "since": 5})
    server(scripts.close("u", []))
    assert server.client.hkeys(server.key("users")) == [b"other.c"]
    server(scripts.sweep_dead_consumers(10, "", (), ()))
    server.client.hset(server.key("m"), "since", 5)
    server(scripts.close("u", []))
    assert not server.client.exists(*map(server.key, ("server", "users")))


# -- rows (tests/contract/test_ledgers.py tests which of them each step changes)


def test_claim_is_refused_while_a_server_has_just_restarted(server: Server) -> None:
    server.open()
    server.client.hset(server.key("server"), "hold", server.client.time()[0] * 1000 + 2000)
    with server.unchanged(), pytest.raises(exceptions.TransportFailure, match="WAIT"):
        server.claim()


def test_register_records_a_heartbeat_and_prolongs_rows(server: Server) -> None:
    assert server.silence("w") is None
    server.open()
    server.claim()
    server.client.pexpire(server.key("r:a"), 60_000)
    server.client.zadd(server.key("beats"), {"w": 0})
    assert server(scripts.register("digest", "u", "w")) == (
        scripts.Registration("digest", 1),
        False,
    )
    silence = server.silence("w")
    assert silence is not None and silence < 10**9
    assert server.client.pttl(server.key("r:a")) > 60_000


def test_read_rows_reads_large_results_in_parts(server: Server) -> None:
    half = b"x" * (MAX_BATCH_BYTES // 2)
    ids = ["a", "missing", "b", "c", "missing", "d"]
    results = {"a": half, "b": half, "c": half + half + b"x", "d": b""}
    server.open(*((id, 1) for id in results))
    for id, result in results.items():
        server.claim(ClaimAttempt(id, 1, "w", id))
        assert server(scripts.finish_rows("w", "", [(id, 1, result)])) == [True]
    assert [len(server(scripts.read_rows(ids[start:]))) for start in (0, 3, 4)] == [3, 1, 2]
    with contextlib.closing(RedisLedger(server.place)) as ledger:
        rows = ledger.states(ids)
    stored = [row.result if isinstance(row, _ledger.Row) else row for row in rows]
    assert stored == [results.get(id) for id in ids]


@pytest.mark.parametrize(
    "step",
    [
        scripts.list_rows("-inf", "", 10),
        scripts.sweep_rows(0, 0, True),
        scripts.drop_rows(["a"]),
        scripts.revoke_rows([("a", 1, _ledger.NO_FENCE)]),
    ],
    ids=["list", "sweep", "drop", "revoke"],
)
def test_steps_that_need_no_results_do_not_read_them(server: Server, step: Step[Any]) -> None:
    """Each result may have megabytes, and a step may read a thousand rows."""

    def gets() -> int:
        return int(server.client.info("commandstats").get("cmdstat_get", {}).get("calls", 0))

    server.open()
    server.claim()
    server(scripts.finish_rows("w", "", [("a", 1, b"result")]))
    before = gets()
    server(step)
    assert gets() == before


def test_list_rows_returns_pages_in_order_of_time_and_id(server: Server) -> None:
    server.open(("b", 1), ("a", 1))
    server.claim()
    server.client.zadd(server.key("rows"), {"a": 5, "b": 5})
    pages = [server(scripts.list_rows("-inf", "", 1)), server(scripts.list_rows("5", "a", 10))]
    assert [[(at, row.id, row.state) for at, row in page] for page in pages] == [
        [(5, "a", _ledger.ROW_CLAIMED)],
        [(5, "b", _ledger.ROW_OPEN)],
    ]


def test_sweep_rows_keeps_rows_of_holders_with_heartbeats(server: Server) -> None:
    server.open(("a", 1), ("b", 1), ("c", 1))
    server.claim()
    server.client.zadd(server.key("rows"), {"a": 5, "b": 5})
    assert server(scripts.sweep_rows(60_000, 0, True)) == (0, 2, False)
    assert server(scripts.sweep_rows(60_000, 0, False)) == (1, 1, False)
    assert server.ids() == {"a", "c"}
    server.client.zadd(server.key("beats"), {"w": 5})
    assert server(scripts.sweep_rows(60_000, 0, False)) == (1, 0, False)


def test_sweep_rows_keeps_holders_with_rows_or_heartbeats(server: Server) -> None:
    server.open()
    server.claim()
    server(scripts.register("digest", "u", "new"))
    server.client.zadd(server.key("beats"), {"w": 5, "old": 5})
    server(scripts.sweep_rows(60_000, 0, False))
    assert server.client.zrange(server.key("beats"), 0, -1) == [b"w", b"new"]


def test_sweep_rows_deletes_remains_of_killed_processes(server: Server) -> None:
    server.open(("a", 1), ("b", 1))
    server.claim()
    server.claim(ClaimAttempt("b", 1, "w", "claim 2"))
    server.client.zadd(server.key("beats"), {"w": 5})
    server.client.delete(server.key("r:a"))  # It has expired.
    server.client.hset(server.key("users"), "killed", "5 0 0")
    server(scripts.sweep_rows(60_000, 0, False))
    assert server.client.smembers(server.key("held:w")) == {b"b"}
    assert server.client.hkeys(server.key("users")) == [b"u"]
    server.client.delete(server.key("r:b"))
    server(scripts.sweep_rows(60_000, 0, False))
    assert not server.client.exists(server.key("held:w"), server.key("beats"))


# -- a server without free memory


@pytest.fixture
def full() -> Iterator[Server]:
    """A server without free memory, and a request that was taken before."""
    with brokers.redis() as broker, broker.client() as client:
        server = Server(broker.url(), client)
        server.open(("a", 1), ("b", 1))
        server.publish(request(), request("b"))
        server.take(1)
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        yield server
        server.link.close()


REFUSED: dict[str, Callable[[Server], object]] = {
    "publish": lambda server: server.publish(b"m"),
    "open_and_publish": lambda server: server.open_and_publish(scripts.OpenedRow("c", 1, 1, "")),
    "open_and_publish without messages": lambda server: server.open(("c", 1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_full_server_refuses_new_work_before_any_change(full: Server, name: str) -> None:
    before = full.contents()
    with pytest.raises(exceptions.TransportFailure, match="maxmemory"):
        REFUSED[name](full)
    assert full.contents() == before


def test_full_server_finishes_requests_and_takes_the_next_ones(full: Server) -> None:
    order = scripts.Take("c", "2", "w", "digest", [(1, ["q"])])
    result = full.finish(order=order)
    assert isinstance(result, scripts.Finished) and result.taken is not None
    assert (result.counts, len(result.taken)) == ([1], 1)
    assert full.row() == _ledger.Row("a", 1, _ledger.ROW_DONE, None, b"reply")
    assert full.size("replies") == 1


@pytest.mark.parametrize(
    "step",
    [
        scripts.take(scripts.Take("c", "2", "w", "digest", [(1, ["q"])])),
        scripts.requeue("c", ["q 1"], True),
        scripts.requeue("c", ["q 1"], False, True),
        scripts.sweep_dead_consumers(10, "c", (), ()),
        scripts.leave("c", ()),
        scripts.end_wait("c"),
        scripts.reconcile("u", 1, [ATTEMPT]),
        scripts.claim("u", 0, ClaimAttempt("b", 1, "w", "2")),
        scripts.arrive("earlier", 99),
        scripts.register("digest", "u", "w"),
        scripts.finish_rows("w", "", [("a", 1, b"result")]),
        scripts.release("u", 0, "a", 1, "w"),
        scripts.reopen("a", 2),
        scripts.revoke_rows([("b", 1, _ledger.NO_FENCE)]),
        scripts.drop_rows(["a"]),
    ],
    ids=lambda step: next(
        name for name, script in scripts.SCRIPTS.items() if script == step.script
    ),
)
def test_full_server_executes_steps_that_release_or_finish(full: Server, step: Step[Any]) -> None:
    before = full.contents()
    full(step)
    assert full.contents() != before


# -- this file


def test_each_script_has_a_function_and_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    files = (Path(scripts.__file__).parent / "scripts").glob("*.lua")
    assert sorted(scripts.SCRIPTS) == sorted(path.stem for path in files)
    assert [name for name in scripts.SCRIPTS if f"scripts.{name}(" not in text] == []
