"""The order in which conductors take jobs of boards with queues: keys, weights, priorities."""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seams import stores
from tests.support import brokers, servers
from tests.support.threads import call_in_threads
from tests.support.waiting import until
from wbengine import exceptions, states
from wbengine.jobs import _places, _queues, base
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import _sql_turns, impl_memory, impl_redis, impl_sql
from wbengine.persistence import _commands, backends, models
from wbengine.persistence import base as persistence

from . import places

DATABASES = ("sqlite", "postgresql", "mysql")
#: Boards in the database of the flows, which also delay jobs.
in_databases = pytest.mark.parametrize("store", DATABASES, indirect=True, scope="module")

Board = impl_sql.SQLJobBoard | impl_redis.RedisJobBoard


class Store:
    """A place of boards, which each have their own namespace."""

    def __init__(self, backend: persistence.Backend, conf: dict[str, str]) -> None:
        self.backend = backend
        self._conf = conf

    @contextlib.contextmanager
    def opened(self, namespace: str) -> Iterator[Board]:
        conf = dict(self._conf)
        if conf["board"] != "memory":
            conf["namespace"] = namespace
        with boards.backend("board", conf, persistence=self.backend) as board:
            assert isinstance(board, Board)
            yield board


@pytest.fixture(scope="module", params=(*DATABASES, "memory", "redis"))
def store(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    database_servers: servers.Databases,
    broker_servers: brokers.Brokers,
) -> Iterator[Store]:
    kind: str = request.param
    options: dict[str, Any] | str = "memory://"
    with contextlib.ExitStack() as stack:
        if kind == "memory":
            conf = {"board": "memory"}
        elif kind == "redis":
            place = stack.enter_context(broker_servers["redis"].place())
            conf = {"board": str(place)}
        else:
            folder = tmp_path_factory.mktemp("turns")
            options = stack.enter_context(places.place(kind, folder, database_servers))
            conf = {"board": "sql"}
        yield Store(stack.enter_context(backends.backend(options)), conf)


@pytest.fixture
def board(store: Store) -> Iterator[Board]:
    """An empty board of its own in the store."""
    with store.opened(models.new_uuid()) as board:
        yield board


def post(
    board: Board,
    name: str,
    fair_key: str | None = None,
    priority: str = "NORMAL",
    *,
    weight: float | None = None,
    queue: str | None = None,
    eta: float | None = None,
) -> str:
    """Submit a flow, and return its uuid."""
    flow = models.FlowDetail(name)
    book = models.LogBook(name)
    book.add(flow)
    place = _places.Place.of(priority, queue, fair_key, weight)
    if isinstance(board, impl_sql.SQLJobBoard) and board.keeps_flows:
        board.post_flow(name, book, flow, place, eta=eta)
    else:
        assert board.repost(flow.uuid, name, book, place) is not None
    return flow.uuid


def post_many(board: Board, key: str, count: int, **options: Any) -> list[str]:
    """Submit the flows `key0`, `key1` … of a key, and return their uuids."""
    return [post(board, f"{key}{number}", key, **options) for number in range(count)]


def queues_of(board: Board) -> _queues.BaseJobQueues:
    assert board.job_queues is not None
    return board.job_queues


@contextlib.contextmanager
def another(store: Store, board: Board) -> Iterator[Board]:
    """The board of another conductor; in memory, there is only one."""
    if isinstance(board, impl_memory.MemoryJobBoard):
        yield board
        return
    with store.opened(board.namespace) as opened:
        yield opened


def take(board: Board, limit: int = 1, *except_uuids: str) -> list[str]:
    return [job.name for job in board.take("me", limit, except_uuids)]


def drain(board: Board, limit: int = 1) -> list[str]:
    """Take and consume all jobs; return their names in this order."""
    names = []
    while jobs := board.take("me", limit):
        for job in jobs:
            names.append(job.name)
            board.consume(job, "me")
    return names


def write(backend: persistence.Backend, statement: str, rows: list[dict[str, Any]]) -> None:
    with stores.engine_of(backend).begin() as connection:
        connection.execute(sa.text(statement), rows)


