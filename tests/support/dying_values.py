"""A program that runs flows with shared large values until it is killed, and deletes some of them.

python -m tests.support.dying_values URI PLACE FLOWS
"""

from __future__ import annotations

import contextlib
import random
import sys

from wbengine import engines, operations, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base

SIZE = 150_000


def text_of(number: int) -> str:
    return f"{number} " * (SIZE // 2)


class Extend(task.Task):
    default_provides = "longer"

    def execute(self, text: str, number: int) -> str:
        return text + text_of(number % 7)


class Split(task.Task):
    default_provides = ("first", "second")

    def execute(self, longer: str) -> tuple[str, str]:
        return longer[: len(longer) // 2] + "!", longer


class Measure(task.Task):
    default_provides = "length"

    def execute(self, first: str, second: str) -> int:
        return len(first) + len(second)


def make() -> linear_flow.Flow:
    return linear_flow.Flow("values").add(Extend("extend"), Split("split"), Measure("measure"))


def stored(backend: base.Backend) -> dict[str, str | None]:
    """Return the states of the stored flows by uuid."""
    with contextlib.closing(backend.get_connection()) as connection:
        return {
            flow.uuid: flow.state
            for book in connection.get_logbooks(lazy=True)
            for flow in connection.get_flows_for_book(book.uuid, lazy=True)
        }


def resume(backend: base.Backend) -> None:
    for uuid, state in stored(backend).items():
        if state not in states.FLOW_ENDED:
            with contextlib.closing(backend.get_connection()) as connection:
                detail = connection.get_flow_details(uuid)
            engines.load_from_detail(detail, backend=backend, on_busy="wait").run()


def main(uri: str, place: str, flows: int) -> None:
    with backends.backend({"connection": uri, "payloads": place}) as backend:
        resume(backend)
        for _ in range(flows):
            number = random.randrange(40)
            inputs = {"text": text_of(number % 5), "number": number}
            engine = engines.load_from_factory(
                "tests.support.dying_values.make", inputs=inputs, backend=backend
            )
            print("begun", flush=True)
            engine.run()
            if random.random() < 0.4:
                ended = [u for u, state in stored(backend).items() if state == states.SUCCESS]
                operations.delete(backend, random.choice(ended))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
