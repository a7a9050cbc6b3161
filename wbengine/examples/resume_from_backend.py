"""A flow is suspended half-way, and another engine goes on from what the backend kept.

A house is moved room by room.  After the second room somebody calls `suspend()`: what runs
finishes, nothing more starts.  The first engine is then forgotten; all the second one knows is the
backend and the uuid of the log book.  It makes the flow again with the noted factory, and does the
rest only.

Prints::

    packing kitchen
    packing attic
    SUSPENDED, with rooms done: attic, kitchen
    a new engine
    packing cellar
    SUCCESS, with rooms done: attic, cellar, kitchen
"""

from __future__ import annotations

from typing import Any

from wbengine import engines, task
from wbengine.engines.base import Engine
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models

ROOMS = ["kitchen", "attic", "cellar"]


class Pack(task.Task):
    def execute(self, room: str) -> int:
        print("packing", room)
        return len(room)


def moving(rooms: list[str]) -> linear_flow.Flow:
    """The factory: it must make the same flow each time, with the same names."""
    return linear_flow.Flow("moving").add(*(Pack(room, inject={"room": room}) for room in rooms))


def report(engine: Engine) -> None:
    states = engine.storage.get_atoms_states(ROOMS)
    done = sorted(name for name, (state, _) in states.items() if state == "SUCCESS")
    print(f"{engine.storage.get_flow_state()}, with rooms done: {', '.join(done)}")


def first_half(backend: Any, **options: Any) -> str:
    """Run until somebody interferes; returns the uuid of the log book."""
    book = models.LogBook("moves")
    # The factory is noted by name, so it must be found under that name later.
    engine = engines.load_from_factory(
        "wbengine.examples.resume_from_backend.moving", [ROOMS], book=book, backend=backend,
        **options,
    )  # fmt: skip

    def interfere(state: str, details: dict[str, Any]) -> None:
        if details["task_name"] == "attic":
            engine.suspend()

    engine.atom_notifier.register("SUCCESS", interfere)
    engine.run()
    report(engine)
    return book.uuid


def second_half(backend: Any, book_uuid: str, **options: Any) -> None:
    with backend.get_connection() as connection:
        (flow_detail,) = connection.get_logbook(book_uuid)
    engine = engines.load_from_detail(flow_detail, backend=backend, **options)
    engine.run()
    report(engine)


def main() -> None:
    with _kinds.chosen(__doc__) as options, backends.backend("memory") as backend:
        book_uuid = first_half(backend, **options)
        print("a new engine")
        second_half(backend, book_uuid, **options)


if __name__ == "__main__":
    main()
