"""Workers that are asked for requests."""

from __future__ import annotations

from tests.unit.requesting import Job
from wbengine.engines.worker_based.requests import effects as fx


class Again(Job):
    idempotent = True


AGAIN = f"{__name__}.Again"


def asked_of(effects: list[fx.Effect]) -> tuple[str, list[tuple[str, int]]]:
    (ask,) = [effect for effect in effects if isinstance(effect, fx.Ask)]
    body = ask.question.body
    return ask.question.routing_key, [(name, number) for name, number in body["asked"]]


def kinds(effects: list[fx.Effect]) -> list[type]:
    return [type(effect) for effect in effects]
