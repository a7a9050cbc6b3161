"""Contract of all job boards."""

from __future__ import annotations

import contextlib
import http.server
import importlib
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent import futures
from datetime import timedelta
from pathlib import Path
from typing import Any

import etcd3gw
import kazoo.client
import pytest
import redis
import sqlalchemy as sa

from tests.seams import stores
from tests.support import brokers, forks, servers
from tests.support.threads import call_in_threads
from tests.support.waiting import until
from wbengine import exceptions, states
from wbengine.jobs import _places, _stored, backends, base
from wbengine.persistence import backends as flow_stores
from wbengine.persistence import base as persistence
from wbengine.persistence import models

from . import places

SERVERS = ("redis", "zookeeper", "etcd")
KINDS = ("memory", *stores.DURABLE, *SERVERS)
#: Mark of tests for variants of databases, too.
dialects = pytest.mark.parametrize("conf", (*KINDS, "dir", "mysql"), indirect=True, scope="module")


@pytest.fixture(scope="module", params=KINDS)
def conf(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    database_servers: servers.Databases,
    broker_servers: brokers.Brokers,
) -> Iterator[dict[str, Any]]:
    """Configuration of a board of each kind."""
    kind: str = request.param
    if kind == "memory":
        yield {"board": "memory"}
        return
    if kind in SERVERS:
        with broker_servers[kind].place() as place:
            yield {"board": str(place)}
        return
    with places.place(kind, tmp_path_factory.mktemp("board"), database_servers) as options:
        yield {"board": "sql", **options}


@pytest.fixture
def board(conf: dict[str, Any]) -> Iterator[base.JobBoard]:
    """Empty board; `another` is a second view of the same store."""
    with backends.backend("board", conf) as backend:
        yield backend
        for job in backend.iterjobs(only_unclaimed=True):
            backend.claim(job, "cleaner")
            backend.consume(job, "cleaner")
        for job in backend.iterjobs():
            backend.consume(job, backend.find_owner(job) or "")


@pytest.fixture
def another(conf: dict[str, Any], board: base.JobBoard) -> Iterator[base.JobBoard]:
    """Board of another program on the same store (in memory there is only one program)."""
    if conf["board"] == "memory":
        yield board
        return
    with backends.backend("another", conf) as backend:
        yield backend


def kind_of(conf: dict[str, Any]) -> str:
    return str(conf["board"]).partition(":")[0]


def names(board: base.JobBoard, **options: bool) -> list[str]:
    return [job.name for job in board.iterjobs(**options)]


def same(board: base.JobBoard, job: base.Job) -> base.Job:
    """Return the same job as another program reads it."""
    return next(listed for listed in board.iterjobs() if listed.uuid == job.uuid)


# Connecting.


def test_unconnected_board_raises_job_failure(conf: dict[str, Any]) -> None:
    board = backends.fetch("board", conf)
    assert not board.connected and board.name == "board"
    with pytest.raises(exceptions.JobFailure, match="'board' is not connected"):
        board.post("x")
    board.connect()
    board.connect()
    assert board.connected and list(board.iterjobs()) == []
    job = board.post("x")
    board.claim(job, "me")
    board.consume(job, "me")
    board.close()
    assert not board.connected
    with pytest.raises(exceptions.JobFailure, match="not connected"):
        _ = job.state


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_does_not_use_a_connection_of_its_parent(
    conf: dict[str, Any], board: base.JobBoard
) -> None:
    board.post("x")
    answer = forks.answer_of_fork(lambda: names(board))
    if kind_of(conf) in ("zookeeper", "etcd"):
        assert "JobFailure: Job board 'board' was connected in process" in answer
    elif conf["board"] != "memory":
        assert answer == "['x']"
    assert forks.answer_of_fork(board.close) == "None"
    assert names(board) == ["x"]


# Posting and listing.


@dialects
def test_posted_job_is_read_as_it_was_posted(board: base.JobBoard, another: base.JobBoard) -> None:
    details = {"store": {"x": (1, "π\0"), "y": {2: None}}, "flow_uuid": "f"}
    book = models.LogBook("a book")
    posted = board.post("Füße 🦊", book, details, priority="high")
    [read] = another.iterjobs()
    for job in (posted, read):
        assert (job.name, job.details, job.priority) == ("Füße 🦊", details, base.JobPriority.HIGH)
        assert (job.book_uuid, job.book_name) == (book.uuid, "a book")
        assert job.state == states.UNCLAIMED and job.claims == 0
    assert read == posted and read.uuid == posted.uuid and len({read, posted}) == 1
    assert read.created_on == posted.created_on
    assert read.last_modified is not None
    assert timedelta(0) <= read.last_modified - read.created_on < timedelta(seconds=1)
    assert "Füße" in str(read) and "store" not in str(read)
    assert another.job_count == 1


