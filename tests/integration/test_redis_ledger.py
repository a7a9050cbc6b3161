"""What a ledger in Redis promises beyond the contract of all ledgers: faults, and fused takes."""

from __future__ import annotations

import contextlib
import json
import time
from concurrent import futures

import pytest

from tests.seams.transports import OwnConnection
from tests.support import brokers, tcp_proxy
from tests.support.redis_ends import SOON, Both, Taker, hurry, through
from tests.support.workers import until
from wbengine import exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.ledger import base
from wbengine.engines.worker_based.ledger import ledger_scripts as steps
from wbengine.transports import _redis_scripts, resolve
from wbengine.transports._redis_link import LOST

DAY = 24 * 3600
ID = "0b7f8a52-8f3e-5d6e-9a30-1d1f0f4e8a11"


@pytest.fixture
def opened():
    """Open ledgers; they are closed."""
    with contextlib.ExitStack() as stack:

        def make(place, *options, **more):
            made = ledgers.open_ledger(place, *options, **more)
            return stack.enter_context(contextlib.closing(made))

        yield make


# -- what it leaves


def test_nothing_is_left(redis_url):
    engine, worker = (ledgers.open_ledger(str(redis_url)) for _ in range(2))
    for number in range(3):
        engine.open(f"{ID}{number}", 1)
        assert worker.claim(f"{ID}{number}", 1, "w").granted
        assert worker.finish(f"{ID}{number}", 1, "w", b"r")
    worker.close()
    assert engine.silence("w") is None
    for number in range(3):
        engine.drop(f"{ID}{number}")
    assert redis_url.left()
    engine.close()
    assert redis_url.left() == []


def test_ledger_that_nobody_uses_is_known_for_a_month(redis_url, redis_server, opened):
    """Whoever comes back to a flow by then finds that it is the same ledger."""
    ledger = opened(str(redis_url))
    ledger.open(ID, 1)
    ledger.claim(ID, 1, "w")
    with redis_server.client(redis_url.rpartition("/")[2]) as client:
        times = [client.ttl(key) for key in client.scan_iter() if b":r:" not in key]
    kept = [seconds for seconds in times if seconds > 3600]  # a sweep is noted for an hour
    assert kept and min(kept) > 29 * 24 * 3600


def test_rows_go_by_themselves_after_a_week(redis_url, redis_server, opened):
    """Or later, if the engine wants that; not while a worker that lives has them."""
    ledger, long, forever = (
        opened(str(redis_url), result_ttl=days and days * DAY) for days in (7, 30, None)
    )
    for id, of in ("week", ledger), ("month", long), ("forever", forever):
        of.open(id, 1)
    with redis_server.client(redis_url.rpartition("/")[2]) as client:

        def days(id):
            return client.ttl(f"wbe:{{wbengine}}:r:{id}") / DAY

        assert 6.9 < days("week") <= 7 and 29.9 < days("month") <= 30 and days("forever") < 0
        assert ledger.claim("week", 1, "w").granted
        client.expire("wbe:{wbengine}:r:week", DAY)
        ledger.renew("w")
        assert 6.9 < days("week") <= 7
        assert ledger.finish("week", 1, "w", b"r")
        assert 6.9 < days("week") <= 7
        client.expire("wbe:{wbengine}:r:month", DAY)
        ledger.reopen("month", 2)
        ledger.reopen("forever", 2)
        assert 6.9 < days("month") <= 7 and days("forever") < 0
        assert 29.9 < client.ttl("wbe:{wbengine}:rows") / DAY <= 30


@pytest.mark.parametrize("wants", ["engine", "worker"])
@pytest.mark.parametrize("fused", [False, True])
def test_results_that_are_not_to_be_kept_go_at_once(redis_url, opened, wants, fused):
    """Whether the engine says so, or the worker."""
    place = f"{redis_url}?prefix=ex"
    engine = opened(place, result_ttl=0 if wants == "engine" else 7 * DAY)
    if fused:
        worker = Both(redis_url, result_ttl=0 if wants == "worker" else 7 * DAY)
        engine.open("one", 1)
        engine.open("two", 1)
        worker.send("one")
        worker.take(1)
        worker.end(*worker.messages)
        assert worker.answers() == 1
        worker.close()
    else:
        worker = opened(place, result_ttl=0 if wants == "worker" else 7 * DAY)
        engine.open("one", 1)
        engine.open("two", 1)
        assert worker.claim("one", 1, "w").granted
        assert worker.finish("one", 1, "w", b"r")
    assert engine.state("one") is None
    assert engine.ids() == {"two"}