def note_count(backend: persistence.Backend, board: Board) -> int:
    """Return the number of stored turns of keys."""
    count = sa.text("SELECT COUNT(*) FROM wbe_fair_keys WHERE board = :board")
    with stores.engine_of(backend).connect() as connection:
        return int(connection.scalar(count, {"board": board.namespace}) or 0)


@contextlib.contextmanager
def before_statements(call: Callable[..., None]) -> Iterator[None]:
    """Call the listener before each statement, except those of transactions."""
    sa.event.listen(sa.Engine, "before_cursor_execute", call)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", call)


def statement_count(work: Callable[[], object]) -> int:
    """Return the number of statements of `work`, without those of transactions."""
    statements: list[str] = []
    with before_statements(lambda *values: statements.append(values[2])):
        work()
    return len(statements)


@pytest.mark.parametrize("store", ["postgresql"], indirect=True, scope="module")
@pytest.mark.parametrize("limit", [1, 4])
def test_claim_and_its_end_are_one_round_trip_each(board: Board, limit: int) -> None:
    post_many(board, "a", 8)
    post_many(board, "b", 8, weight=2)
    board.take("me", limit)  # It also finds out that the queue has further jobs.
    trips: list[bool] = []

    with before_statements(lambda *values: trips.append(values[1].connection.autocommit)):
        jobs = board.take("me", limit)
        assert len(jobs) == limit and trips == [True]
        board.consume(jobs[0], "me")
        assert trips == [True, True]


@pytest.mark.parametrize("store", ["postgresql"], indirect=True, scope="module")
def test_job_that_another_process_claims_costs_no_further_statement(
    store: Store, board: Board
) -> None:
    post_many(board, "a", 8)
    post_many(board, "b", 8)
    assert take(board) == ["a0"]
    lock = sa.text("SELECT id FROM wbe_jobs WHERE board = :board AND name = 'b0' FOR UPDATE")
    with stores.engine_of(store.backend).begin() as other:
        other.execute(lock, {"board": board.namespace})
        names: list[str] = []
        assert statement_count(lambda: names.extend(take(board, 2))) == 1
        assert names == ["a1", "b1"]


@pytest.mark.parametrize("store", ["postgresql"], indirect=True, scope="module")
def test_claim_reads_few_rows_of_a_large_backlog(store: Store, board: Board) -> None:
    """Statistics must not make PostgreSQL search a key in an index of all jobs."""
    post(board, "a", "a")
    described = sa.inspect(stores.engine_of(store.backend)).get_columns("wbe_jobs")
    columns = [column["name"] for column in described if column["name"] != "id"]
    values = {"uuid": "gen_random_uuid()::text", "turn": "turn + number"}
    copies = (
        f"INSERT INTO wbe_jobs ({', '.join(columns)})"
        f" SELECT {', '.join(values.get(name, name) for name in columns)}"
        " FROM wbe_jobs, generate_series(1, 20000) number WHERE board = :board"
    )
    write(store.backend, copies, [{"board": board.namespace}])
    for key in ("b", "c"):
        post(board, key, key)
    wanted = _sql_turns.Wanted("me", 3, 60.0)
    found = _sql_turns.JobTurns("postgresql").take_at_once(board.namespace, "default", wanted)
    assert found is not None
    statement, parameters = found
    with stores.engine_of(store.backend).begin() as connection:
        connection.execute(sa.text("ANALYZE wbe_jobs"))
        explain = sa.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
        plan = connection.scalar(explain, parameters)
    removed = [int(count) for count in re.findall(r"'Rows Removed by Filter': (\d+)", str(plan))]
    assert removed and max(removed) < 100


@pytest.mark.parametrize("store", ["postgresql"], indirect=True, scope="module")
def test_failed_statement_is_repeated_as_a_transaction(board: Board) -> None:
    """This also applies to a lost connection, after which the claim may be stored or not."""
    for name in ("first", "second"):
        post(board, name)

    def fail(connection: Any, cursor: Any, statement: str, parameters: Any, *_: object) -> None:
        if cursor.connection.autocommit and statement.startswith(("WITH heads", "DELETE")):
            raise sa.exc.OperationalError(statement, parameters, OSError("connection is lost"))

    with before_statements(fail):
        assert drain(board) == ["first", "second"]