@dialects
def test_jobs_are_ordered_by_priority_and_age(board: base.JobBoard, another: base.JobBoard) -> None:
    """This includes more jobs than one query returns."""
    asked = list(base.JobPriority) * 9
    asked[3:5] = reversed(asked[3:5])
    for number, priority in enumerate(asked):
        board.post(f"{priority.rank} {number:03}", priority=priority)
    listed = names(another)
    assert len(listed) == 45 and listed == sorted(listed)
    jobs = list(another.iterjobs())
    assert jobs[0] < jobs[1] < jobs[-1]  # type: ignore[operator]
    assert not jobs[-1] < jobs[0]  # type: ignore[operator]
    for job in jobs[5:40]:
        another.claim(job, "me")
    assert names(board, only_unclaimed=True) == listed[:5] + listed[40:]
    assert names(board, ensure_fresh=True) == listed


def test_invalid_job_is_rejected(board: base.JobBoard) -> None:
    with pytest.raises(ValueError, match=r"priority must be one of VERY_HIGH, HIGH.*'urgent'"):
        board.post("x", priority="urgent")
    with pytest.raises(ValueError, match="name must be a non-empty string"):
        board.post("")
    with pytest.raises(exceptions.NotEncodable, match=r"details\['lock'\]"):
        board.post("x", details={"lock": threading.Lock()})
    assert board.job_count == 0


def test_job_reads_its_logbook_from_store(conf: dict[str, Any], board: base.JobBoard) -> None:
    with flow_stores.backend("memory") as backend:
        book, flow = persistence.temporary_flow_detail(backend)
        board.post("x", book)
        if conf["board"] != "memory":
            with backends.backend("reader", conf, persistence=backend) as reading:
                [job] = reading.iterjobs()
                assert job.book is not None
                assert (job.book.uuid, [each.uuid for each in job.book]) == (book.uuid, [flow.uuid])
    [job] = board.iterjobs()
    assert job.book is None and job.book_uuid == book.uuid  # this board has no store


def test_wait_returns_when_job_can_be_claimed(board: base.JobBoard, another: base.JobBoard) -> None:
    with pytest.raises(exceptions.NotFound, match=r"0\.1 seconds"):
        board.wait(timeout=0.1)
    with futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(lambda: names_of(board.wait(60)))
        another.post("x")
        assert waiting.result(60) == ["x"]
    board.claim(next(board.iterjobs()), "me")
    with pytest.raises(exceptions.NotFound):
        another.wait(timeout=0.1)


def names_of(jobs: Iterator[base.Job]) -> list[str]:
    return [job.name for job in jobs]


# Claims.


def test_claimed_job_has_one_owner(board: base.JobBoard, another: base.JobBoard) -> None:
    posted = board.post("x")
    assert board.find_owner(posted) is None
    [job] = another.iterjobs(only_unclaimed=True)
    another.claim(job, "me")
    assert board.find_owner(posted) == another.find_owner(job) == "me"
    assert posted.state == job.state == states.CLAIMED
    assert job.claims == 1 and job.expires_in() is base.UnknownExpire.DOES_NOT_EXPIRE
    assert names(board, only_unclaimed=True) == [] and names(board) == ["x"]
    for who in ("me", "you"):
        with pytest.raises(exceptions.UnclaimableJob, match=r"x .*is claimed by me"):
            board.claim(posted, who)
    another.abandon(job, "me")
    assert board.find_owner(posted) is None and posted.state == states.UNCLAIMED
    board.claim(posted, "you")
    assert same(another, posted).claims == posted.claims == 2


@dialects
def test_one_of_concurrent_claims_succeeds(board: base.JobBoard, another: base.JobBoard) -> None:
    for _ in range(5):
        board.post("x")
    jobs = list(board.iterjobs())

    def claimed(number: int) -> list[int]:
        mine = another if number % 2 else board
        claimed_places = []
        for place, job in enumerate(jobs):
            with contextlib.suppress(exceptions.UnclaimableJob):
                mine.claim(same(mine, job), f"owner {number}", expiry=60 if number < 4 else None)
                claimed_places.append(place)
        return claimed_places

    claimed_places = [place for places in call_in_threads(claimed, range(8)) for place in places]
    assert sorted(claimed_places) == [0, 1, 2, 3, 4]


