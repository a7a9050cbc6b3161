"""Dramatiq: groups and pipelines. Results are in Redis, also if messages use RabbitMQ."""

from __future__ import annotations

from typing import Any

import dramatiq
import payloads
import place
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

PACKAGES = ["dramatiq", "pika", "redis"]
MILLISECONDS = 1000 * place.PATIENCE


def _broker() -> Any:
    if place.MEDIUM == "redis":
        from dramatiq.brokers.redis import RedisBroker

        return RedisBroker(url=place.URL)
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    return RabbitmqBroker(url=place.URL)


broker = _broker()
broker.add_middleware(Results(backend=RedisBackend(url=place.RESULTS)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def nothing() -> None:
    return None


@dramatiq.actor(store_results=True)
def next_(x: int) -> int:
    return x + 1


@dramatiq.actor(store_results=True)
def back(x: str) -> str:
    return x


class Driver:
    def __init__(self) -> None:
        self._workers = place.Workers(
            ["-m", "dramatiq", "on_dramatiq", "--processes", "1", "--threads", str(place.SLOTS)]
        )

    def wide(self, tasks: int) -> None:
        place.check(len(_all(nothing.message() for _ in range(tasks))), tasks)

    def chain(self, tasks: int) -> None:
        value = 0
        for _ in range(tasks):
            value = next_.send(value).get_result(block=True, timeout=MILLISECONDS)
        place.check(value, tasks)

    def pipeline(self, tasks: int) -> None:
        line = [next_.message(0), *(next_.message() for _ in range(tasks - 1))]
        pipeline = dramatiq.pipeline(line).run()
        place.check(pipeline.get_result(block=True, timeout=MILLISECONDS), tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self.wide(width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        place.check(_all(back.message(text) for text in sent), sent)

    def close(self) -> None:
        self._workers.close()


def _all(messages: Any) -> list[Any]:
    return [*dramatiq.group(messages).run().get_results(block=True, timeout=MILLISECONDS)]