@pytest.mark.parametrize("limit", [1, 4, 16])
def test_jobs_without_keys_are_taken_by_priority_and_age(board: Board, limit: int) -> None:
    for number, priority in enumerate(("LOW", "NORMAL", "VERY_HIGH", "NORMAL", "LOW", "HIGH")):
        post(board, f"{priority}{number}", priority=priority)
    assert drain(board, limit) == ["VERY_HIGH2", "HIGH5", "NORMAL1", "NORMAL3", "LOW0", "LOW4"]


@pytest.mark.parametrize("limit", [1, 3, 16])
def test_keys_are_served_in_turn(board: Board, limit: int) -> None:
    post_many(board, "a", 6)
    post_many(board, "b", 2)
    post_many(board, "c", 1)
    order = drain(board, limit)
    assert order[:3] == ["a0", "b0", "c0"] and order[3:5] == ["a1", "b1"]
    assert order[5:] == [f"a{number}" for number in range(2, 6)]


def test_key_with_a_weight_gets_more_turns(board: Board) -> None:
    post_many(board, "heavy", 40, weight=3)
    post_many(board, "light", 40)
    counts = collections.Counter(name.rstrip("0123456789") for name in drain(board)[:40])
    assert counts == {"heavy": 30, "light": 10}


@pytest.mark.parametrize("store", ("memory", "redis"), indirect=True, scope="module")
def test_keys_with_different_backlogs_begin_equally(store: Store, board: Board) -> None:
    """Several conductors take jobs. The index of Jain is 1 if all keys have equal shares."""
    keys = [f"key{number}" for number in range(20) for _ in range(10 + number)]
    random.Random(1).shuffle(keys)
    for key in keys:
        post(board, key, key)
    counts = collections.Counter[str]()
    with another(store, board) as other:
        while counts.total() < 190:
            counts.update(take(board, 3) + take(other, 2))
    index = counts.total() ** 2 / (20 * sum(count**2 for count in counts.values()))
    assert index > 0.99, counts


@pytest.mark.parametrize("limit", [1, 4, 16])
def test_priority_decides_only_within_a_key(board: Board, limit: int) -> None:
    post_many(board, "a", 3)
    post(board, "b0", "b", "LOW")
    for number in range(3):
        post(board, f"a-high{number}", "a", "HIGH")
    assert drain(board, limit) == ["a-high0", "b0", "a-high1", "a-high2", "a0", "a1", "a2"]


def test_key_that_had_no_jobs_has_no_advantage(board: Board) -> None:
    post_many(board, "a", 20)
    drained = [*take(board, 10)]
    post_many(board, "b", 2)
    drained += drain(board)
    assert drained[:10] == [f"a{number}" for number in range(10)]
    assert drained[10:14] == ["a10", "b0", "a11", "b1"]


def shares(board: Board, key: str, **options: Any) -> dict[str, int]:
    """Return the turns of the keys a and b with many jobs, and of one with one job at a time."""
    for other in ("a", "b"):
        post_many(board, other, 20)
    post(board, key, key, **options)
    counts = collections.Counter[str]()
    for _ in range(30):
        (name,) = take(board)
        counts[name[0]] += 1
        if name == key:
            post(board, key, key, **options)
    return counts


@pytest.mark.parametrize(
    ("weight", "expected"),
    [(None, {"a": 10, "b": 10, "c": 10}), (0.5, {"a": 12, "b": 12, "c": 6})],
    ids=["normal", "low"],
)
def test_key_that_submits_one_job_after_the_other_gets_only_its_share(
    board: Board, weight: float | None, expected: dict[str, int]
) -> None:
    """Such a key has no waiting job that would tell its last turn."""
    assert shares(board, "c", weight=weight) == expected