@dialects
def test_claim_expires_unless_extended(
    conf: dict[str, Any], board: base.JobBoard, another: base.JobBoard
) -> None:
    """After that, the earlier owner cannot change the job."""
    if kind_of(conf) == "zookeeper":
        pytest.skip("there claims end with the session of their board")
    board.post("x")
    [job] = board.iterjobs()
    board.claim(job, "me", expiry=60)
    assert 30 < job.expires_in() <= 60
    with pytest.raises(exceptions.UnclaimableJob, match=r"by me for \d+\.\d more seconds"):
        another.claim(same(another, job), "you")
    assert job.extend_expiry(0.2)
    # The minimum lease of etcd is two seconds.
    until(lambda: another.find_owner(job) is None, within=2 if kind_of(conf) == "etcd" else 0.2)
    assert job.state == states.UNCLAIMED
    assert job.expires_in() is base.UnknownExpire.KEY_NOT_FOUND
    assert not job.extend_expiry(60)
    with pytest.raises(exceptions.NotFound, match=r"me cannot consume .*not claimed"):
        board.consume(job, "me")
    [free] = another.iterjobs(only_unclaimed=True)
    # This includes an owner of the same name.
    another.claim(free, "me", expiry=60)
    assert not job.extend_expiry(60)
    for end in (board.consume, board.abandon, board.trash):
        with pytest.raises(exceptions.JobFailure, match="was claimed again by me"):
            end(job, "me")
    assert free.extend_expiry(30)
    another.consume(free, "me")
    assert job.state == states.COMPLETE and not job.extend_expiry(60)


def test_claim_in_zookeeper_expires_with_session(broker_servers: brokers.Brokers) -> None:
    """After that, the earlier owner cannot change the job."""
    with (
        broker_servers["zookeeper"].place() as place,
        backends.backend("b", str(place)) as board,
        backends.backend("another", str(place)) as another,
    ):
        job = board.post("x")
        board.claim(job, "me", expiry=60)
        assert same(another, job).expires_in() is base.UnknownExpire.DOES_NOT_EXPIRE
        board.close()
        [free] = another.iterjobs(only_unclaimed=True)
        another.claim(free, "me")
        board.connect()
        assert not job.extend_expiry(60) and free.extend_expiry(60)
        for end in (board.consume, board.abandon, board.trash):
            with pytest.raises(exceptions.JobFailure, match="was claimed again by me"):
                end(job, "me")
        another.consume(free, "me")


def test_claim_without_expiry_can_be_given_an_expiry(
    conf: dict[str, Any], board: base.JobBoard
) -> None:
    job = board.post("x")
    board.claim(job, "me")
    assert same(board, job).extend_expiry(60)
    assert kind_of(conf) == "zookeeper" or job.expires_in() > 30
    for wrong in (0, -1, "soon"):
        with pytest.raises(ValueError, match="expiry must be"):
            job.extend_expiry(wrong)  # type: ignore[arg-type]


def test_claim_uses_expiry_of_caller_or_of_enclosing_block(
    conf: dict[str, Any], board: base.JobBoard
) -> None:
    if kind_of(conf) == "zookeeper":
        pytest.skip("there claims end with the session of their board")
    seconds = {"caller": 600.0, "block": 60.0, "nobody": None}
    remaining = {}
    for name in seconds:
        job = board.post(name)
        block = contextlib.nullcontext() if name == "nobody" else base.claims_expiring_after(60)
        with block:
            board.claim(job, "me", **({"expiry": 600} if name == "caller" else {}))
        assert job.claim_seconds == seconds[name]
        remaining[name] = job.expires_in()
    assert 300 < remaining["caller"] <= 600 and 30 < remaining["block"] <= 60
    assert remaining["nobody"] is base.UnknownExpire.DOES_NOT_EXPIRE