def test_results_are_kept_for_as_long_as_was_asked_for(redis_url, redis_server, opened):
    engine, worker = opened(str(redis_url), result_ttl=1000), opened(str(redis_url))
    engine.open(ID, 1)
    worker.claim(ID, 1, "w")
    assert worker.finish(ID, 1, "w", b"r")
    with redis_server.client(redis_url.rpartition("/")[2]) as client:
        assert 900 < client.ttl(f"wbe:{{wbengine}}:r:{ID}") <= 1000


def test_rows_stay_and_with_them_which_ledger_it_is(redis_url, opened):
    first = ledgers.open_ledger(str(redis_url))
    first.open(ID, 1)
    first.close()
    second = opened(str(redis_url))
    assert second.digest == first.digest
    assert second.claim(ID, 1, "w").granted


def test_prefixes_are_ledgers_of_their_own(redis_url, opened):
    one, two = opened(f"{redis_url}?prefix=one"), opened(f"{redis_url}?prefix=two")
    assert one.digest != two.digest
    one.open(ID, 1)
    assert two.state(ID) is None


def test_who_died_here_does_not_keep_it(redis_url, redis_server):
    """A consumer that was killed is not waited for; somebody who only has the ledger open is."""
    target = resolve(str(redis_url), exchange="ex")
    dead, last = ledgers.for_target(target), ledgers.for_target(target)
    users = "wbe:{ex}:users"
    with redis_server.client(redis_url.rpartition("/")[2]) as client:
        client.zadd(users, {dead.user: client.zscore(users, dead.user) - 31_000})
        last.close()
        assert redis_url.left() == []
        dead.close()
        one, two = (ledgers.open_ledger(str(redis_url)) for _ in range(2))
        users = "wbe:{wbengine}:users"
        client.zadd(users, {one.user: client.zscore(users, one.user) - 31_000})
        two.close()
        assert "wbe:{wbengine}:ledger" in redis_url.left()
        one.close()


# -- the server forgets, or is away


def test_a_wiped_server_is_the_same_ledger_without_rows(redis_url, redis_server, opened):
    engine, worker = opened(str(redis_url)), opened(str(redis_url))
    engine.open(ID, 1)
    before = engine.digest
    with redis_server.client(redis_url.rpartition("/")[2]) as client:
        client.flushdb()
    assert worker.claim(ID, 1, "w").verdict == base.MISSING
    engine.open("next", 1)
    assert worker.claim("next", 1, "w").granted
    assert opened(str(redis_url)).digest == before


def test_whoever_came_too_late_to_a_wiped_server_follows(redis_url, redis_server, opened):
    engine = opened(str(redis_url))
    with redis_server.client(redis_url.rpartition("/")[2]) as client:
        client.flushdb()
    newcomer = opened(str(redis_url))
    assert engine.digest != newcomer.digest
    engine.open(ID, 1)
    assert engine.digest == newcomer.digest


def test_passwords_are_not_told(redis_server, redis_url):
    redis_server.kill()
    with pytest.raises(exceptions.TransportFailure) as caught:
        ledgers.for_target(resolve(str(redis_url)))
    assert redis_server.password not in str(caught.value)


def test_a_server_that_comes_back_has_all_rows(redis_server, redis_url, opened):
    ledger = opened(str(redis_url))
    for number in range(20):
        ledger.open(f"{ID}{number}", 1)
    assert ledger.claim(f"{ID}0", 1, "w").granted
    redis_server.kill()
    calls = {
        "open": lambda: ledger.open(ID, 1),
        "claim": lambda: ledger.claim(f"{ID}1", 1, "w"),
        "renew": lambda: ledger.renew("w"),
        "finish": lambda: ledger.finish(f"{ID}0", 1, "w", b"r"),
        "reopen": lambda: ledger.reopen(f"{ID}0", 2),
        "state": lambda: ledger.state(f"{ID}0"),
        "drop": lambda: ledger.drop(f"{ID}19"),
    }
    for call in calls.values():
        with pytest.raises(exceptions.LedgerFailure, match=r"127\.0\.0\.1.*refused"):
            call()
    with pytest.raises(exceptions.LedgerFailure):
        ledgers.open_ledger(str(redis_url))
    redis_server.start()
    ledger.renew("w")
    assert ledger.state(f"{ID}1") == base.Row(f"{ID}1", 1, "open")
    assert ledger.state(f"{ID}0") == base.Row(f"{ID}0", 1, "claimed", "w")
    assert ledger.finish(f"{ID}0", 1, "w", b"r")
    assert len(ledger.ids()) == 20