@in_databases
def test_delayed_job_of_a_key_gives_it_no_advantage(board: Board) -> None:
    post(board, "later", "c", eta=1000)
    assert shares(board, "c") == {"a": 10, "b": 10, "c": 10}


@in_databases
@pytest.mark.parametrize("limit", [1, 8])
def test_concurrent_submissions_of_a_key_give_it_no_advantage(
    store: Store, board: Board, limit: int
) -> None:
    """Transactions that do not see the rows of each other give their jobs equal turns."""
    post_many(board, "a", 20)
    post_many(board, "b", 20)
    same = "UPDATE wbe_jobs SET turn = :turn WHERE name = :name AND board = :board"
    rows = [
        {"turn": float(number // 4), "name": f"a{number}", "board": board.namespace}
        for number in range(20)
    ]
    write(store.backend, same, rows)
    names = drain(board, limit)
    assert sorted(names) == sorted(f"{key}{number}" for key in "ab" for number in range(20))
    for end in range(16, 33, 8):
        assert abs(collections.Counter(name[0] for name in names[:end])["a"] - end / 2) <= 4


@pytest.mark.parametrize("store", ["postgresql", "mysql"], indirect=True, scope="module")
def test_flows_of_a_long_transaction_take_turns_after_its_commit(
    store: Store, board: Board
) -> None:
    assert isinstance(board, impl_sql.SQLJobBoard)
    flows, places_of_flows = [], []
    for number in range(10):
        flow, book = models.FlowDetail(f"late{number}"), models.LogBook("late")
        book.add(flow)
        flows.append((flow, book))
        places_of_flows.append(_places.Place.of("NORMAL", None, "late", None))
    post_many(board, "a", 20)
    post_many(board, "b", 20)
    with stores.engine_of(store.backend).begin() as transaction:
        board.post_flows(flows, places_of_flows, transaction=transaction)
        for name in take(board, 20):
            assert name[0] in "ab"
    counts = {queue.name: (queue.waiting, queue.delayed) for queue in queues_of(board).all()}
    assert counts == {"default": (30, 0)}, "they wait for no time"
    with another(store, board) as conductor:  # The first one is busy with other flows.
        names = take(conductor, 9)
    assert collections.Counter(name[0] for name in names) == {"a": 3, "b": 3, "l": 3}
    assert [name for name in names if name[0] == "l"] == ["late0", "late1", "late2"]


@in_databases
def test_only_notes_of_keys_that_change_an_order_are_kept(store: Store, board: Board) -> None:
    queues = queues_of(board)
    for number in range(30):
        post(board, f"x{number}", f"x{number}", weight=0.5)
        post(board, f"a{number}", "a")
    taken = take(board, 31)
    assert sum(name.startswith("x") for name in taken) == 30
    assert note_count(store.backend, board) == 30
    queues.report(["default"])
    assert note_count(store.backend, board) == 30, "none of these keys may go first now"
    take(board, 2)
    queues.report(["default"])
    assert note_count(store.backend, board) == 1, "the time of the queue"
    post(board, "x-again", "x5")
    assert take(board, 2) == ["a3", "x-again"]
    drain(board)
    queues.report(["default"])
    assert note_count(store.backend, board) <= 1


@in_databases
def test_priority_decides_between_jobs_of_a_key_with_equal_turns(
    store: Store, board: Board
) -> None:
    for name, priority in (("old", "NORMAL"), ("new", "HIGH")):
        post(board, name, "a", priority)
    same = "UPDATE wbe_jobs SET turn = 1 WHERE board = :board"
    write(store.backend, same, [{"board": board.namespace}])
    assert take(board) == ["new"]


@in_databases
def test_job_that_an_earlier_release_offered_comes_first(store: Store, board: Board) -> None:
    for name in ("new", "begun"):
        post(board, name)
    without = "UPDATE wbe_jobs SET turn = NULL WHERE name = :name AND board = :board"
    write(store.backend, without, [{"name": "begun", "board": board.namespace}])
    queues_of(board).report(["default"])
    assert take(board, 2) == ["begun", "new"]


@in_databases
def test_jobs_of_many_keys_are_taken_with_as_many_statements_as_one(board: Board) -> None:
    for number in range(40):
        post(board, f"a{number}", f"a{number % 10}")
    first, second = (statement_count(functools.partial(take, board, n)) for n in (10, 10))
    assert first <= 5, "due jobs, queues, jobs to take, and their claim"
    assert second <= first, "if there were enough jobs, the next call reads only these"


def test_jobs_of_one_key_are_taken_once(board: Board) -> None:
    """MySQL ignores blanks at the end of a text."""
    with pytest.raises(ValueError, match="without outer blanks"):
        post(board, "x", "a ")
    for name, key in (("y", "a"), ("z", "A"), ("x", "ä")):
        post(board, name, key, "HIGH" if name == "x" else "NORMAL")
    assert sorted(take(board, 5)) == ["x", "y", "z"]


def test_queues_are_served_in_their_order(board: Board) -> None:
    for queue in ("reports", "default", "mails"):
        post(board, f"{queue}0", queue=queue)
        post(board, f"{queue}1", queue=queue)
    assert take(board, 10) == ["default0", "default1"], "by default, only this queue"
    board.queues = ("mails", "reports")
    assert take(board, 3) == ["mails0", "mails1", "reports0"]
    board.queues = ("unknown",)
    assert take(board, 10) == []
    board.queues = ("*",)
    assert take(board, 10) == ["reports1"]


@in_databases
def test_error_in_a_later_queue_keeps_the_jobs_of_the_first_one(board: Board) -> None:
    """Their claims are stored: without the jobs, they would wait until these expire."""
    for queue in ("mails", "reports"):
        post(board, queue, queue=queue)
    board.queues = ("mails", "reports")

    def fail(connection: Any, cursor: Any, statement: str, parameters: Any, *_: object) -> None:
        values = parameters.values() if isinstance(parameters, dict) else parameters
        if "next_start" in statement and "reports" in values:
            raise sa.exc.OperationalError(statement, parameters, OSError("disk is full"))

    with before_statements(fail):
        assert take(board, 2) == ["mails"]
        with pytest.raises(exceptions.JobFailure, match="disk is full"):
            take(board, 2)
    assert take(board, 2) == ["reports"]


def test_other_queues_follow_named_ones(board: Board) -> None:
    for queue in ("default", "mails", "reports"):
        for number in range(3):
            post(board, f"{queue}{number}", queue=queue)
    board.queues = ("mails", "*", "unknown")
    assert take(board, 4)[:3] == ["mails0", "mails1", "mails2"]
    others = drain(board)
    assert len(others) == 5 and {name[:-1] for name in others} == {"default", "reports"}


def test_queues_are_chosen_at_random(board: Board) -> None:
    """No queue waits until the others are empty."""
    for queue in ("default", "mails"):
        for number in range(20):
            post(board, f"{queue}{number}", queue=queue)
    board.queues = ("*",)
    first = [take(board)[0] for _ in range(20)]
    assert {name.rstrip("0123456789") for name in first} == {"default", "mails"}


def test_paused_queue_is_not_served(store: Store, board: Board) -> None:
    queues = queues_of(board)
    board.queues = ("default", "reports")
    for queue in board.queues:
        post(board, f"{queue}0", queue=queue)
        post(board, f"{queue}1", queue=queue)
    queues.pause("default", reason="an incident", by="eve")
    assert take(board) == ["reports0"]
    queues.pause("*")
    assert take(board) == []
    queues.resume("*")
    assert take(board, 10) == ["reports1"]
    with pytest.raises(
        exceptions.NotFound, match=r"'defaul' is not paused .did you mean 'default'"
    ):
        queues.resume("defaul")
    queues.resume("default")
    assert take(board, 10) == ["default0", "default1"]


def test_pause_lets_begun_flows_continue(store: Store, board: Board) -> None:
    post(board, "begun")
    post(board, "urgent", priority="VERY_HIGH")
    (job,) = [job for job in board.take("me", 2) if job.name == "begun"]
    keeps_flows = isinstance(board, impl_sql.SQLJobBoard) and board.keeps_flows
    if keeps_flows:  # Other boards regard each flow as begun whose job was claimed.
        with stores.engine_of(store.backend).begin() as connection:
            begin = f"UPDATE wbe_flowdetails SET state = '{states.RUNNING}' WHERE uuid = :uuid"
            connection.execute(sa.text(begin), {"uuid": job.uuid})
    board.abandon(job, "me")
    new = post(board, "new", priority="VERY_HIGH")
    queues = queues_of(board)
    queues.pause("*")
    assert take(board, 5) == ["begun"]
    if keeps_flows:
        with contextlib.closing(store.backend.get_connection()) as connection:
            command = _commands.FlowCommand(_commands.CANCEL, None, None, 0.0)
            connection.send_command(new, command)
    else:
        board.make_due(new)
    assert take(board, 5) == ["new"], "its cancellation is carried out"
    queues.resume("*")


def test_queues_are_listed_with_their_flows_and_keys(store: Store, board: Board) -> None:
    queues = queues_of(board)
    assert [queue.name for queue in queues.all()] == ["default"]
    for key in "aab":
        post(board, key, key)
    has_delays = isinstance(board, impl_sql.SQLJobBoard) and board.keeps_flows
    if has_delays:
        post(board, "later", "a", eta=1000)
    post(board, "report", queue="reports")
    take(board)
    queues.report(["reports"])
    queues.pause("mails", reason="an incident", by="eve")
    default, mails, reports = queues.all()
    assert (default.name, default.waiting, default.running) == ("default", 2, 1)
    assert default.delayed == has_delays
    assert default.keys == 2 and default.oldest is not None and not default.is_served
    assert (mails.paused_by, mails.reason, mails.waiting) == ("eve", "an incident", 0)
    assert reports.is_served and reports.waiting == 1 and reports.paused_at is None
    first, second = queues.keys("default")
    assert (first.key, first.waiting, first.delayed, first.running) == ("a", 1, has_delays, 1)
    assert (second.key, second.waiting) == ("b", 1)
    queues.pause("*")
    assert all(queue.paused_at is not None for queue in queues.all())
    assert queues.all()[1].paused_by == "eve", "its own pause"


def test_queues_require_valid_names(board: Board) -> None:
    queues = queues_of(board)
    for name in ("", "a b", "a/b", "x" * 65, "**"):
        with pytest.raises(ValueError, match="queue must be 1 to 64 letters"):
            queues.pause(name)


def test_queues_of_a_store_require_a_database() -> None:
    with pytest.raises(ValueError, match="require a database"):
        _queues.JobQueues(backends.fetch("memory://"))


@in_databases
def test_delayed_job_gets_its_turn_when_it_is_due(board: Board) -> None:
    for number in range(4):
        post(board, f"later{number}", "a", eta=0.05)
        post(board, f"b{number}", "b")
    post(board, "a", "a")
    names = take(board, 3)

    def is_over() -> bool:
        names.extend(drain(board))
        return len(names) == 9

    until(is_over)
    later = [name for name in names if name.startswith("later")]
    assert later == [f"later{number}" for number in range(4)]


def test_abandoned_and_expired_jobs_go_first(board: Board) -> None:
    post_many(board, "a", 3)
    (job,) = board.take("me", 1)
    board.abandon(job, "me")
    assert take(board) == ["a0"]
    with base.claims_expiring_after(0.05):
        (job,) = board.take("you", 1)
    assert job.name == "a1"
    until(lambda: board.find_owner(job) is None)
    assert drain(board) == ["a1", "a2"]


def test_abandoned_and_expired_jobs_return_to_their_queue(board: Board) -> None:
    for number in range(3):
        post(board, f"mail{number}", "a", queue="mails")
    board.queues = ("mails",)
    (job,) = board.take("me", 1)
    board.abandon(job, "me")
    with base.claims_expiring_after(0.05):
        (job,) = board.take("you", 1)
    until(lambda: board.find_owner(job) is None)
    board.queues = ("default",)
    assert take(board, 5) == []
    board.queues = ("mails",)
    assert take(board, 5) == ["mail0", "mail1", "mail2"]


def test_claimed_jobs_are_not_taken(board: Board) -> None:
    for key in (None, "a", "b"):
        post(board, f"first of {key}", key)
        post(board, f"second of {key}", key)
    jobs = {job.name: job for job in board.iterjobs(only_unclaimed=True)}
    assert len(jobs) == 6
    for name in ("first of None", "first of a", "second of b"):
        board.claim(jobs[name], "me")
    assert [job.name for job in board.iterjobs(only_unclaimed=True)] == [
        *("second of None", "second of a", "first of b")
    ]
    assert sorted(drain(board)) == ["first of b", "second of None", "second of a"]


def test_new_keys_do_not_delay_a_waiting_key(board: Board) -> None:
    """Each of them has one job."""
    post(board, "waiting", "z")
    names = []
    for number in range(5):
        post(board, f"new{number}", f"a{number}")
        names += take(board)
    assert "waiting" in names[:2]


def test_excluded_key_does_not_hold_back_others(board: Board) -> None:
    left = post_many(board, "a", 3)
    post(board, "b", "b")
    post(board, "c", "c")
    assert take(board, 5, *left) == ["b", "c"]
    assert take(board, 5) == ["a0", "a1", "a2"]


def test_excluded_job_does_not_stop_the_time_of_its_queue(board: Board) -> None:
    """Otherwise keys that come later would go first until they have as many turns as others."""
    excluded = post(board, "z", "z")
    post_many(board, "x", 40)
    assert len(take(board, 20, excluded)) == 20
    post_many(board, "y", 20)
    names = [take(board, 1, excluded)[0] for _ in range(20)]
    assert abs(sum(name.startswith("x") for name in names) - 10) <= 1
    assert take(board) == ["z"]


def test_excluded_jobs_are_left(board: Board) -> None:
    first = post(board, "first")
    post(board, "second")
    assert take(board, 10, first) == ["second"]
    assert take(board, 10) == ["first"]


def test_concurrent_conductors_take_each_job_once(store: Store, board: Board) -> None:
    expected = [post(board, f"flow{number}", f"key{number % 7}") for number in range(60)]
    taken: list[str] = []

    def conduct(_: int) -> None:
        with another(store, board) as own:
            while jobs := own.take("me", random.randint(1, 4)):
                taken.extend(job.uuid for job in jobs)

    call_in_threads(conduct, range(4))
    while jobs := board.take("me", 16):  # Another one may have locked the last ones.
        taken.extend(job.uuid for job in jobs)
    assert sorted(taken) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize("store", ("memory", "redis"), indirect=True, scope="module")
@settings(max_examples=25, deadline=None)
@given(
    submitted=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["HIGH", "NORMAL", "LOW"])),
        min_size=1,
        max_size=25,
    ),
    limit=st.integers(1, 5),
)
def test_waiting_keys_differ_by_at_most_one_turn(
    store: Store, submitted: list[tuple[str, str]], limit: int
) -> None:
    """While two keys have waiting jobs, neither gets more than one turn ahead."""
    with store.opened(models.new_uuid()) as board:
        left = collections.Counter(key for key, _ in submitted)
        for number, (key, priority) in enumerate(submitted):
            post(board, f"{key}{priority}{number:02}", key, priority)
        order = drain(board, limit)
    assert len(order) == len(submitted)
    served = collections.Counter[str]()
    for name in order:
        served[name[0]] += 1
        waiting = [key for key in "abc" if left[key] > served[key]]
        if waiting:
            assert served[name[0]] - min(served[key] for key in waiting) <= 1, order
    for key in "abc":
        ranks = {"HIGH": 0, "NORMAL": 1, "LOW": 2}
        own = [name for name in order if name[0] == key]
        assert own == sorted(own, key=lambda name: (ranks[name[1:-2]], name[-2:]))