def test_ttl_of_etcd_board_is_default_expiry_of_claims(
    broker_servers: brokers.Brokers,
) -> None:
    """This applies even if the conductor has another default."""
    with (
        broker_servers["etcd"].place() as place,
        backends.backend("b", {"board": str(place), "ttl": 600}) as board,
    ):
        job = board.post("x")
        with base.claims_expiring_after(15):
            board.claim(job, "me")
        assert 300 < job.expires_in() <= 600 and job.claim_seconds == 600
        board.consume(job, "me")
        assert job.expires_in() is base.UnknownExpire.KEY_NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "class_name"),
    [("redis", "RedisJob"), ("zookeeper", "ZookeeperJob"), ("etcd", "EtcdJob")],
)
def test_jobs_of_each_board_have_their_own_class(
    broker_servers: brokers.Brokers, kind: str, class_name: str
) -> None:
    module = importlib.import_module(f"wbengine.jobs.backends.impl_{kind}")
    with broker_servers[kind].place() as place, backends.backend("b", str(place)) as board:
        posted = board.post("x")
        looked_up = board.find(posted.uuid)  # type: ignore[attr-defined]
        for job in (posted, *board.iterjobs(), looked_up):
            assert type(job) is getattr(module, class_name)


@pytest.mark.parametrize("how", ["consume", "trash"])
def test_removed_job_is_complete(board: base.JobBoard, another: base.JobBoard, how: str) -> None:
    posted, other = board.post("x"), board.post("y")
    [job, _] = another.iterjobs()
    with pytest.raises(exceptions.NotFound, match=f"me cannot {how} .*not claimed"):
        getattr(another, how)(job, "me")
    another.claim(job, "me")
    for who, board_of_who in (("you", board), ("you", another)):
        with pytest.raises(exceptions.JobFailure, match=f"you cannot {how} .*was claimed by me"):
            getattr(board_of_who, how)(same(board_of_who, job), who)
    getattr(another, how)(job, "me")
    assert posted.state == job.state == states.COMPLETE and posted.wait(60)
    assert not other.wait(0.05)
    assert names(board) == ["y"] and board.job_count == 1
    assert board.find_owner(posted) is None and posted.last_modified is None
    for again in (board.claim, board.consume, board.abandon, board.trash):
        with pytest.raises(exceptions.NotFound, match="no longer on the job board"):
            again(posted, "me")


def test_only_owner_can_abandon_job(board: base.JobBoard) -> None:
    job = board.post("x")
    with pytest.raises(exceptions.NotFound, match="not claimed"):
        board.abandon(job, "me")
    board.claim(job, "me")
    with pytest.raises(exceptions.JobFailure, match=r"you cannot abandon .*was claimed by me"):
        board.abandon(job, "you")
    for wrong, error in ((b"me", TypeError), ("", ValueError)):
        with pytest.raises(error, match="name of a job owner"):
            board.abandon(job, wrong)  # type: ignore[arg-type]
    assert board.find_owner(job) == "me"


def test_board_notifies_listeners_of_changes(board: base.JobBoard) -> None:
    assert isinstance(board, base.NotifyingJobBoard)
    events_of_jobs: list[tuple[str, str]] = []
    board.notifier.register(
        "*", lambda event, details: events_of_jobs.append((event, details["job"].name))
    )
    for end in (board.consume, board.trash):
        job = board.post(end.__name__)
        board.claim(job, "me")
        board.abandon(job, "me")
        board.claim(job, "me")
        end(job, "me")
    for name in ("consume", "trash"):
        events = [event for event, of_job in events_of_jobs if of_job == name]
        assert events == [base.POSTED, base.CLAIMED, base.CLAIMED, base.REMOVAL]


def test_invalid_arguments_are_rejected_with_hint(board: base.JobBoard) -> None:
    job, much = board.post("x"), 10**400
    wrong: Any
    for wrong in (float("nan"), -1, "soon", much, True):
        with pytest.raises(ValueError, match="Option timeout must be"):
            job.wait(wrong)
        with pytest.raises(ValueError, match="Option timeout must be"):
            board.wait(wrong)
        with pytest.raises(ValueError, match="Option delay must be"):
            job.wait(1, delay=wrong)
        with pytest.raises(ValueError, match="Option expiry must be"):
            board.claim(job, "me", wrong)
    for wrong in (None, "x"):
        with pytest.raises(TypeError, match="job must be a job of the board, got "):
            board.claim(wrong, "me")
    with pytest.raises(TypeError, match="details must be a dict, got \\[1\\]"):
        board.post("y", details=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="book must be a LogBook, got 'b'"):
        board.post("y", book="b")  # type: ignore[arg-type]
    assert names(board) == ["x"] and job.state == states.UNCLAIMED