def test_a_server_that_does_not_answer_is_given_up(redis_url, redis_server, opened):
    """After a while; see `test_patience_has_a_limit_whatever_is_asked_for`."""
    with tcp_proxy.threaded(redis_server.port) as proxy:
        ledger = opened(through(redis_url, redis_server, proxy.port))
        ledger.open(ID, 1)
        proxy.stall()
        (link,) = ledger._pool._spare
        hurry(link, 0.5)
        with pytest.raises(exceptions.LedgerFailure, match="does not answer"):
            ledger.claim(ID, 1, "w")
        proxy.resume()
        assert ledger.claim(ID, 1, "w").holder == "w"
        ledger.close()


def test_nobody_was_silent_while_the_server_was_away(redis_url, redis_server, opened):
    with tcp_proxy.threaded(redis_server.port) as proxy:
        url = f"{redis_url}?prefix=p"
        ledger = opened(through(url, redis_server, proxy.port))
        ledger.renew("w")
        with redis_server.client(redis_url.rpartition("/")[2]) as client:
            client.zincrby("wbe:{p}:beats", -9_000, "w")
            running = float(client.info("server")["uptime_in_seconds"])
            assert ledger.silence("w") >= min(9.0, running - 1)
            client.zincrby("wbe:{p}:beats", -9_000_000, "w")
            assert running - 2 <= ledger.silence("w") < running + 60  # it could not be heard before
            before = time.monotonic()
            proxy.cut()
            assert ledger.silence("w") <= time.monotonic() - before
        ledger.close()


def test_patience_has_a_limit_whatever_is_asked_for(redis_url, opened):
    ledger = opened(f"{redis_url}?socket_timeout=60&socket_connect_timeout=60")
    settings = ledger._pool.place.settings
    assert settings["socket_timeout"] + settings["socket_connect_timeout"] <= 5


def test_no_memory(redis_server, opened):
    with brokers.redis() as server:
        ledger = opened(server.url())
        for id in ("a", "b", "c"):
            ledger.open(id, 1)
        assert ledger.claim("a", 1, "w").granted
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            with pytest.raises(exceptions.LedgerFailure, match="maxmemory"):
                ledger.open("d", 1)
            # What is under way can end.
            ledger.renew("w")
            assert ledger.finish("a", 1, "w", b"r" * 1000)
            assert ledger.claim("b", 1, "w").granted
            assert ledger.release("b", 1, "w")
            assert ledger.reopen("b", 2) is None
            assert ledger.revoke("c")
            ledger.drop("a")
            assert ledger.ids() == {"b"}


# -- answers that are lost


@pytest.fixture
def lossy(redis_url, redis_server, eater, opened):
    """A ledger whose next answer to a step is lost: `lose(step)`."""
    ledger = opened(through(redis_url, redis_server, eater.port))
    for step in (steps.CLAIM, steps.FINISH, steps.RELEASE, steps.REVOKE, steps.REOPEN, steps.OPEN):
        ledger._pool.call("SCRIPT", "LOAD", step.text)

    def lose(step):
        eater.eaten.clear()
        eater.eat = step.digest.encode()

    ledger.lose = lose
    yield ledger
    assert eater.eaten.is_set()


def test_a_claim_whose_answer_was_lost_is_granted(lossy):
    lossy.open(ID, 1)
    lossy.lose(steps.CLAIM)
    assert lossy.claim(ID, 1, "w") == base.Claim("GRANTED", 1, None, "w")
    assert lossy.claim(ID, 1, "w") == base.Claim("HELD", 1, None, "w")


