"""Sender over Redis with connections that break at random."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from tests.seams.transports import OwnConnection
from tests.support import outgoing, tcp_proxy
from tests.support.redis_ends import url_with_port
from tests.support.workers import until
from wbengine import transports
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.sender import Sender
from wbengine.engines.worker_based._messages import envelope as env

WAIT = 30.0


@pytest.mark.parametrize("seed", range(3))
def test_sender_completes_all_work_while_connections_are_cut(redis_url, redis_server, seed):
    """Threads send messages, schedule calls and flush while all connections are cut repeatedly.
    Repeated messages may arrive twice.
    """
    layout = topology.Topology("exchange", "me", (), None)
    reader = OwnConnection(transports.resolve(str(redis_url), None, None))
    inbox = reader.channel()
    layout.declare_queues_on(reader.broker, ())
    over = threading.Event()
    done: list[Any] = []
    expected: list[Any] = []
    now_by: list[str] = []

    def work(who: int) -> None:
        chance = random.Random(seed * 100 + who)
        for number in range(200):
            what = chance.random()
            envelope = env.Envelope("TEST", {"n": [who, number]}, routing_key="me")
            if what < 0.8:
                chore = (who, number) if chance.random() < 0.3 else None

                def after(chore: Any = chore) -> None:
                    now_by.append(threading.current_thread().name)
                    if chore is not None:
                        sender.call_later(done.extend, chore)

                if chore is not None:
                    expected.append(chore)
                message = outgoing.message(envelope, after=after)
                sender.send(message, defer=what >= 0.6)
            else:
                expected.append((who, number))
                sender.call_later(done.extend, (who, number))
                sent_not.add((who, number))
            if chance.random() < 0.2:
                time.sleep(chance.random() * 0.01)
            if chance.random() < 0.02:
                sender.flush(0.05)

    def cut() -> None:
        """Cut all connections whenever some more messages were published."""
        chance = random.Random(seed)
        while not over.is_set():
            count = len(now_by) + chance.randint(1, 80)
            until(lambda: over.is_set() or len(now_by) >= count)  # noqa: B023
            proxy.cut()

    def published_here() -> bool:
        """Return True if this thread published a message itself."""
        envelope = env.Envelope("TEST", {"n": ["first", 0]}, routing_key="me")
        by: list[str] = []
        told = lambda: by.append(threading.current_thread().name)  # noqa: E731
        sender.send(outgoing.message(envelope, after=told))
        now_by.extend(by)
        return by == [threading.current_thread().name]

    sent_not: set[Any] = set()
    with tcp_proxy.threaded(redis_server.port) as proxy:
        target = transports.resolve(url_with_port(redis_url, redis_server, proxy.port), None, None)
        sender = Sender(target, layout, "test")
        sender.start()
        until(published_here)
        threads = [threading.Thread(target=work, args=(who,)) for who in range(3)]
        threads.append(threading.Thread(target=cut))
        for thread in threads:
            thread.start()
        for thread in threads[:3]:
            thread.join()
        over.set()
        threads[3].join()
        until(lambda: not sender.queue_length and len(done) == len(expected), WAIT)
        assert sender.flush(WAIT)
        sender.stop()
    arrived = []
    while (message := inbox.get("me", no_ack=True)) is not None:
        arrived.append(tuple(env.parse(message.body)["n"]))
    reader.release()
    assert len(done) == len(expected)
    for who in range(3):
        first = list(dict.fromkeys(number for of, number in arrived if of == who))
        assert first == [n for n in range(200) if (who, n) not in sent_not]
    assert {name.startswith("wbengine-sender") for name in now_by} == {True, False}