@dialects
def test_unusual_text_is_stored_exactly(board: base.JobBoard, another: base.JobBoard) -> None:
    odd = "a\ud800/\n.."
    job = board.post(odd, models.LogBook(odd), {odd: odd})
    [read] = another.iterjobs()
    assert read.details == {odd: odd} and read.uuid == job.uuid
    board.claim(job, odd)
    assert another.find_owner(read) is not None
    another.consume(read, odd)


# Locations of boards.


@dialects
def test_boards_in_two_namespaces_are_separate(conf: dict[str, Any], board: base.JobBoard) -> None:
    if conf["board"] == "memory":
        with pytest.raises(ValueError, match="unknown option 'namespace'"):
            backends.fetch("other", {**conf, "namespace": "other"})
        return
    job = board.post("x")
    option = "path" if kind_of(conf) in ("zookeeper", "etcd") else "namespace"
    place = "/elsewhere/boards" if option == "path" else "other"
    with backends.backend("other", {**conf, option: place}) as other:
        assert names(other) == [] and other.job_count == 0
        with pytest.raises(exceptions.NotFound):
            other.claim(job, "me")


def test_sql_board_uses_database_of_flows_by_default(tmp_path: Path) -> None:
    """Closing the board does not close the backend of the flows."""
    uri = f"sqlite:///{tmp_path}/flows.db"
    with flow_stores.backend(uri) as backend:
        book, _ = persistence.temporary_flow_detail(backend)
        with backends.backend("here", "sql", persistence=backend) as board:
            board.post("x", book)
        with backends.backend("there", uri, persistence=backend) as board:
            [job] = board.iterjobs()
            assert job.book is not None and job.book.uuid == book.uuid
    # An in-memory database is deleted when its backend is closed.
    with flow_stores.backend("sqlite://") as backend:
        book, _ = persistence.temporary_flow_detail(backend)
        with backends.backend("here", "sql", persistence=backend) as board:
            board.post("x", book)
        with contextlib.closing(backend.get_connection()) as connection:
            assert connection.get_logbook(book.uuid).uuid == book.uuid


@dialects
def test_names_of_maximum_length_are_stored(board: base.JobBoard, another: base.JobBoard) -> None:
    name, owner = "𝄞" * 255, "é" * 255
    job = board.post(name, models.LogBook(name))
    board.claim(job, owner)
    [read] = another.iterjobs()
    assert (read.name, read.book_name, another.find_owner(read)) == (name, name, owner)


def test_job_with_too_long_name_is_skipped_and_logged_once(
    board: _stored.BaseStoredJobBoard, another: base.JobBoard, caplog: pytest.LogCaptureFixture
) -> None:
    place = _places.Place()
    bad = board._put(_stored.NewJob(models.new_uuid(), "x" * 256, None, {}, place, False))
    board.post("good")
    for _ in range(2):
        assert names(another) == ["good"]
    assert caplog.text.count("must have at most 255 characters, got 256") == 1
    assert bad is not None
    removable = _stored.StoredJob(board, bad._replace(content={**bad.content, "name": "bad"}))
    board.claim(removable, "me")
    board.consume(removable, "me")


@pytest.mark.parametrize("details", ["{oops", "[" * 100_000], ids=len)
def test_damaged_job_does_not_block_other_jobs(tmp_path: Path, details: str) -> None:
    import sqlite3

    uri = f"sqlite:///{tmp_path}/flows.db"
    with backends.backend("b", uri) as board:
        board.post("bad", details={"x": 1})
        board.post("good", details={"x": 2})
        with contextlib.closing(sqlite3.connect(tmp_path / "flows.db")) as raw:
            raw.execute("UPDATE wbe_jobs SET details = ? WHERE name = 'bad'", [details])
            raw.commit()
        bad, good = board.iterjobs()
        assert good.details == {"x": 2}
        with pytest.raises(exceptions.JobFailure, match=r"Details of .* bad .* are damaged"):
            _ = bad.details
        board.claim(bad, "me")
        board.trash(bad, "me")
        assert names(board) == ["good"]


def test_missing_database_raises_job_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    board = backends.fetch("b", f"sqlite:///{tmp_path}/file/flows.db")
    with pytest.raises(
        exceptions.JobFailure, match=r"Reading the revision|unable to open|Upgrading"
    ):
        board.connect()
    assert not board.connected