def test_what_was_done_is_not_denied(lossy):
    lossy.lose(steps.OPEN)
    lossy.open(ID, 1)
    lossy.claim(ID, 1, "w")
    lossy.lose(steps.RELEASE)
    assert lossy.release(ID, 1, "w") is True
    lossy.lose(steps.REOPEN)
    assert lossy.reopen(ID, 2) is None
    lossy.claim(ID, 2, "w")
    lossy.lose(steps.FINISH)
    assert lossy.finish(ID, 2, "w", b"r") is True
    lossy.open("other", 1)
    lossy.lose(steps.REVOKE)
    assert lossy.revoke("other") is True
    assert lossy.ids() == {ID}


# -- calls that come late


@pytest.fixture
def late(redis_url, redis_server, opened):
    """A ledger, and its proxy."""
    with tcp_proxy.threaded(redis_server.port) as proxy:
        ledger = opened(through(redis_url, redis_server, proxy.port))
        for step in (steps.OPEN, steps.CLAIM, steps.RELEASE):
            ledger._pool.call("SCRIPT", "LOAD", step.text)
        yield ledger, proxy


@contextlib.contextmanager
def comes_late(ledger, proxy, step, after=0.1):
    """What is called first here is given up after so many seconds, and comes in the end."""
    proxy.hold(step.digest)
    hurry(ledger._pool._spare[-1], after)
    yield
    assert proxy.held(step.digest)
    proxy.let_go(step.digest)
    until(lambda: not proxy.held(step.digest))  # the server has read all of it


@pytest.mark.parametrize("step", ["open", "offer"])
def test_what_was_revoked_is_not_opened_late(late, opened, redis_url, step):
    ledger, proxy = late
    other = opened(str(redis_url))
    with comes_late(ledger, proxy, steps.OPEN):
        with pytest.raises(exceptions.LedgerFailure):
            getattr(ledger, step)(ID, 1)
        assert not ledger.revoke(ID)
        other.open("others", 1)
    assert ledger.ids() == {"others"}
    ledger.open(ID, 1)
    assert ledger.claim(ID, 1, "w").granted


def test_a_row_that_was_opened_again_and_revoked_is_not_opened_late(late):
    ledger, proxy = late
    with comes_late(ledger, proxy, steps.OPEN):
        with pytest.raises(exceptions.LedgerFailure):
            ledger.open_many([(ID, 1), ("other", 1)])
        ledger.open_many([(ID, 1), ("other", 1)])
        assert ledger.revoke(ID)
    assert ledger.ids() == {"other"}


def test_what_is_opened_by_the_second_attempt_is_not_opened_late_by_the_first(late):
    ledger, proxy = late
    with comes_late(ledger, proxy, steps.OPEN, after=60), futures.ThreadPoolExecutor() as threads:
        opening = threads.submit(ledger.open, ID, 1)
        until(lambda: proxy.held(steps.OPEN.digest))
        proxy.half_close()
        opening.result(60)
        assert ledger.revoke(ID)
    assert ledger.ids() == set()


def test_who_opens_a_row_while_another_has_doubts_opens_it(late):
    """It was said in a session that is over, and is said again."""
    ledger, proxy = late
    hurry(ledger._pool._spare[-1], 60)
    proxy.hold(steps.OPEN.digest)
    with futures.ThreadPoolExecutor() as threads:
        opening = threads.submit(ledger.open, ID, 1)
        until(lambda: proxy.held(steps.OPEN.digest))
        ledger._doubt(ledger._session)
        assert ledger.state(ID) is None
        proxy.let_go(steps.OPEN.digest)
        opening.result(60)
    assert ledger.state(ID) == base.Row(ID, 1, base.ROW_OPEN)


def test_a_claim_that_was_taken_back_is_not_granted_late(late, opened, redis_url):
    ledger, proxy = late
    other = opened(str(redis_url))
    other.open(ID, 1)
    with comes_late(ledger, proxy, steps.CLAIM):
        with pytest.raises(exceptions.LedgerFailure):
            ledger.claim(ID, 1, "w")
        ledger.renew("w")  # another session
    assert ledger.state(ID) == base.Row(ID, 1, base.ROW_OPEN)
    assert ledger.claim(ID, 1, "w").granted


def test_a_claim_that_nobody_heard_of_is_taken_back(late, opened, redis_url):
    """Others, which were heard of, are not."""
    ledger, proxy = late
    other = opened(str(redis_url))
    other.open_many([(ID, 1), ("heard", 1)])
    assert ledger.claim("heard", 1, "w").granted
    hurry(ledger._pool._spare[-1], 0.1)
    proxy.lose("to-client")
    with pytest.raises(exceptions.LedgerFailure):
        ledger.claim(ID, 1, "w")
    until(lambda: other.state(ID).holder == "w")
    proxy.cut()
    ledger.renew("w")
    assert other.state(ID) == base.Row(ID, 1, base.ROW_OPEN)
    assert other.state("heard").holder == "w"


