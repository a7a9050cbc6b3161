"""Taskiq: a stream or (variant `list`) a list of Redis, or RabbitMQ; results in Redis.

Taskiq's `gather` polls all results repeatedly; this driver waits for one result after the other.
"""

from __future__ import annotations

import asyncio
from typing import Any

import payloads
import place
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

PACKAGES = ["taskiq", "taskiq-redis", "taskiq-aio-pika"]


def _broker() -> Any:
    results: Any = RedisAsyncResultBackend(place.RESULTS)
    if place.MEDIUM == "redis":
        kind = ListQueueBroker if place.VARIANT == "list" else RedisStreamBroker
        return kind(place.URL).with_result_backend(results)
    from taskiq_aio_pika import AioPikaBroker

    return AioPikaBroker(place.URL).with_result_backend(results)


broker = _broker()


@broker.task(task_name="nothing")
async def nothing() -> None:
    return None


@broker.task(task_name="next")
async def next_(x: int) -> int:
    return x + 1


@broker.task(task_name="back")
async def back(x: str) -> str:
    return x


class Driver:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(broker.startup())
        self._workers = place.Workers(
            ["-m", "taskiq", "worker", "--workers", "1", "--log-level", "WARNING",
             "--max-async-tasks", str(place.SLOTS), "on_taskiq:broker"]
        )  # fmt: skip

    def wide(self, tasks: int) -> None:
        results = self._loop.run_until_complete(_all([nothing.kiq() for _ in range(tasks)]))
        place.check(len(results), tasks)

    def chain(self, tasks: int) -> None:
        async def walk() -> int:
            value = 0
            for _ in range(tasks):
                value = await _get(await next_.kiq(value))
            return value

        place.check(self._loop.run_until_complete(walk()), tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self.wide(width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        place.check(self._loop.run_until_complete(_all([back.kiq(text) for text in sent])), sent)

    def close(self) -> None:
        self._workers.close()
        self._loop.run_until_complete(broker.shutdown())


async def _get(sent: Any) -> Any:
    result = await sent.wait_result(check_interval=0.001, timeout=place.PATIENCE)
    result.raise_for_error()
    return result.return_value


async def _all(sending: list[Any]) -> list[Any]:
    return [await _get(sent) for sent in await asyncio.gather(*sending)]
