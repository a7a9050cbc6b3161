"""Engines that run in other threads of a test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Self


class Running(threading.Thread):
    """A thread that runs an engine, from `start` or for the length of a `with` block.

    `error` is the exception that the run raised.
    """

    def __init__(self, engine: Any, **options: Any) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self.options = options
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.engine.run(**self.options)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        self.engine.compile()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join(60)
        assert not self.is_alive()

    def end(self) -> str:
        """Wait for the end of the run. Return the state of the flow, or raise its error."""
        self.__exit__()
        if self.error is not None:
            raise self.error
        state: str = self.engine.storage.get_flow_state()
        return state


class Gate:
    """Blocks a task: it sets the event `inside` and waits for the event `let`."""

    def __init__(self) -> None:
        self.inside, self.let = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.inside.set()
        assert self.let.wait(60)


@contextlib.contextmanager
def running(
    engine: Any, let: threading.Event | None = None, gate: Gate | None = None
) -> Iterator[None]:
    """Run an engine in another thread, and enter the block once a task is inside `gate`, if given.

    At the end of the block, set `let` or open the gate, wait for the run, and raise its error.
    """
    run = Running(engine)
    run.start()
    if gate is not None:
        let = gate.let
    try:
        if gate is not None:
            assert gate.inside.wait(30)
        yield
    finally:
        if let is not None:
            let.set()
        run.join(60)
    run.end()
