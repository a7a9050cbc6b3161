"""Ledgers in Redis: faults, expiry, and claims that are combined with deliveries."""

from __future__ import annotations

import contextlib
import json
import time
from concurrent import futures

import pytest

from tests.seams.transports import OwnConnection
from tests.support import brokers, tcp_proxy
from tests.support.redis_ends import SOON, Both, Taker, hurry, url_with_port
from tests.support.workers import until
from wbengine import exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.transports import _ledger, resolve
from wbengine.transports._broker import Frame
from wbengine.transports._redis import redis_scripts
from wbengine.transports._redis.redis_link import LOST

DAY = 24 * 3600
ID = "0b7f8a52-8f3e-5d6e-9a30-1d1f0f4e8a11"


@pytest.fixture
def opened():
    """Factory of ledgers, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(place, *options, **more):
            made = ledgers.open_ledger(place, *options, **more)
            return stack.enter_context(contextlib.closing(made))

        yield make


@pytest.fixture
def ledger(opened, redis_url):
    return opened(str(redis_url))


# -- remaining keys


def test_closed_ledger_without_rows_leaves_no_keys(redis_url):
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


def test_identity_of_unused_ledger_is_kept_for_a_month(client, ledger):
    """An engine that resumes a flow within this time finds the same ledger."""
    ledger.open(ID, 1)
    ledger.claim(ID, 1, "w")
    ledger.renew("w")
    times = [client.ttl(key) for key in client.scan_iter() if b":r:" not in key]
    assert min(times) > 0
    # the last sweep is recorded for an hour
    kept = [seconds for seconds in times if seconds > 3600]
    assert kept and min(kept) > 29 * 24 * 3600


def test_rows_expire_after_result_ttl_unless_claimed(redis_url, opened, client):
    ledger, long, forever = (
        opened(str(redis_url), result_ttl=days and days * DAY) for days in (7, 30, None)
    )
    for id, of in ("week", ledger), ("month", long), ("forever", forever):
        of.open(id, 1)

    def days(id):
        return client.ttl(f"wbe:{{wbengine}}:r:{id}") / DAY

    assert 6.9 < days("week") <= 7 and 29.9 < days("month") <= 30 and days("forever") < 0
    for id in "week", "month":
        assert ledger.claim(id, 1, "w").granted
    client.expire("wbe:{wbengine}:r:week", DAY)
    until(lambda: ledger.renew("w") or days("week") > 6)  # A heartbeat reads one row.
    assert 6.9 < days("week") <= 7 and 29.9 < days("month") <= 30
    client.expire("wbe:{wbengine}:r:month", DAY)
    ledger.reopen("month", 2)
    ledger.reopen("forever", 2)
    assert 29.9 < days("month") <= 30 and days("forever") < 0
    assert 29.9 < client.ttl("wbe:{wbengine}:rows") / DAY <= 30


@pytest.mark.parametrize("wants", ["engine", "worker"])
@pytest.mark.parametrize("fused", [False, True])
def test_result_with_zero_ttl_is_deleted_at_once(redis_url, opened, wants, fused):
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


def test_result_is_kept_for_result_ttl_of_engine(redis_url, opened, client):
    engine, worker = opened(str(redis_url), result_ttl=1000), opened(str(redis_url))
    engine.open(ID, 1)
    worker.claim(ID, 1, "w")
    assert worker.finish(ID, 1, "w", b"r")
    assert 900 < client.ttl(f"wbe:{{wbengine}}:r:{ID}") <= 1000


@pytest.mark.parametrize("days", [7, 30])
@pytest.mark.parametrize("fused", [False, True])
def test_result_is_kept_from_its_completion_although_request_waited(
    redis_url, opened, client, days, fused
):
    """Otherwise its engine would publish the request again if it were away for a few days."""
    engine = opened(f"{redis_url}?prefix=ex", result_ttl=days * DAY)
    engine.open("one", 1)
    client.expire("wbe:{ex}:r:one", DAY)
    if fused:
        with contextlib.closing(Both(redis_url, result_ttl=days * DAY)) as worker:
            worker.send("one")
            worker.take(1)
            worker.end(*worker.messages)
    else:
        assert engine.claim("one", 1, "w").granted
        assert engine.finish("one", 1, "w", b"r")
    assert days - 0.1 < client.ttl("wbe:{ex}:r:one") / DAY <= days


def test_rows_and_identity_of_ledger_survive_close(redis_url, opened):
    first = ledgers.open_ledger(str(redis_url))
    first.open(ID, 1)
    first.close()
    second = opened(str(redis_url))
    assert second.digest == first.digest
    assert second.claim(ID, 1, "w").granted


def test_each_prefix_is_a_separate_ledger(redis_url, opened):
    one, two = opened(f"{redis_url}?prefix=one"), opened(f"{redis_url}?prefix=two")
    assert one.digest != two.digest
    one.open(ID, 1)
    assert two.state(ID) is None


def test_killed_consumer_does_not_keep_ledger_but_open_ledger_does(redis_url, client):
    target = resolve(str(redis_url), exchange="ex")
    dead, last = ledgers.choose(None, target), ledgers.choose(None, target)
    users = "wbe:{ex}:users"
    client.hset(users, dead.user, int(client.hget(users, dead.user).split()[0]) - 31_000)
    last.close()
    assert redis_url.left() == []
    dead.close()
    one, two = (ledgers.open_ledger(str(redis_url)) for _ in range(2))
    users = "wbe:{wbengine}:users"
    client.hset(users, one.user, int(client.hget(users, one.user).split()[0]) - 31_000)
    two.close()
    assert "wbe:{wbengine}:server" in redis_url.left()
    one.close()


# -- lost data and outages


def test_wiped_server_keeps_identity_of_ledger_without_rows(redis_url, opened, client):
    engine, worker = opened(str(redis_url)), opened(str(redis_url))
    engine.open(ID, 1)
    before = engine.digest
    client.flushdb()
    assert worker.claim(ID, 1, "w").verdict == _ledger.MISSING
    engine.open("next", 1)
    assert worker.claim("next", 1, "w").granted
    assert opened(str(redis_url)).digest == before


@pytest.mark.parametrize("first", ["engine", "worker"])
def test_each_wipe_of_server_changes_identity_of_ledger(redis_url, opened, client, first):
    """Otherwise a missing row would prove to the next engine that its request never ran."""
    engine, worker = opened(str(redis_url)), opened(str(redis_url))
    identities = {engine.identity}
    for number in range(2):
        client.flushdb()
        if first == "worker":
            worker.renew("w")
        engine.open(f"{ID}{number}", 1)
        assert worker.claim(f"{ID}{number}", 1, "w").granted
        assert engine.identity == opened(str(redis_url)).identity
        identities.add(engine.identity)
    assert len(identities) == 3


def test_ledger_adopts_identity_that_another_created_on_wiped_server(redis_url, opened, client):
    engine = opened(str(redis_url))
    client.flushdb()
    newcomer = opened(str(redis_url))
    assert engine.digest != newcomer.digest
    engine.open(ID, 1)
    assert engine.digest == newcomer.digest


def test_connection_error_does_not_contain_password(redis_server, redis_url):
    redis_server.kill()
    with pytest.raises(exceptions.TransportFailure) as caught:
        ledgers.choose(None, resolve(str(redis_url)))
    assert redis_server.password not in str(caught.value)


def test_rows_survive_restart_of_server(redis_server, redis_url, ledger):
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
    assert ledger.state(f"{ID}1") == _ledger.Row(f"{ID}1", 1, "open")
    assert ledger.state(f"{ID}0") == _ledger.Row(f"{ID}0", 1, "claimed", "w")
    assert ledger.finish(f"{ID}0", 1, "w", b"r")
    assert len(ledger.ids()) == 20


def test_unresponsive_server_raises_ledger_failure(redis_url, redis_server, opened):
    with tcp_proxy.threaded(redis_server.port) as proxy:
        ledger = opened(url_with_port(redis_url, redis_server, proxy.port))
        ledger.open(ID, 1)
        proxy.stall()
        (link,) = ledger._pool._idle
        hurry(link, 0.5)
        with pytest.raises(exceptions.LedgerFailure, match="does not answer"):
            ledger.claim(ID, 1, "w")
        proxy.resume()
        assert ledger.claim(ID, 1, "w").holder == "w"
        ledger.close()


def test_silence_does_not_include_downtime_of_server(redis_url, redis_server, opened, client):
    with tcp_proxy.threaded(redis_server.port) as proxy:
        url = f"{redis_url}?prefix=p"
        ledger = opened(url_with_port(url, redis_server, proxy.port))
        ledger.renew("w")
        client.zincrby("wbe:{p}:beats", -9_000, "w")
        running = float(client.info("server")["uptime_in_seconds"])
        assert ledger.silence("w") >= min(9.0, running - 1)
        client.zincrby("wbe:{p}:beats", -9_000_000, "w")
        # before that, the server was down
        assert running - 2 <= ledger.silence("w") < running + 60
        before = time.monotonic()
        proxy.cut()
        assert ledger.silence("w") <= time.monotonic() - before
        ledger.close()


def test_socket_timeouts_are_limited_to_five_seconds(redis_url, opened):
    ledger = opened(f"{redis_url}?socket_timeout=60&socket_connect_timeout=60")
    settings = ledger._pool.place.settings
    assert settings["socket_timeout"] + settings["socket_connect_timeout"] <= 5


def test_server_without_memory_refuses_new_rows_but_finishes_claimed_ones(redis_server, opened):
    with brokers.redis() as server:
        ledger = opened(server.url())
        for id in ("a", "b", "c"):
            ledger.open(id, 1)
        assert ledger.claim("a", 1, "w").granted
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            with pytest.raises(exceptions.LedgerFailure, match="maxmemory"):
                ledger.open("d", 1)
            # Claimed requests can still finish.
            ledger.renew("w")
            assert ledger.finish("a", 1, "w", b"r" * 1000)
            assert ledger.claim("b", 1, "w").granted
            assert ledger.release("b", 1, "w")
            assert ledger.reopen("b", 2) is None
            assert ledger.revoke("c")
            ledger.drop("a")
            assert ledger.ids() == {"b"}


# -- lost replies


@pytest.fixture
def lossy(redis_url, redis_server, dropper, opened):
    """Ledger whose next reply to a step is lost after `lose(step)`."""
    ledger = opened(url_with_port(redis_url, redis_server, dropper.port))
    for step in redis_scripts.SCRIPTS.values():
        ledger._pool.call("SCRIPT", "LOAD", step.text)

    def lose(step):
        dropper.dropped.clear()
        dropper.drop_reply_to = step.digest.encode()

    ledger.lose = lose
    yield ledger
    assert dropper.dropped.is_set()


def test_claim_with_lost_reply_is_granted(lossy):
    lossy.open(ID, 1)
    lossy.lose(redis_scripts.SCRIPTS["claim"])
    assert lossy.claim(ID, 1, "w") == _ledger.Claim("GRANTED", 1, None, "w")
    assert lossy.claim(ID, 1, "w") == _ledger.Claim("HELD", 1, None, "w")


def test_repeated_calls_after_lost_replies_succeed(lossy):
    lossy.lose(redis_scripts.SCRIPTS["open_and_publish"])
    lossy.open(ID, 1)
    lossy.claim(ID, 1, "w")
    lossy.lose(redis_scripts.SCRIPTS["release"])
    assert lossy.release(ID, 1, "w") is True
    lossy.lose(redis_scripts.SCRIPTS["reopen"])
    assert lossy.reopen(ID, 2) is None
    lossy.claim(ID, 2, "w")
    lossy.lose(redis_scripts.SCRIPTS["finish_rows"])
    assert lossy.finish(ID, 2, "w", b"r") is True
    lossy.open("other", 1)
    lossy.lose(redis_scripts.SCRIPTS["revoke_rows"])
    assert lossy.revoke("other") is True
    assert lossy.ids() == {ID}


# -- delayed calls


@pytest.fixture
def late(redis_url, redis_server, opened):
    """A ledger with the proxy in front of its server."""
    with tcp_proxy.threaded(redis_server.port) as proxy:
        ledger = opened(url_with_port(redis_url, redis_server, proxy.port))
        for step in redis_scripts.SCRIPTS.values():
            ledger._pool.call("SCRIPT", "LOAD", step.text)
        ledger.proxy = proxy
        yield ledger


@contextlib.contextmanager
def delayed_call(ledger, name, after=0.1):
    """Delay the first call of a step until the end of the block; it times out after seconds."""
    proxy, step = ledger.proxy, redis_scripts.SCRIPTS[name]
    proxy.hold(step.digest)
    hurry(ledger._pool._idle[-1], after)
    yield
    assert proxy.held(step.digest)
    proxy.let_go(step.digest)
    until(lambda: not proxy.held(step.digest))  # the server has read the call


def test_delayed_open_does_not_open_revoked_row(late, opened, redis_url):
    other = opened(str(redis_url))
    with delayed_call(late, "open_and_publish"):
        with pytest.raises(exceptions.LedgerFailure):
            late.open(ID, 1)
        assert not late.revoke(ID)
        other.open("others", 1)
    assert late.ids() == {"others"}
    late.open(ID, 1)
    assert late.claim(ID, 1, "w").granted


def test_delayed_open_does_not_open_row_reopened_and_revoked(late):
    with delayed_call(late, "open_and_publish"):
        with pytest.raises(exceptions.LedgerFailure):
            late.open_many([(ID, 1), ("other", 1)])
        late.open_many([(ID, 1), ("other", 1)])
        assert late.revoke(ID)
    assert late.ids() == {"other"}


def test_delayed_first_open_has_no_effect_after_second_attempt(late):
    with delayed_call(late, "open_and_publish", after=60), futures.ThreadPoolExecutor() as threads:
        opening = threads.submit(late.open, ID, 1)
        until(lambda: late.proxy.held(redis_scripts.SCRIPTS["open_and_publish"].digest))
        late.proxy.half_close()
        opening.result(60)
        assert late.revoke(ID)
    assert late.ids() == set()


def test_open_of_ended_session_is_repeated(late):
    hurry(late._pool._idle[-1], 60)
    late.proxy.hold(redis_scripts.SCRIPTS["open_and_publish"].digest)
    with futures.ThreadPoolExecutor() as threads:
        opening = threads.submit(late.open, ID, 1)
        until(lambda: late.proxy.held(redis_scripts.SCRIPTS["open_and_publish"].digest))
        late._end_session(late._session)
        assert late.state(ID) is None
        late.proxy.let_go(redis_scripts.SCRIPTS["open_and_publish"].digest)
        opening.result(60)
    assert late.state(ID) == _ledger.Row(ID, 1, _ledger.ROW_OPEN)


def test_delayed_claim_is_not_granted_after_session_ended(late, opened, redis_url):
    other = opened(str(redis_url))
    other.open(ID, 1)
    with delayed_call(late, "claim"):
        with pytest.raises(exceptions.LedgerFailure):
            late.claim(ID, 1, "w")
        late.renew("w")  # starts a new session
    assert late.state(ID) == _ledger.Row(ID, 1, _ledger.ROW_OPEN)
    assert late.claim(ID, 1, "w").granted


def test_claim_with_lost_reply_is_released_and_other_claims_stay(late, opened, redis_url):
    other = opened(str(redis_url))
    other.open_many([(ID, 1), ("heard", 1)])
    assert late.claim("heard", 1, "w").granted
    hurry(late._pool._idle[-1], 0.1)
    late.proxy.lose("to-client")
    with pytest.raises(exceptions.LedgerFailure):
        late.claim(ID, 1, "w")
    until(lambda: other.state(ID).holder == "w")
    late.proxy.cut()
    late.renew("w")
    assert other.state(ID) == _ledger.Row(ID, 1, _ledger.ROW_OPEN)
    assert other.state("heard").holder == "w"


def test_delayed_release_has_no_effect_after_failed_attempt(late):
    """A worker that checks the row finds that it still owns it, and runs the request."""
    late.open(ID, 1)
    assert late.claim(ID, 1, "w").granted
    with delayed_call(late, "release"):
        with pytest.raises(exceptions.LedgerFailure):
            late.release(ID, 1, "w")
        assert late.state(ID) == _ledger.Row(ID, 1, _ledger.ROW_CLAIMED, "w")
    assert late.finish(ID, 1, "w", b"result")


def test_delayed_first_release_does_not_undo_later_claim(late):
    late.open(ID, 1)
    assert late.claim(ID, 1, "w").granted
    with delayed_call(late, "release", after=60), futures.ThreadPoolExecutor() as pool:
        releasing = pool.submit(late.release, ID, 1, "w")
        until(lambda: late.proxy.held(redis_scripts.SCRIPTS["release"].digest))
        late.proxy.half_close()
        assert releasing.result(60)
        assert late.claim(ID, 1, "w").granted
    assert late.finish(ID, 1, "w", b"result")


# -- warnings about data loss


def test_missing_append_only_file_is_logged_once(redis_url, opened, caplog):
    with brokers.redis(appendonly="no") as server:
        for _ in range(2):
            opened(server.url()).close()
        assert caplog.text.count("append-only") == 1
    opened(str(redis_url))
    assert caplog.text.count("append-only") == 1


# -- claims combined with deliveries


@pytest.fixture
def taker(redis_url):
    with contextlib.closing(Taker(redis_url)) as made:
        yield made


@pytest.mark.parametrize(
    "row",
    ["a x", "a -1", "a 1e309", "a nan", "a 0x1", f"a {'9' * 400}", f"{'x' * 121} 1", "a:b 1"],
)
def test_message_with_malformed_row_is_not_claimed(taker, row):
    """Such a message was delivered again and again, and blocked all others."""
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
    assert next(taker.connection.broker.publish_many([Frame("", "q", 0, data.encode())]))
    taker.send("a")
    assert taker.take(2) == [None, _ledger.Claim("GRANTED", 1, None, "w")]


def test_requests_are_claimed_in_same_step_as_delivered(taker):
    ledger, before = taker.ledger, time.monotonic()
    for id in ("open", "done", "held", "stale", "newer"):
        ledger.open(id, 2)
    ledger.claim("done", 2, "other")
    ledger.finish("done", 2, "other", b"result")
    ledger.claim("held", 2, "other")
    for id, epoch in (("open", 2), ("done", 2), ("held", 2), ("stale", 1), ("newer", 3)):
        taker.send(id, epoch)
    taker.send("missing")
    taker.send("open", 2)  # a second copy
    assert taker.take(7) == [
        _ledger.Claim("GRANTED", 2, None, "w"),
        _ledger.Claim("DONE", 2, b"result"),
        _ledger.Claim("HELD", 2, None, "other"),
        _ledger.Claim("STALE", 2),
        _ledger.Claim("MISSING", 2),
        _ledger.Claim("MISSING", 1),
        _ledger.Claim("HELD", 2, None, "w"),
    ]
    assert ledger.state("open") == _ledger.Row("open", 2, "claimed", "w")
    assert 0 <= ledger.silence("w") <= time.monotonic() - before + 0.01
    assert taker.messages[0].body == b"{}"
    assert ledger.finish("open", 2, "w", b"r")


def test_message_has_time_at_which_it_was_requested(redis_url, redis_server, taker):
    """The worker checks the row again if too much time has passed since then."""
    with tcp_proxy.threaded(redis_server.port) as proxy:
        slow = Taker(url_with_port(redis_url, redis_server, proxy.port), "slow")
        slow.take(0)
        before = time.monotonic()
        with pytest.raises(TimeoutError):
            slow.connection.drain_events(timeout=0.01)
        taker.ledger.open(ID, 1)
        taker.send(ID)
        while not slow.messages:
            slow.connection.drain_events(timeout=SOON)
            after = time.monotonic()
        assert slow.messages[0].claim.granted
        assert before < slow.messages[0].taken_at < after
        slow.close()


def test_message_of_another_or_no_ledger_is_not_claimed(taker):
    taker.ledger.open(ID, 1)
    taker.send(ID, digest="another")
    taker.send("no/label")
    taker.send(ID, "1")
    taker.channel.publish({}, correlation_id=ID)
    assert taker.take(4) == [None] * 4
    assert taker.ledger.state(ID).state == "open"


def test_connection_without_worker_name_does_not_claim(redis_url, taker):
    taker.ledger.open(ID, 1)
    taker.send(ID)
    target = resolve(str(redis_url), exchange="ex")
    with OwnConnection(target) as connection:
        message = connection.channel().get("q")
        assert message.claim is None
        message.requeue()
    assert taker.ledger.state(ID).state == "open"
    assert taker.take(1)[0].granted


@pytest.mark.parametrize(("holder", "waits"), [("", False), ("w", False), ("w", True)])
def test_each_new_connection_detects_restart_before_any_step(redis_url, client, holder, waits):
    """Otherwise a take could claim a row, or a new row would count as opened before the restart."""
    with contextlib.closing(Taker(redis_url, holder)) as taker:
        if not waits:
            taker.connection.release()
        client.hset("wbe:{ex}:server", "run", "earlier")
        if waits:
            taker.channel.subscribe("q", taker.messages.append)
            with pytest.raises(TimeoutError):
                taker.connection.drain_events(timeout=0.1)
        else:
            taker.target.open().release()
        assert client.hget("wbe:{ex}:server", "run") != b"earlier"


def test_requeued_request_can_be_claimed_by_another_worker(redis_url, taker):
    taker.ledger.open(ID, 1)
    taker.send(ID)
    assert taker.take(1)[0].granted
    taker.channel.stop("q")
    assert taker.ledger.release(ID, 1, "w")
    taker.messages[0].requeue()
    with contextlib.closing(Taker(redis_url, "w2")) as other:
        assert other.take(1) == [_ledger.Claim("GRANTED", 1, None, "w2")]
        assert other.messages[0].delivery_info["redelivered"] is True
        assert other.ledger.finish(ID, 1, "w2", b"r")


def test_delivered_request_stays_claimed_when_connection_ends(redis_url, taker):
    taker.ledger.open(ID, 1)
    taker.send(ID)
    assert taker.take(1)[0].granted
    taker.connection.release()
    with contextlib.closing(Taker(redis_url, "w2")) as other:
        assert other.take(1) == [_ledger.Claim("HELD", 1, None, "w")]
    assert taker.ledger.finish(ID, 1, "w", b"r")


@pytest.mark.parametrize("when", ["at once", "later"])
def test_claim_of_undelivered_request_is_released(redis_url, redis_server, dropper, taker, when):
    """This includes an outage of the server. Delivered requests stay claimed."""
    lossy = Taker(url_with_port(redis_url, redis_server, dropper.port), "lossy")
    # The address of the proxy differs, so a comparison of addresses finds another server.
    lossy.take(0)
    for id in ("heard", "unheard"):
        taker.ledger.open(id, 1)
    taker.send("heard")
    assert lossy.take(1)[0].granted
    taker.send("unheard")
    dropper.drop_reply_to = redis_scripts.SCRIPTS["take"].digest.encode()
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
    assert taker.ledger.state("unheard") == _ledger.Row("unheard", 1, "open")
    assert taker.ledger.state("heard").holder == "lossy"
    lossy.ledger.close()


def test_error_message_names_ledger():
    with pytest.raises(exceptions.LedgerFailure, match=r"^ledger redis://127\.0\.0\.1:1/0: "):
        ledgers.open_ledger("redis://127.0.0.1:1/0")