def test_what_could_not_be_given_back_is_not_given_back_late(late):
    """Whoever looks finds that he has it still, and runs it."""
    ledger, proxy = late
    ledger.open(ID, 1)
    assert ledger.claim(ID, 1, "w").granted
    with comes_late(ledger, proxy, steps.RELEASE):
        with pytest.raises(exceptions.LedgerFailure):
            ledger.release(ID, 1, "w")
        assert ledger.state(ID) == base.Row(ID, 1, base.ROW_CLAIMED, "w")
    assert ledger.finish(ID, 1, "w", b"result")


def test_what_is_given_back_by_the_second_attempt_is_not_taken_away_late_by_the_first(late):
    ledger, proxy = late
    ledger.open(ID, 1)
    assert ledger.claim(ID, 1, "w").granted
    with comes_late(ledger, proxy, steps.RELEASE, after=60), futures.ThreadPoolExecutor() as pool:
        releasing = pool.submit(ledger.release, ID, 1, "w")
        until(lambda: proxy.held(steps.RELEASE.digest))
        proxy.half_close()
        assert releasing.result(60)
        assert ledger.claim(ID, 1, "w").granted
    assert ledger.finish(ID, 1, "w", b"result")


# -- who is told that it forgets


def test_a_server_that_forgets_is_told_of_once(redis_url, opened, caplog):
    with brokers.redis(appendonly="no") as server:
        for _ in range(2):
            opened(server.url()).close()
        assert caplog.text.count("append-only") == 1
    opened(str(redis_url))
    assert caplog.text.count("append-only") == 1


# -- claims while taking


@pytest.fixture
def taker(redis_url):
    with contextlib.closing(Taker(redis_url)) as made:
        assert made.fused
        yield made


@pytest.mark.parametrize(
    "row",
    ["a x", "a -1", "a 1e309", "a nan", "a 0x1", f"a {'9' * 400}", f"{'x' * 121} 1", "a:b 1"],
)
def test_rows_that_nobody_can_have_written_are_not_claimed(taker, row):
    """A message that says such a thing came again and again, and nothing else did."""
    taker.ledger.open("a", 1)
    head = {
        "v": 1,
        "exchange": "ex",
        "routing_key": "k",
        "content-type": None,
        "content-encoding": None,
        "properties": {},
        "headers": {},
        "size": 0,
    }
    data = f"!{row} {taker.ledger.digest}\n{json.dumps(head)}\n"
    assert next(taker.connection.broker.publish_many([("", "q", 0, data.encode(), b"")]))
    taker.send("a")
    assert taker.take(2) == [None, base.Claim("GRANTED", 1, None, "w")]


def test_requests_are_claimed_while_they_are_taken(taker):
    ledger, before = taker.ledger, time.monotonic()
    for id in ("open", "done", "held", "stale", "newer"):
        ledger.open(id, 2)
    ledger.claim("done", 2, "other")
    ledger.finish("done", 2, "other", b"result")
    ledger.claim("held", 2, "other")
    for id, epoch in (("open", 2), ("done", 2), ("held", 2), ("stale", 1), ("newer", 3)):
        taker.send(id, epoch)
    taker.send("missing")
    taker.send("open", 2)  # again
    assert taker.take(7) == [
        base.Claim("GRANTED", 2, None, "w"),
        base.Claim("DONE", 2, b"result"),
        base.Claim("HELD", 2, None, "other"),
        base.Claim("STALE", 2),
        base.Claim("MISSING", 2),
        base.Claim("MISSING", 1),
        base.Claim("HELD", 2, None, "w"),
    ]
    assert ledger.state("open") == base.Row("open", 2, "claimed", "w")
    assert 0 <= ledger.silence("w") <= time.monotonic() - before + 0.01
    assert taker.messages[0].body == b"{}"
    assert ledger.finish("open", 2, "w", b"r")


