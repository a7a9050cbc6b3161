"""Contract of all ledgers."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import threading
import time
import uuid

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.seams import ledgers
from tests.support import tally
from tests.support.amounts import amount
from tests.support.threads import call_in_threads
from wbengine import exceptions, testing
from wbengine.transports import resolve

from . import racing

_numbers = itertools.count()

#: Mark of tests for ledgers that other processes can open.
durable = pytest.mark.parametrize("kind", ledgers.DURABLE, indirect=True, scope="module")
#: Marks of tests for MySQL, too, because their SQL differs between dialects.
dialects, durable_dialects = (
    pytest.mark.parametrize("kind", (*kinds, "mysql"), indirect=True, scope="module")
    for kinds in (ledgers.KINDS, ledgers.DURABLE)
)


@pytest.fixture(scope="module", params=ledgers.KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def database(kind, database_servers):
    """Database for all tests of a server, because creating one is slow."""
    if kind not in ("mysql", "postgresql"):
        tally.ledgers[kind] = sqlite3.sqlite_version if kind == "sqlite" else ""
        yield None
        return
    with database_servers[kind].database() as url:
        tally.ledgers[kind] = database_servers[kind].version
        yield url


@pytest.fixture
def place(kind, database, folder, request):
    """Location of an empty ledger."""
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
        yield str(url)
    elif database is not None:
        yield database
        with_rows = ledgers.open_ledger(database)
        with_rows.sweep(0)
        with_rows.close()
    else:
        yield ledgers.place(kind, folder, f"ledger-{next(_numbers)}")


@pytest.fixture
def ledger(place):
    with contextlib.closing(ledgers.open_ledger(place)) as ledger:
        yield ledger


ID = "0b7f8a52-8f3e-5d6e-9a30-1d1f0f4e8a11"
HOUR = 3600.0


def claim(ledger, *ids, holder="w"):
    """Open rows and claim them."""
    for id in ids:
        ledger.open(id, 1)
        assert ledger.claim(id, 1, holder).granted


def complete(ledger, id, result=b"r"):
    """Open and claim a row, and store its result."""
    claim(ledger, id)
    assert ledger.finish(id, 1, "w", result)


def test_row_of_a_newer_epoch_is_not_revoked(ledger):
    ledger.open(ID, 2048)
    for older in (1, 2047):
        assert ledger.revoke(ID, older) is False
        assert ledger.state(ID) == ledgers.Row(ID, 2048, "open")
    assert ledger.revoke(ID, 2048) is True
    ledger.open(ID, 1)
    assert ledger.revoke(ID, 2048) is True
    assert ledger.revoke(ID, 2048) is False
    assert not ledger.ids()


# -- fences

FROZEN, NEXT = (ledgers.Fence.of("flow", number) for number in (3, 4))

#: Late calls of an engine that was frozen while the next one ran the flow, and the row which they
#: would change.
LATE_CALLS = {
    "open": (None, lambda ledger: ledger.open(ID, 1, FROZEN)),
    "open-many": (None, lambda ledger: ledger.open_many([(ID, 1, FROZEN), ("z", 1, FROZEN)])),
    "open-later": (ledgers.ROW_OPEN, lambda ledger: ledger.open(ID, 2, FROZEN)),
    "reopen-open": (ledgers.ROW_OPEN, lambda ledger: ledger.reopen(ID, 2, FROZEN)),
    "reopen-claimed": (ledgers.ROW_CLAIMED, lambda ledger: ledger.reopen(ID, 2, FROZEN)),
    "revoke": (ledgers.ROW_OPEN, lambda ledger: ledger.revoke(ID, 1, FROZEN)),
    "finish": (
        ledgers.ROW_CLAIMED,
        lambda ledger: ledger.finish_many("w", [(ID, 1, b"lost")], FROZEN),
    ),
}


@dialects
@pytest.mark.parametrize("name", LATE_CALLS)
def test_call_of_a_run_below_the_fence_has_no_effect(ledger, name):
    state, call = LATE_CALLS[name]
    if state is not None:
        ledger.open(ID, 1)
    if state == ledgers.ROW_CLAIMED:
        assert ledger.claim(ID, 1, "w").granted
    before = ledger.state(ID)
    assert ledger.raise_fence(NEXT) == NEXT.number
    assert not call(ledger) or call(ledger) == [False]
    assert ledger.state(ID) == before and ledger.state("z") is None
    assert ledger.raise_fence(FROZEN) == NEXT.number
    call(ledger)
    assert ledger.state(ID) == before


@dialects
def test_present_run_and_other_flows_are_not_fenced(ledger):
    ledger.raise_fence(NEXT)
    other = ledgers.Fence.of("other", 1)
    ledger.open_many([("a", 1, NEXT), ("b", 1, FROZEN), ("c", 1, other), ("d", 1)])
    assert ledger.ids() == {"a", "c", "d"}
    assert [row.id for row in ledger.list_rows(10).rows] in (["a", "c", "d"],)
    ledger.open_many([("a", 3, NEXT), ("c", 3, FROZEN)])
    assert ledger.reopen("a", 4, NEXT) is None and ledger.claim("a", 4, "w").granted
    assert ledger.finish_many("w", [("a", 4, b"r")], NEXT) == [True]
    assert ledger.revoke_many([("c", 1, FROZEN), ("d", 1, other)]) == [False, True]
    assert ledger.state("c") == ledgers.Row("c", 1, ledgers.ROW_OPEN)


def test_fence_is_kept_for_seven_days_after_its_last_change(ledger, place):
    for number in (1, 2):
        ledger.raise_fence(ledgers.Fence.of("flow", number))
        ledgers.make_content_older(place, 5 * 24 * HOUR)
    ledger.sweep_stale(0)
    ledger.open(ID, 1, ledgers.Fence.of("flow", 1))
    assert ledger.state(ID) is None
    ledgers.make_content_older(place, 3 * 24 * HOUR)
    ledger.sweep_stale(0)
    ledger.open(ID, 1, ledgers.Fence.of("flow", 1))
    assert ledger.state(ID) is not None


@durable
def test_fence_survives_the_process_that_raised_it(place):
    with contextlib.closing(ledgers.open_ledger(place)) as one:
        one.raise_fence(NEXT)
    with contextlib.closing(ledgers.open_ledger(place)) as other:
        other.open(ID, 1, FROZEN)
        assert other.state(ID) is None


@dialects
@pytest.mark.parametrize("result", [b"", b"\x00\xff", b"x" * 3_000_000])
def test_result_is_read_back_exactly(ledger, result):
    complete(ledger, ID, result)
    assert ledger.claim(ID, 1, "w").result == result
    ledger.drop(ID)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True, scope="module")
def test_result_of_driver_with_memoryviews_is_bytes(ledger, monkeypatch):
    complete(ledger, ID, b"r")
    read = ledger._read

    def read_views(*arguments):
        return [(*row, memoryview(result)) for *row, result in read(*arguments)]

    monkeypatch.setattr(ledger, "_read", read_views)
    assert type(ledger.state(ID).result) is bytes


@dialects
def test_batch_queries_and_revocations_equal_single_calls(ledger):
    assert ledger.states([]) == ledger.revoke_many([]) == ledger.reopen_many([]) == []
    assert ledger.silences([]) == []
    ledger.open_many([("a", 1), ("b", 1), ("c", 3), ("d", 1), ("e", 1)])
    assert ledger.claim("b", 1, "w").granted
    assert ledger.claim("d", 1, "w").granted
    assert ledger.finish("d", 1, "w", b"done")
    assert ledger.states(list("dxba")) == [ledger.state(id) for id in "dxba"]
    assert ledger.states(["d"])[0].result == b"done"
    silence, never = ledger.silences(["w", "nobody"])
    assert silence is not None and never is None
    assert ledger.revoke_many([("a", 1), ("b", 1), ("c", 2), ("d", 1), ("x", 1)]) == [
        True, False, False, False, False
    ]  # fmt: skip
    assert ledger.ids() == {"b", "c", "d", "e"}
    reopened = ledger.reopen_many([("b", 2), ("c", 2), ("d", 2), ("x", 2), ("e", 2)])
    assert reopened[:3] == [None, None, b"done"] and reopened[4] is None
    assert isinstance(reopened[3], exceptions.NotFound)
    assert [row and row.epoch for row in ledger.states(list("bcdxe"))] == [2, 3, 1, None, 2]
    ledger.open_many([("e", 5), ("c", 2), ("new", 4)])
    assert [row.epoch for row in ledger.states(["e", "c", "new"])] == [5, 3, 4]


@dialects
def test_batch_writes_equal_single_calls(ledger):
    ledger.open_many([])
    ledger.drop_many([])
    assert ledger.finish_many("w", []) == []
    ledger.open("b", 5)
    ledger.open_many([("d", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3)])
    assert [ledger.state(id).epoch for id in "abcd"] == [3, 5, 1, 1]
    for id in "ab":
        assert ledger.claim(id, ledger.state(id).epoch, "w").granted
    assert ledger.claim("c", 1, "other").granted
    large = b"x" * 100_000
    ended = [
        ("d", 1, b"open"),
        ("b", 5, large),
        ("none", 1, large),
        ("b", 5, b"again"),
        ("c", 1, large),
        ("a", 1, b"epoch"),
        ("a", 3, b"\n"),
    ]
    assert ledger.finish_many("w", ended) == [False, True, False, False, False, False, True]
    assert ledger.state("a") == ledgers.Row("a", 3, "done", None, b"\n")
    assert ledger.state("b") == ledgers.Row("b", 5, "done", None, large)
    assert ledger.state("c") == ledgers.Row("c", 1, "claimed", "other")
    ledger.drop_many(["c", "none", "b", *(f"{number}" for number in range(1200))])
    assert ledger.ids() == {"a", "d"}
    ledger.drop_many(["d", "a"])
    assert ledger.ids() == set()
    with pytest.raises(ValueError, match="request id"):
        ledger.open_many([("a", 1), ("a/b", 1)])
    ledger.drop("a")


# -- listing


def test_rows_are_listed_page_by_page(ledger):
    assert ledger.list_rows() == ledgers.Page([])
    for number in range(3):
        ledger.open(f"row-{number}", 4)
    assert ledger.claim("row-1", 4, "w1").granted
    assert ledger.claim("row-2", 4, "w1").granted
    assert ledger.finish("row-2", 4, "w1", b"x" * 100_000)
    page = ledger.list_rows()
    assert page.after is None
    assert sorted((row.id, row.epoch, row.state, row.holder) for row in page.rows) == [
        ("row-0", 4, "open", None),
        ("row-1", 4, "claimed", "w1"),
        ("row-2", 4, "done", None),
    ]
    assert all(0 <= row.age < 90 for row in page.rows)


@dialects
def test_pages_have_each_row_once(ledger):
    names = [f"{name}{number}" for number in range(12) for name in "aZ"]
    ledger.open_many([(name, 1) for name in names])
    for size in (1, 2, 7, 100):
        listed, after = [], None
        while True:
            page = ledger.list_rows(size, after)
            assert len(page.rows) == size or page.after is None
            listed += [row.id for row in page.rows]
            after = page.after
            if after is None:
                break
        assert sorted(listed) == sorted(names)


@dialects
def test_row_dropped_between_pages_does_not_hide_others(ledger):
    names = [f"row-{number}" for number in range(10)]
    ledger.open_many([(name, 1) for name in names])
    first = ledger.list_rows(4)
    ledger.drop(first.rows[-1].id)
    page = ledger.list_rows(10, first.after)
    assert sorted(row.id for row in (*first.rows, *page.rows)) == names


def test_invalid_page_limit_is_rejected(ledger):
    for limit in (0, -1, ledgers.MAX_LISTED_ROWS + 1, True, 1.0, None):
        with pytest.raises(ValueError, match=r"limit must be 1 to 1000 rows"):
            ledger.list_rows(limit)


def test_invalid_request_ids_and_worker_names_are_rejected(ledger):
    for bad in ("", "../x", "a/b", ".", "x" * 121, "a\0"):
        _check_rejected(ledger, bad)
        ledger.drop(ID)


def _check_rejected(ledger, bad):
    """Check that each call that names a row or a worker rejects the name before any write."""
    for call in (
        lambda: ledger.open(bad, 1),
        lambda: ledger.open_many([(ID, 1), (bad, 1)]),
        lambda: ledger.claim(bad, 1, "w"),
        lambda: ledger.finish(bad, 1, "w", b""),
        lambda: ledger.release(bad, 1, "w"),
        lambda: ledger.reopen(bad, 2),
        lambda: ledger.revoke(bad),
        lambda: ledger.revoke_many([(ID, 1), (bad, 1)]),
        lambda: ledger.drop(bad),
        lambda: ledger.state(bad),
        lambda: ledger.states([ID, bad]),
    ):
        with pytest.raises(ValueError, match="request id"):
            call()
    assert ledger.ids() == set()
    ledger.open(ID, 1)
    for call in (
        lambda: ledger.claim(ID, 1, bad),
        lambda: ledger.renew(bad),
        lambda: ledger.silence(bad),
        lambda: ledger.finish(ID, 1, bad, b""),
        lambda: ledger.release(ID, 1, bad),
    ):
        with pytest.raises(ValueError, match="holder"):
            call()
    assert ledger.state(ID).state == ledgers.ROW_OPEN


# -- heartbeats and sweeping


def test_sweep_removes_old_rows(ledger):
    ledger.open("open", 1)
    claim(ledger, "held")
    complete(ledger, "done")
    assert ledger.sweep(3600) == 0
    assert ledger.sweep(0) == 3
    assert [ledger.state(id) for id in ("open", "held", "done")] == [None] * 3
    # A removed worker can claim again.
    claim(ledger, ID)


@dialects
def test_sweep_of_results_keeps_open_and_claimed_rows(place, ledger):
    ledger.open("open", 1)
    claim(ledger, "held")
    complete(ledger, "done")
    assert ledger.sweep(3600, True) == 0
    assert ledger.sweep(0, True) == 1
    assert ledger.ids() == {"open", "held"}
    assert ledger.sweep_stale(None) == ledger.sweep_stale(0) == 0  # all are younger than an hour
    complete(ledger, "done")
    ledgers.make_content_older(place, 2 * HOUR)
    assert ledger.sweep_stale(None) == ledger.sweep_stale(3 * HOUR) == 0
    assert ledger.sweep_stale(HOUR) == 1
    assert ledger.ids() == {"open", "held"}
    ledgers.make_content_older(place, 7 * 24 * HOUR)
    assert ledger.sweep_stale(8 * 24 * HOUR) == 0
    assert ledger.sweep_stale(0) == 2


@dialects
def test_sweep_keeps_row_of_worker_that_renews(place, ledger):
    """Old rows of other workers and rows without an owner are deleted."""
    for holder in ("lives", "dies"):
        claim(ledger, f"of-{holder}", holder=holder)
    ledger.open("open", 1)
    claim(ledger, "done", holder="lives")
    ledger.finish("done", 1, "lives", b"r")
    for _ in range(3):
        ledgers.make_content_older(place, HOUR)
        ledger.renew("lives")
        assert ledger.sweep(HOUR / 2, True) in (0, 1)
        assert ledger.sweep(HOUR / 2) in (0, 2)
        assert ledger.ids() == {"of-lives"}
    assert ledger.silence("dies") is None and ledger.silence("lives") < HOUR / 2
    assert ledger.state("of-lives") == ledgers.Row("of-lives", 1, "claimed", "lives")
    assert ledger.finish("of-lives", 1, "lives", b"r") is True
    assert ledger.sweep(HOUR / 2) == 0  # it finished just now
    ledgers.make_content_older(place, HOUR)
    assert ledger.sweep(HOUR / 2) == 1


def test_silence_grows_until_next_heartbeat(kind, place, ledger):
    """In Redis, the time before this process reached the server does not count."""
    claim(ledger, ID)
    ledger.renew("other")
    for hours in (1, 2):
        ledgers.make_content_older(place, HOUR)
        ledger.renew("other")
        assert ledger.silence("other") < HOUR / 2
        if kind != "redis":
            assert hours * HOUR <= ledger.silence("w") < (hours + 0.5) * HOUR
    ledger.claim(ID, 1, "w")  # refused: already claimed
    ledger.renew("w")
    assert ledger.silence("w") < HOUR / 2


@durable_dialects
def test_opening_ledger_sweeps_expired_rows_once_an_hour(place, ledger):
    ledger.open(ID, 1)
    ledgers.make_content_older(place, 30 * 24 * HOUR)
    ledgers.open_ledger(place, result_ttl=0).close()
    assert ledger.state(ID) is not None  # swept less than an hour ago
    ledgers.make_sweep_due(place)
    ledgers.open_ledger(place, result_ttl=None).close()
    assert ledger.state(ID) is not None
    ledgers.make_sweep_due(place)
    ledgers.open_ledger(place, result_ttl=0).close()
    assert ledger.state(ID) is None


def test_wall_clock_does_not_affect_silence_and_sweep(folder, monkeypatch):
    """Only the time since the host was booted counts, which is the same for all processes."""
    with contextlib.closing(ledgers.open_ledger(f"dir://{folder}/ledger")) as ledger:
        claim(ledger, ID)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 8 * 24 * 3600)
        assert ledger.silence("w") < 60
        assert ledger.sweep(3600) == 0


def test_memory_ledger_uses_manual_clock():
    clock = testing.ManualClock()
    ledger = ledgers.in_memory(clock)
    claim(ledger, ID)
    clock.advance(10)
    assert ledger.silence("w") == 10
    ledger.renew("w")
    assert ledger.sweep(5) == 0  # the row is old, but its owner is alive
    clock.advance(6)
    assert ledger.finish(ID, 1, "w", b"")
    assert ledger.sweep(5) == 0  # it changed just now
    clock.advance(6)
    assert ledger.sweep(5) == 1


@durable
def test_close_removes_only_workers_without_claims(place):
    ledger, other = (ledgers.open_ledger(place) for _ in range(2))
    claim(ledger, ID, holder="busy")
    claim(ledger, "other", holder="idle")
    ledger.finish("other", 1, "idle", b"")
    ledger.close()
    assert other.silence("idle") is None
    assert other.silence("busy") is not None
    assert other.state(ID).holder == "busy"
    # A worker that was removed too early is registered again.
    claim(ledger, "third", holder="idle")
    ledger.close()
    other.close()


# -- identity


@durable_dialects
def test_digest_identifies_ledger(place, folder):
    first, again = (ledgers.open_ledger(place) for _ in range(2))
    other = ledgers.open_ledger(f"dir://{folder}/b")
    assert first.digest == again.digest != other.digest
    for opened in (first, again, other):
        opened.close()


def test_ledger_accepts_only_its_digest(ledger):
    assert ledger.accepts(ledger.digest)
    assert not ledger.accepts("other")


def test_redis_that_lost_its_data_accepts_digests_that_its_clients_know(redis_url, redis_server):
    with contextlib.ExitStack() as stack:

        def opened():
            return stack.enter_context(contextlib.closing(ledgers.open_ledger(str(redis_url))))

        clients = [opened()]
        digests = [clients[0].digest]
        for _ in range(2):
            with redis_server.client(redis_url.rpartition("/")[2]) as connection:
                connection.flushdb()
            clients.append(opened())
            digests.append(clients[-1].digest)
            # In the order of their requests: a client of the time before the loss reports first.
            for client in clients:
                assert client.accepts(digests[-1])
                assert client.digest == digests[-1]
        assert len(set(digests)) == 3
        for client in clients:
            assert all(client.accepts(digest) for digest in digests)
            assert not client.accepts("other")


def test_digest_of_a_ledger_in_memory():
    shared = ledgers.open_ledger("memory://digest")
    assert shared is ledgers.open_ledger("memory://digest")
    assert shared.digest != ledgers.open_ledger("memory://digest2").digest
    assert not shared.has_lost_data


def test_ledger_of_a_broker(folder):
    with resolve("memory://with-ledger").open():
        ledger = ledgers.of_broker("memory://with-ledger")
        assert ledger is ledgers.open_ledger("memory://with-ledger")
    # A worker opens its ledger, and connects after the last other process has ended.
    assert ledgers.of_broker("memory://with-ledger") is ledger
    digest, ledger = ledger.digest, None
    assert ledgers.of_broker("memory://with-ledger").digest != digest

    engine = {"data_folder_in": f"{folder}/a", "data_folder_out": f"{folder}/b"}
    worker = {"data_folder_in": f"{folder}/b", "data_folder_out": f"{folder}/a"}
    one = ledgers.of_broker(None, "engine", transport="filesystem", **engine)
    two = ledgers.of_broker(None, "worker", transport="filesystem", **worker)
    assert one.digest == two.digest
    assert os.path.exists(folder / "b" / "wbengine.db")

    assert ledgers.of_broker("amqp://localhost") is None
    with pytest.raises(ValueError, match="amqp://localhost"):
        ledgers.open_ledger(resolve("amqp://localhost"))
    with pytest.raises(ValueError, match="dir:///PATH"):
        ledgers.open_ledger("sql://x")


@pytest.mark.parametrize(
    ("place", "near"),
    [
        ("redis+sentinel://h", "redis"),
        ("unix:///tmp/s", "redis"),
        ("memory+x://a", "memory"),
        ("dir+x:///tmp/a", "dir"),
        ("filesystem:///tmp/a", "dir"),
    ],
)
def test_unknown_scheme_is_refused_with_nearest_one(place, near):
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        ledgers.open_ledger(place)


@pytest.mark.parametrize("place", ["dir:///", "sqlite:////"])
def test_root_folder_is_refused_with_the_form_of_a_path(place):
    with pytest.raises(ValueError, match=r"dir:///PATH|sqlite:////path/of\.db"):
        ledgers.open_ledger(place)


def test_unusable_folder_raises_ledger_failure(folder):
    (folder / "file").write_text("")
    with pytest.raises(exceptions.LedgerFailure, match="file"):
        ledgers.open_ledger(f"dir://{folder}/file")
    ledger = ledgers.open_ledger(f"dir://{folder}/gone")
    os.rename(folder / "gone", folder / "away")
    with pytest.raises(exceptions.LedgerFailure, match="gone"):
        ledger.open(ID, 1)


# -- comparison with a model


class LedgerMachine(RuleBasedStateMachine):
    """Random calls on a ledger and on a dict that predicts the results."""

    ids = st.sampled_from(["a", "b"])
    epochs = st.integers(0, 5)
    holders = st.sampled_from(["w1", "w2"])

    def __init__(self, ledger):
        super().__init__()
        self.ledger = ledger

    @initialize()
    def start(self):
        self.ledger.sweep(0)
        self.rows = {}

    def check(self, call, expected):
        assert call(self.ledger) == expected
        for id in ("a", "b"):
            row = self.rows.get(id)
            assert self.ledger.state(id) == (ledgers.Row(id, *row) if row else None)

    @rule(id=ids, epoch=epochs)
    def open(self, id, epoch):
        row = self.rows.get(id)
        if row is None or (row[1] == "open" and row[0] < epoch):
            self.rows[id] = (epoch, "open", None, None)
        self.check(lambda ledger: ledger.open(id, epoch), None)

    @rule(id=ids, epoch=epochs, holder=holders)
    def claim(self, id, epoch, holder):
        row = self.rows.get(id)
        if row is None:
            expected = ledgers.Claim("MISSING", epoch)
        elif epoch != row[0]:
            expected = ledgers.Claim("STALE" if epoch < row[0] else "MISSING", row[0])
        elif row[1] == "open":
            self.rows[id] = (epoch, "claimed", holder, None)
            expected = ledgers.Claim("GRANTED", epoch, None, holder)
        elif row[1] == "claimed":
            expected = ledgers.Claim("HELD", epoch, None, row[2])
        else:
            expected = ledgers.Claim("DONE", epoch, row[3])
        self.check(lambda ledger: ledger.claim(id, epoch, holder), expected)

    @rule(id=ids, epoch=epochs, holder=holders, result=st.binary(max_size=3))
    def finish(self, id, epoch, holder, result):
        good = self.rows.get(id) == (epoch, "claimed", holder, None)
        if good:
            self.rows[id] = (epoch, "done", None, result)
        self.check(lambda ledger: ledger.finish(id, epoch, holder, result), good)

    @rule(id=ids, epoch=epochs, holder=holders)
    def release(self, id, epoch, holder):
        good = self.rows.get(id) == (epoch, "claimed", holder, None)
        if good:
            self.rows[id] = (epoch, "open", None, None)
        self.check(lambda ledger: ledger.release(id, epoch, holder), good)

    @rule(id=ids)
    def release_rightly(self, id):
        row = self.rows.get(id)
        if row and row[1] == "claimed":
            self.release(id, row[0], row[2])

    @rule(id=ids, result=st.binary(max_size=3))
    def finish_rightly(self, id, result):
        row = self.rows.get(id)
        if row and row[1] == "claimed":
            self.finish(id, row[0], row[2], result)

    @rule(id=ids, epoch=epochs)
    def reopen(self, id, epoch):
        def call(ledger):
            try:
                return ledger.reopen(id, epoch)
            except exceptions.NotFound:
                return "not found"

        row = self.rows.get(id)
        if row is None:
            expected = "not found"
        elif row[1] == "done":
            expected = row[3]
        else:
            expected = None
            if row[0] < epoch:
                self.rows[id] = (epoch, "open", None, None)
        self.check(call, expected)

    @rule(id=ids)
    def revoke(self, id):
        good = self.rows.get(id, (0, ""))[1] == "open"
        if good:
            del self.rows[id]
        self.check(lambda ledger: ledger.revoke(id), good)

    @rule(id=ids)
    def drop(self, id):
        self.rows.pop(id, None)
        self.check(lambda ledger: ledger.drop(id), None)

    @rule()
    def sweep(self):
        count = len(self.rows)
        self.rows.clear()
        self.check(lambda ledger: ledger.sweep(0), count)


#: Calls with the row `a`.
CALLS = {
    "life of a row": "open 1, claim 1 w1, finish 1 w1 result, claim 1 w2, drop, claim 1 w1, drop",
    "second claim is held": "open 1, claim 1 w1, claim 1 w2, claim 1 w1",
    "existing row is not opened again": "open 1, open 1, claim 1 w, open 1, open 2, finish 1 w r,"
    " open 1",
    "open row is replaced by a higher epoch": "open 2, open 1, open 5, claim 5 w, open 6,"
    " finish 5 w r, open 6",
    "row is released by its owner": "open 3, release 3 w1, claim 3 w1, release 2 w1, release 4 w1,"
    " release 3 w2, release 3 w1, release 3 w1, finish 3 w1 late, claim 3 w2, finish 3 w2 r,"
    " release 3 w2, drop, release 3 w2",
    "earlier claim of the same worker has no effect": "open 1, claim 1 w, reopen 2, claim 2 w,"
    " finish 1 w early, release 1 w, finish 2 w r",
    **{
        f"only the epoch {n} is claimed": f"open {n}, claim {n - 1} w, claim {n + 1} w,"
        f" reopen {n + 3}, claim {n} w, claim {n + 3} w1, reopen {n + 3}, reopen {n + 4},"
        f" finish {n + 3} w1 late, claim {n + 4} w2, finish {n + 4} w1 other, finish {n + 4} w2 r,"
        f" finish {n + 4} w2 again, reopen {n + 5}, drop, open 1"
        for n in (0, 1, 2, 7, 10**12)
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_with_a_row_agree_with_a_model(ledger, name):
    machine = LedgerMachine(ledger)
    machine.start()
    for call in CALLS[name].split(", "):
        method, *words = call.split()
        arguments = [int(word) if word.strip("-").isdigit() else word for word in words]
        if method == "finish":
            arguments[-1] = arguments[-1].encode()
        getattr(machine, method)("a", *arguments)


@dialects
def test_random_calls_agree_with_a_model(ledger):
    run_state_machine_as_test(
        lambda: LedgerMachine(ledger),
        settings=settings(
            max_examples=amount(10, 50),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# -- concurrency


def test_threads_claim_each_row_once(ledger):
    ids = [uuid.uuid4().hex for _ in range(150)]
    for id in ids:
        ledger.open(id, 1)
    granted = [[] for _ in range(4)]

    def run(number):
        for id in ids:
            if ledger.claim(id, 1, f"w{number}").granted:
                granted[number].append(id)

    call_in_threads(run, range(4))
    assert sorted(itertools.chain(*granted)) == sorted(ids)


@dialects
def test_only_one_of_concurrent_finish_and_reopen_succeeds(kind, place):
    one = ledgers.open_ledger(place)
    two = one if kind == "memory" else ledgers.open_ledger(place)
    ids = [uuid.uuid4().hex for _ in range(100)]
    claim(one, *ids)
    finished, reopened = {}, {}
    barrier = threading.Barrier(2)

    def run(number):
        for id in ids:
            barrier.wait()
            if number:
                finished[id] = one.finish(id, 1, "w", id.encode())
            else:
                reopened[id] = two.reopen(id, 2)

    call_in_threads(run, range(2))
    for id in ids:
        if finished[id]:
            assert reopened[id] == id.encode()
            assert one.state(id) == ledgers.Row(id, 1, "done", None, id.encode())
        else:
            assert reopened[id] is None
            assert one.state(id) == ledgers.Row(id, 2, "open")
        two.drop(id)
        assert one.state(id) is None
    one.close()
    two.close()


@dialects
def test_refused_result_leaves_no_data(kind, place):
    """The row was dropped or reopened while its large result was being stored in steps."""
    one = ledgers.open_ledger(place)
    two = one if kind == "memory" else ledgers.open_ledger(place)
    ids = [uuid.uuid4().hex for _ in range(40)]
    claim(one, *ids)
    large = b"x" * 40_000
    stored = []
    barrier = threading.Barrier(2)

    def run(number):
        for place, id in enumerate(ids):
            barrier.wait()
            if number:
                stored.append(one.finish(id, 1, "w", large))
            elif place % 2:
                two.drop(id)
            else:
                two.reopen(id, 2)

    call_in_threads(run, range(2))
    for place, (id, good) in enumerate(zip(ids, stored, strict=True)):
        row = one.state(id)
        if place % 2:
            assert row is None
        else:
            assert row == (
                ledgers.Row(id, 1, "done", None, large) if good else ledgers.Row(id, 2, "open")
            )
    two.drop_many(ids[::2])
    assert one.ids() == set()
    one.close()
    two.close()


@durable_dialects
def test_processes_claim_each_row_once(kind, place, ledger, capsys):
    """`WBENGINE_RACE_IDS=5000` sets the number of ids."""
    ids = [uuid.uuid4().hex for _ in range(int(os.environ.get("WBENGINE_RACE_IDS", 150)))]
    for id in ids:
        ledger.open(id, 1)
    results = racing.race("claim", 4, place, ids)
    granted = [mine for mine, _ in results]
    assert sorted(itertools.chain(*granted)) == sorted(ids)
    for number, mine in enumerate(granted):
        assert all(ledger.state(id).result == f"w{number}".encode() for id in mine)
    seconds = max(took for _, took in results)
    if "WBENGINE_RACE_IDS" in os.environ:
        with capsys.disabled():
            print(
                f"\n{kind}: {len(ids):,} ids, 4 processes, {4 * len(ids) / seconds:,.0f} claims/s,"
                f" granted {'+'.join(str(len(mine)) for mine in granted)}, 0 twice"
            )


@durable_dialects
def test_only_one_of_finish_and_reopen_in_two_processes_succeeds(kind, place, ledger):
    ids = [uuid.uuid4().hex for _ in range(150)]
    claim(ledger, *ids)
    reopened, finished = racing.race("finish", 2, place, ids)
    for id in ids:
        state = ledger.state(id)
        if finished[id]:
            assert state == ledgers.Row(id, 1, "done", None, id.encode())
            assert reopened[id] == id
        else:
            assert state == ledgers.Row(id, 2, "open")
            assert reopened[id] is None


@durable_dialects
def test_concurrent_processes_create_one_ledger(kind, folder, database_servers, request):
    """The epoch of a row is the highest one of its concurrent openers."""
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            url = str(request.getfixturevalue("redis_url"))
        elif kind in ("mysql", "postgresql"):
            url = stack.enter_context(database_servers[kind].database())
        else:
            url = f"dir://{folder}/n" if kind == "dir" else f"sqlite:///{folder}/n.db"
        digests = {*racing.race("open", 4, url, ["a", "b", "c"])}
        ledger = stack.enter_context(contextlib.closing(ledgers.open_ledger(url)))
        assert digests == {ledger.digest}
        assert [row.epoch for row in ledger.states(["a", "b", "c"])] == [4, 4, 4]
