"""Clients of the Redis transport for tests: one sends and receives, others claim requests with
rows.
"""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from tests.seams import transports
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.transports import resolve
from wbengine.transports._broker import Finish
from wbengine.transports._redis import redis_ledger, redis_link

#: Timeout in seconds, far shorter than the poll interval of a client with the fixture `patient`:
#: a : message in time was not found by polling.
SOON = 30.0


def url_with_port(url, server, port):
    return str(url).replace(f":{server.port}/", f":{port}/")


class End:
    """A connection with a channel; `got` contains the received bodies."""

    def __init__(self, url, prefix="ex", **options):
        target = resolve(str(url), None, options, exchange=prefix)
        self.connection = transports.OwnConnection(target)
        self.channel = self.connection.channel()
        transports.declare(self.channel)
        self.got = []
        self.messages = []

    @property
    def store(self):
        return self.connection.broker

    def queue(self, name, *keys, exclusive=False):
        self.channel.queue_declare(name, exclusive)
        transports.declare(self.channel, name, *keys)
        return self

    def send(self, body, key="k", **options):
        return self.channel.publish(body, routing_key=key, **options)

    def consume(self, *queues, prefetch=0, ack=True):
        def receive(message):
            self.got.append(transports.body(message))
            self.messages.append(message)
            if ack:
                message.ack()

        self.channel.limit(prefetch)
        for name in queues:
            self.channel.subscribe(name, receive)
        return self

    def drain(self, count, timeout=SOON):
        self.drain_until(lambda: len(self.got) >= count, timeout)
        return self.got

    def drain_until(self, condition, timeout=SOON):
        """Receive until the condition is true. A single wait lasts until the deadline."""
        end = time.monotonic() + timeout
        while not condition():
            self.connection.drain_events(timeout=max(0.0, end - time.monotonic()))

    def assert_no_message(self, timeout=0.05):
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=timeout)

    @contextlib.contextmanager
    def drained(self):
        """Receive in another thread during the block."""
        stop = threading.Event()

        def run():
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    self.connection.drain_events(timeout=5)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            self.connection.wake()
            thread.join()

    def hurry(self, seconds):
        """Shorten the timeout of the connection, also for calls that already wait."""
        hurry(self.store._link, seconds)
        self.store._waiting._deadline = time.monotonic() + seconds

    def close(self):
        self.connection.release()


def hurry(link, seconds):
    """Shorten the timeout of an existing connection."""
    redis_link._set_system_timeout(link._connection._sock, seconds)


class Taker:
    def __init__(self, url, holder="w", exchange="ex", **ledger):
        self.url = url
        self.target = resolve(str(url), None, {"dead_after": 600}, exchange=exchange)
        self.ledger = ledgers.choose(None, self.target, **ledger)
        assert isinstance(self.ledger, redis_ledger.RedisLedger)
        self.target.rows.ledger, self.target.rows.holder = self.ledger, holder
        self.connection = transports.OwnConnection(self.target)
        self.channel = self.connection.channel()
        transports.declare(self.channel, "q", "k")
        self.messages = []

    def send(self, id, epoch=1, digest=None, body=None, **options):
        headers = {"wbe-ledger": digest or self.ledger.digest, "wbe-epoch": epoch}
        self.channel.publish(body or {}, correlation_id=id, headers=headers, **options)

    def take(self, count, prefetch=10):
        self.channel.limit(prefetch)
        self.channel.subscribe("q", self.messages.append)
        while len(self.messages) < count:
            self.connection.drain_events(timeout=SOON)
        return [message.claim for message in self.messages]

    def close(self):
        self.connection.release()
        self.ledger.close()


class Both(Taker):
    """Publishes, claims and completes requests."""

    def __init__(self, url, **options):
        super().__init__(url, **options)
        transports.declare(self.channel, "answers", "answer")

    @property
    def store(self):
        return self.connection.broker

    def message(self, key, body=None, **headers):
        return self.channel.frame(body, "ex", key, headers, body)

    def post(self, *ids, key="k", epoch=1):
        headers = {"wbe-ledger": self.ledger.digest, "wbe-epoch": epoch}
        self.ledger.open_many([(id, epoch) for id in ids])
        return list(self.store.publish_many([self.message(key, id, **headers) for id in ids]))

    def finished(self, messages, result=b"r", key="answer"):
        """Return the batch for `finish`."""
        frame = self.channel.frame(result, "ex", key)
        return [Finish(m.properties["correlation_id"], m.claim.epoch, m, frame) for m in messages]

    def kept(self, id):
        """Return the body of the result in a row."""
        return self.ledger.state(id).result.partition(b"\n")[2]

    def end(self, *messages, order=None, **told):
        return self.store.finish(self.finished(messages, **told), order)

    def take_answers(self, count=1, timeout=SOON):
        self.channel.subscribe("answers", self.messages.append)
        until = len(self.messages) + count
        while len(self.messages) < until:
            self.connection.drain_events(timeout=timeout)

    def answers(self):
        return self.store.size("answers")

    def left(self, client):
        """Return the keys of unacknowledged messages and the number of messages."""
        held = [key for key in client.keys("*}:h:*") if any(client.hkeys(key))]
        return held, client.zcard(f"{self.store.place.prefix}q:q")