def test_a_late_answer_is_known_by_when_it_was_asked_for(redis_url, redis_server, taker):
    """Whoever starts what is in it looks at the row again, if that was too long ago."""
    with tcp_proxy.threaded(redis_server.port) as proxy:
        slow = Taker(through(redis_url, redis_server, proxy.port), "slow")
        slow.take(0)
        with pytest.raises(TimeoutError):
            slow.connection.drain_events(timeout=0.01)
        taker.ledger.open(ID, 1)
        before = time.monotonic()
        taker.send(ID)
        while not slow.messages:
            slow.connection.drain_events(timeout=SOON)
            after = time.monotonic()
        assert slow.messages[0].claim.granted
        assert before < slow.messages[0].taken < after
        slow.close()


def test_what_names_no_ledger_or_another_one_is_not_claimed(taker):
    taker.ledger.open(ID, 1)
    taker.send(ID, digest="another")
    taker.send("no/label")
    taker.send(ID, "1")
    taker.channel.publish({}, correlation_id=ID)
    assert taker.take(4) == [None] * 4
    assert taker.ledger.state(ID).state == "open"


def test_who_does_not_say_for_whom_does_not_claim(redis_url, taker):
    taker.ledger.open(ID, 1)
    taker.send(ID)
    target = resolve(str(redis_url), exchange="ex")
    with OwnConnection(target) as connection:
        message = connection.channel().basic_get("q")
        assert message.claim is None
        message.requeue()
    assert taker.ledger.state(ID).state == "open"
    assert taker.take(1)[0].granted


def test_only_a_ledger_of_the_same_place_is_fused(redis_url, opened):
    other = opened(f"{redis_url}?prefix=other")
    same = resolve(str(redis_url), exchange="ex")
    assert not ledgers.fuse(other, same, "w")
    assert not ledgers.fuse(None, same, "w")
    assert not ledgers.fuse(opened("memory://x"), resolve("memory://x"), "w")
    assert "claims" not in same.options


def test_what_is_handed_back_can_be_claimed_by_others(redis_url, taker):
    taker.ledger.open(ID, 1)
    taker.send(ID)
    assert taker.take(1)[0].granted
    taker.channel.basic_cancel("q")
    assert taker.ledger.release(ID, 1, "w")
    taker.messages[0].requeue()
    with contextlib.closing(Taker(redis_url, "w2")) as other:
        assert other.take(1) == [base.Claim("GRANTED", 1, None, "w2")]
        assert other.messages[0].delivery_info["redelivered"] is True
        assert other.ledger.finish(ID, 1, "w2", b"r")


def test_what_may_run_stays_claimed_when_its_connection_ends(redis_url, taker):
    taker.ledger.open(ID, 1)
    taker.send(ID)
    assert taker.take(1)[0].granted
    taker.connection.release()
    with contextlib.closing(Taker(redis_url, "w2")) as other:
        assert other.take(1) == [base.Claim("HELD", 1, None, "w")]
    assert taker.ledger.finish(ID, 1, "w", b"r")


@pytest.mark.parametrize("when", ["at once", "later"])
def test_claims_that_nobody_heard_of_are_taken_back(redis_url, redis_server, eater, taker, when):
    """Also where the server is away for a while; what was heard of stays claimed."""
    lossy = Taker(through(redis_url, redis_server, eater.port), "lossy")
    # Told by an address of its own, it is another place for who compares addresses.
    lossy.take(0)
    for id in ("heard", "unheard"):
        taker.ledger.open(id, 1)
    taker.send("heard")
    assert lossy.take(1)[0].granted
    taker.send("unheard")
    eater.eat = _redis_scripts.TAKE.digest.encode()
    with pytest.raises(LOST):
        while True:
            with contextlib.suppress(TimeoutError):
                lossy.connection.drain_events(timeout=SOON)
    assert taker.ledger.state("unheard").holder == "lossy"
    if when == "later":
        redis_server.kill()
        lossy.connection.release()
        redis_server.start()
        assert taker.ledger.state("unheard").holder == "lossy"
        lossy.target.open().release()
    else:
        lossy.connection.release()
    assert taker.ledger.state("unheard") == base.Row("unheard", 1, "open")
    assert taker.ledger.state("heard").holder == "lossy"
    lossy.ledger.close()


def test_errors_say_that_it_is_the_ledger():
    with pytest.raises(exceptions.LedgerFailure, match=r"^ledger redis://127\.0\.0\.1:1/0: "):
        ledgers.open_ledger("redis://127.0.0.1:1/0")
