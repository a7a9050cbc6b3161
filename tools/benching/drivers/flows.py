"""The cases as flows, for wbengine and TaskFlow, whose modules have the same names."""

from __future__ import annotations

import importlib
from typing import Any

import payloads
from place import check


class Flows:
    """Flows of one of the two packages."""

    def __init__(self, package: str, tasks: Any) -> None:
        """Load the package.

        :param tasks: the object with the classes `Nothing`, `Next` and `Back`.
        """
        patterns = [f"{package}.patterns.{name}_flow" for name in ("linear", "unordered")]
        self._line, self._heap = (importlib.import_module(name).Flow for name in patterns)
        self._engines = importlib.import_module(f"{package}.engines")
        self._tasks = tasks

    def wide(self, tasks: int, **options: Any) -> None:
        flow = self._heap("wide")
        flow.add(*(self._tasks.Nothing(name=f"n{n}", provides=f"r{n}") for n in range(tasks)))
        results = self._run(flow, {}, options)
        check(len(results), tasks)

    def linear(self, tasks: int, **options: Any) -> None:
        flow = self._line("linear")
        flow.add(*(self._tasks.Nothing(name=f"n{n}", provides=f"r{n}") for n in range(tasks)))
        results = self._run(flow, {}, options)
        check(len(results), tasks)

    def chain(self, tasks: int, **options: Any) -> None:
        flow = self._line("chain")
        task_class = self._tasks.Next
        flow.add(
            *(
                task_class(name=f"n{n}", rebind={"x": f"x{n}"}, provides=f"x{n + 1}")
                for n in range(tasks)
            )
        )
        results = self._run(flow, {"x0": 0}, options)
        check(results[f"x{tasks}"], tasks)

    def diamond(self, layers: int, width: int, **options: Any) -> None:
        flow = self._line("diamond")
        for layer in range(layers):
            names = [f"{layer}.{n}" for n in range(width)]
            layer_tasks = (
                self._tasks.Nothing(name=f"n{name}", provides=f"r{name}") for name in names
            )
            flow.add(self._heap(f"layer-{layer}").add(*layer_tasks))
        results = self._run(flow, {}, options)
        check(len(results), layers * width)

    def payload(self, tasks: int, size: int, **options: Any) -> None:
        flow = self._heap("payload")
        inputs = {f"x{n}": text for n, text in enumerate(payloads.texts(tasks, size))}
        flow.add(
            *(self._tasks.Back(name=f"n{n}", rebind={"x": f"x{n}"}, provides=f"r{n}")
              for n in range(tasks))
        )  # fmt: skip
        results = self._run(flow, inputs, options)
        check(all(results[f"r{n}"] == inputs[f"x{n}"] for n in range(tasks)), True)

    def _run(self, flow: Any, store: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        results: dict[str, Any] = self._engines.run(flow, store=store, **options)
        return results