def test_namespace_in_uri_selects_board(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/flows.db"
    with (
        backends.backend("one", f"{place}?namespace=orders&max_retries=3") as one,
        backends.backend("other", {"board": place, "namespace": "orders"}) as other,
        backends.backend("third", place) as third,
    ):
        one.post("job")
        assert (names(other), names(third)) == (["job"], [])


@pytest.mark.parametrize(
    ("conf", "error", "text"),
    [
        ("sqlite:////x.db?namespac=x", ValueError, "A database: unknown option 'namespac'"),
        ("postgres://x/y", exceptions.NotFound, "did you mean 'postgresql'"),
        ("redis+sentinel://h", exceptions.NotFound, "did you mean 'redis'"),
        ("unix:///tmp/s", exceptions.NotFound, "did you mean 'redis'"),
        ("dir+x:///tmp/a", exceptions.NotFound, "did you mean 'dir'"),
        ("redis://:12#34@h", ValueError, "in a password as %2F %3F %23"),
        ("redis://:hu/sh@h", ValueError, "in a password as %2F %3F %23"),
        ("sqll", exceptions.NotFound, "Unknown kind of job board 'sqll' .did you mean 'sql'"),
        ("sql", ValueError, "Store of job board 'b' must be a database"),
        ("memory://?path=x", ValueError, "A job board in memory: unknown option 'path'"),
        ({"connection": "sqlite://"}, ValueError, "must contain 'board'"),
        ({"board": "sql", "connection": "memory"}, ValueError, "must be a database"),
        ({"board": "sql", "namespace": ""}, ValueError, "namespace must be a non-empty string"),
        (7, TypeError, "a dict or a URI, got 7"),
        ("redis://h?namespace={x}", ValueError, "namespace must not contain braces, got '{x}'"),
        ("redis://h?sentinel=s&sentinel_fallbacks=h", ValueError, "the form HOST:PORT, got 'h'"),
        ("redis://h?socket_timeout=soon", ValueError, "socket_timeout must be a number"),
        ("zookeeper://h/a//b", ValueError, "path must be a path of ZooKeeper"),
        ("zookeeper://h?timeout=0", ValueError, "timeout must be a number of seconds"),
        ("etcd://h?ttl=-1", ValueError, "ttl must be a number"),
        ("etcd://h?protocl=x", ValueError, "etcd: unknown option 'protocl' .*'protoc"),
    ],
)
def test_invalid_configuration_is_rejected_with_hint(
    conf: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        backends.fetch("b", conf)


def test_priorities_are_ordered() -> None:
    priority = base.JobPriority
    assert priority.convert("very_low") is priority.convert(priority.VERY_LOW) is priority.VERY_LOW
    assert priority.reorder(("low", 1), (priority.HIGH, 2), ("low", 3)) == (2, 1, 3)
    assert priority.reorder(("low", 1)) == 1
    with pytest.raises(ValueError, match="At least one"):
        priority.reorder()


@contextlib.contextmanager
def crowded(conf: dict[str, Any], count: int) -> Iterator[None]:
    """Insert `count` jobs directly into the store of the board."""
    if kind_of(conf) == "redis":
        with redis.Redis.from_url(conf["board"]) as client:
            for some in range(0, count, 1000):
                part = range(some, some + 1000)
                scores = {f"job {number}": 2**51 - count + number for number in part}
                document = '1 {"format": 1, "name": "j", "priority": "NORMAL"}'
                documents = dict.fromkeys(scores, document)
                client.hset("wbe:{default}:jobs:jobs", mapping=documents)
                for key in ("all", "free"):
                    client.zadd(f"wbe:{{default}}:jobs:{key}", scores)
            yield
            client.flushdb()
        return
    asked = {key: value for key, value in conf.items() if key != "board"}
    with flow_stores.backend(asked) as backend:
        engine: sa.Engine = getattr(backend, "engine")  # noqa: B009  (of databases only)
        with engine.begin() as connection:
            post = "INSERT INTO wbe_jobs (uuid, board, name, priority, created, updated)"
            jobs = [{"uuid": f"job {number}"} for number in range(count)]
            connection.execute(sa.text(f"{post} VALUES (:uuid, 'default', 'j', 2, 0, 0)"), jobs)
        try:
            yield
        finally:
            with engine.begin() as connection:
                connection.execute(sa.text("DELETE FROM wbe_jobs"))


@pytest.mark.alone
def test_claim_time_does_not_grow_with_number_of_jobs(
    conf: dict[str, Any], board: base.JobBoard
) -> None:
    if kind_of(conf) in ("memory", "zookeeper", "etcd"):
        pytest.skip("the same as sqlite; a list of all names; too slow to post so many")

    def fastest() -> float:
        seconds = []
        for _ in range(9):
            begun = time.perf_counter()
            job = next(board.iterjobs(only_unclaimed=True))
            board.claim(job, "me")
            seconds.append(time.perf_counter() - begun)
            board.consume(job, "me")
        return min(seconds)

    for number in range(10):
        board.post(f"{number}")
    few = fastest()
    with crowded(conf, 30_000):
        assert fastest() < 4 * few


# Boards that store the job of a flow under the flow's uuid.


def test_job_of_a_flow_is_posted_once(
    conf: dict[str, Any], board: base.JobBoard, another: base.JobBoard
) -> None:
    assert isinstance(board, base.FlowBoard) and isinstance(another, base.FlowBoard)
    flow, book = models.new_uuid(), models.LogBook("a book")
    posted = board.repost(flow, "x", book)
    assert posted is not None and posted.uuid == flow
    assert posted.details == {"flow_uuid": flow} and posted.book_uuid == book.uuid
    assert another.repost(flow, "x", book) is None
    assert another.find(flow) == posted and another.find(models.new_uuid()) is None
    assert names(board) == ["x"] and not another.is_trashed(flow)
    board.claim(posted, "me")
    board.trash(posted, "me")
    assert another.is_trashed(flow) and another.repost(flow, "x", book) is None
    assert another.find(flow) is None
    again = another.repost(flow, "x", book, replaces_trashed=True)
    assert again is not None and not another.is_trashed(flow) and board.find(flow) == again
    assert another.repost(flow, "x", book, replaces_trashed=True) is None
    assert names(board) == ["x"]


@dialects
def test_repost_from_many_threads_posts_one_job(
    conf: dict[str, Any], board: base.JobBoard, another: base.JobBoard
) -> None:
    assert isinstance(board, base.FlowBoard) and isinstance(another, base.FlowBoard)
    flow, book = models.new_uuid(), models.LogBook("a book")
    boards = [board, another] * 4
    posted = call_in_threads(lambda each: each.repost(flow, "x", book), boards)
    assert len([job for job in posted if job is not None]) == 1
    assert names(board) == ["x"]


# Boards outside the store of the flows.


@pytest.fixture
def elsewhere(
    conf: dict[str, Any], board: base.JobBoard, another: base.JobBoard
) -> tuple[_stored.StoredJobBoard, _stored.StoredJobBoard]:
    """One board as seen by two programs."""
    if not isinstance(board, _stored.StoredJobBoard):
        pytest.skip("its jobs are in a database")
    assert isinstance(another, _stored.StoredJobBoard)
    return board, another


def forget(conf: dict[str, Any]) -> None:
    """Delete all data of the store."""
    if kind_of(conf) == "redis":
        with redis.Redis.from_url(conf["board"]) as client:
            client.flushdb()
    elif kind_of(conf) == "etcd":
        etcd_client(conf).delete_prefix(etcd_keys(conf))
    else:
        with zookeeper_client(conf) as client:
            client.delete("/", recursive=True)


def damage(conf: dict[str, Any], job: base.Job, garbage: bytes) -> None:
    """Replace a stored job by invalid data."""
    if kind_of(conf) == "redis":
        with redis.Redis.from_url(conf["board"]) as client:
            client.hset("wbe:{default}:jobs:jobs", job.uuid, garbage)
    elif kind_of(conf) == "etcd":
        client = etcd_client(conf)
        [key] = [
            metadata["key"]
            for value, metadata in client.get_prefix(etcd_keys(conf))
            if job.uuid.encode() in value and b"/jobs/2/" in metadata["key"]
        ]
        client.put(key, garbage)
    else:
        with zookeeper_client(conf) as client:
            [name] = [each for each in client.get_children("/") if job.uuid in each]
            client.set(name, garbage)


def etcd_keys(conf: dict[str, Any]) -> str:
    path = urllib.parse.urlsplit(conf["board"]).path
    return f"/wbengine/jobs/{urllib.parse.quote(path[1:], safe='')}/"


def etcd_client(conf: dict[str, Any]) -> Any:
    where = urllib.parse.urlsplit(conf["board"])
    return etcd3gw.client(host=where.hostname, port=where.port)


@contextlib.contextmanager
def zookeeper_client(conf: dict[str, Any]) -> Iterator[Any]:
    where = urllib.parse.urlsplit(conf["board"])
    client = kazoo.client.KazooClient(hosts=where.netloc + where.path)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_note_identifies_one_board_under_any_address(
    conf: dict[str, Any], elsewhere: tuple[_stored.StoredJobBoard, _stored.StoredJobBoard]
) -> None:
    """The note contains the id stored on the server, whatever address hosts use."""
    board, another = elsewhere
    another.address = "another-name:1"
    assert board.is_noted(another.note) and another.is_noted(board.note)
    option = "namespace" if kind_of(conf) == "redis" else "path"
    with backends.backend("other", {**conf, option: "/other"}) as other:
        assert isinstance(other, _stored.StoredJobBoard)
        assert not other.is_noted(board.note) and not board.is_noted(other.note)
        # As a server with the same address on another host.
        other.address = "another-name:1"
        assert not other.is_noted(another.note)


def test_note_is_recognized_after_store_lost_its_data(
    conf: dict[str, Any], elsewhere: tuple[_stored.StoredJobBoard, _stored.StoredJobBoard]
) -> None:
    if kind_of(conf) == "zookeeper":
        pytest.skip("there nothing is lost")
    board, another = elsewhere
    before, note = board.identify(), board.note
    assert before == another.identify()
    forget(conf)
    assert another.identify().id not in ("", before.id) and board.identify() == another.identify()
    board.address = another.address = None
    assert board.is_noted(note) and board.is_noted(another.note)  # earlier clients recognize both
    with backends.backend("late", conf) as late:
        assert isinstance(late, _stored.StoredJobBoard)
        assert late.is_noted(note)
        late.address = "elsewhere:1"
        assert not late.is_noted(note)


@pytest.mark.parametrize("garbage", [b"\xff garbage", b"1 " + b"[" * 100_000], ids=len)
def test_damaged_document_is_skipped_and_logged_once(
    garbage: bytes,
    conf: dict[str, Any],
    elsewhere: tuple[_stored.StoredJobBoard, _stored.StoredJobBoard],
    caplog: pytest.LogCaptureFixture,
) -> None:
    board, another = elsewhere
    bad, _ = board.post("bad"), board.post("good")
    damage(conf, bad, garbage)
    for _ in range(2):
        assert names(another) == names(another, only_unclaimed=True) == ["good"]
    assert len([each for each in caplog.records if "cannot read job" in each.message]) == 1
    with pytest.raises(exceptions.JobFailure, match=f"Cannot read job {bad.uuid}"):
        another.find(bad.uuid)
    board.claim(bad, "me")
    board.consume(bad, "me")


def test_boards_with_nested_paths_are_separate(
    conf: dict[str, Any], elsewhere: tuple[_stored.StoredJobBoard, _stored.StoredJobBoard]
) -> None:
    if kind_of(conf) == "redis":
        pytest.skip("it has no paths")
    board, _ = elsewhere
    with backends.backend("inner", conf["board"] + "/jobs") as inner:
        job = inner.post("x")
        assert names(board) == [] and names(inner) == ["x"]
        inner.claim(job, "me")
        inner.consume(job, "me")


class Proxy(http.server.BaseHTTPRequestHandler):
    """Server in front of etcd that returns invalid replies."""

    answer = b""
    length = 0

    def do_GET(self) -> None:
        version = b'{"etcdserver": "3.5.9", "etcdcluster": "3.5.0"}'
        self.send(version, len(version))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send(self.answer, self.length or len(self.answer))

    def send(self, body: bytes, length: int) -> None:
        self.send_response(200)
        self.send_header("content-length", str(length))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *words: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "length"), [(b"<html>log in</html>", 0), (b"[]", 0), (b"{", 1000)]
)
def test_invalid_reply_from_etcd_raises_job_failure(
    answer: bytes, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proxy, "answer", answer)
    monkeypatch.setattr(Proxy, "length", length)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        board = backends.fetch("b", f"etcd://127.0.0.1:{server.server_port}/p")
        with pytest.raises(exceptions.JobFailure, match=r"'b' in etcd path '/wbengine/jobs/p/'"):
            board.connect()
        assert not board.connected
        server.shutdown()
