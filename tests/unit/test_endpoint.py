"""Task classes of a worker, and their execution."""

from __future__ import annotations

import abc
import asyncio
import math
import queue
import threading
import types
from typing import Any

import pytest

from tests.support import fresh, sample_tasks
from wbengine import exceptions as exc
from wbengine import pools, task
from wbengine._concurrency import event_loop
from wbengine.engines.worker_based import endpoint
from wbengine.engines.worker_based import protocol as pr
from wbengine.types.failure import Failure


class Add(task.Task):
    def execute(self, x: int, y: int) -> int:
        self.update_progress(0.5)
        return x + y

    def revert(self, result: Any, flow_failures: Any, x: int, y: int) -> Any:
        return ("undone", result, sorted(flow_failures), x, y)


class AddLater(Add):
    async def execute(self, x: int, y: int) -> Any:
        await asyncio.sleep(0)
        self.update_progress(1.0)
        return x + y, threading.current_thread().name

    async def revert(self, result: Any, flow_failures: Any, x: int, y: int) -> Any:
        await asyncio.sleep(0)
        return ("undone", result, sorted(flow_failures), x, y)


class Needy(task.Task):
    def __init__(self, session: Any, name: str | None = None) -> None:
        super().__init__(name=name)

    def execute(self) -> None:
        return None


class Bursting(task.Task):
    def __init__(self, name: str | None = None) -> None:
        raise SystemExit(4)

    def execute(self) -> None:
        return None


class Unfinished(task.Task):
    @abc.abstractmethod
    def execute(self) -> None: ...


def unit(**change: Any) -> pr.WorkUnit:
    values: dict[str, Any] = {
        "task_cls": f"{__name__}.Add",
        "task_name": "sum",
        "action": "execute",
        "arguments": {"x": 1, "y": 2},
        "result": None,
        "failures": {},
    }
    return pr.WorkUnit(**{**values, **change})


def run(cls: Any, work: pr.WorkUnit) -> tuple[Any, list[Any]]:
    told: list[Any] = []
    loop = event_loop.EventLoop("endpoint-loop")
    outcome = endpoint.Endpoint(cls).run(work, loop, lambda *event: told.append(event))
    loop.stop()
    return outcome.value, told


# Endpoints ---------------------------------------------------------------------------------------


def test_endpoint_has_name_and_identity_of_its_task_class() -> None:
    made = endpoint.Endpoint(Add)
    assert (made.name, str(made), made.task_cls) == (f"{__name__}.Add", f"{__name__}.Add", Add)
    assert made == endpoint.Endpoint(Add)
    assert made != endpoint.Endpoint(Needy)
    assert made != Add
    assert len({made, endpoint.Endpoint(Add)}) == 1
    assert isinstance(made.generate("a name"), Add)
    assert made.generate("a name").name == "a name"


def test_task_class_requiring_extra_arguments_is_refused() -> None:
    with pytest.raises(exc.ExecutionFailure, match=r"Needy\(name=\.\.\.\).*session"):
        endpoint.Endpoint(Needy).generate("x")


def test_endpoints_of_maps_names_to_endpoints() -> None:
    assert endpoint.endpoints_of([Add, Needy, Add]) == {
        f"{__name__}.Add": endpoint.Endpoint(Add),
        f"{__name__}.Needy": endpoint.Endpoint(Needy),
    }


def test_two_classes_of_one_name_are_refused() -> None:
    twin = type("Add", (Add,), {"__module__": __name__, "__qualname__": "Add"})
    with pytest.raises(ValueError, match=r"Add.*two"):
        endpoint.endpoints_of([Add, twin])


# Running -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [sample_tasks.Add, AddLater])
def test_preloaded_process_imports_nothing_during_a_call(wanted: Any) -> None:
    """The time for imports would count toward the limits of the call."""
    offered = endpoint.Endpoint(wanted)
    work = unit(task_cls=offered.name)
    pool = pools.ProcessPool(1)
    pool.preload(endpoint.modules([offered]))
    values: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with pool:
        for call, given in (
            (fresh.imported, ()),
            (offered.begin, (work, None, None, math.inf)),
            (fresh.imported, ()),
        ):
            pool.submit(call, given, values.put, lambda *_: None)
    known, outcome, then = values.get(), values.get(), values.get()
    assert not isinstance(outcome.value, Failure)
    assert then == known


def test_async_task_runs_in_given_or_process_event_loop() -> None:
    work = unit(task_cls=f"{__name__}.AddLater")
    value, told = run(AddLater, work)
    assert value == (3, "endpoint-loop")
    assert told == [("update_progress", {"progress": 1.0})]
    value, _ = run(AddLater, unit(action="revert", result=3, failures={}))
    assert value == ("undone", 3, [], 1, 2)
    outcome = endpoint.Endpoint(AddLater).run(work, None, lambda *_: None)
    assert outcome.value == (3, "wbengine-loop")
    event_loop.stop_all()


@pytest.mark.parametrize(
    ("cls", "work", "kind"),
    [
        (Needy, unit(), exc.ExecutionFailure),
        (Bursting, unit(), SystemExit),
        (Add, unit(arguments={"x": 1}), TypeError),
        (Add, unit(arguments={"x": 1, "y": "z"}), TypeError),
    ],
    ids=["constructor", "system-exit", "missing-argument", "execute"],
)
def test_errors_of_tasks_are_returned_as_failures(cls: Any, work: pr.WorkUnit, kind: Any) -> None:
    value, _ = run(cls, work)
    assert value.check(kind)


# Finding -----------------------------------------------------------------------------------------


def module(**contents: Any) -> types.ModuleType:
    made = types.ModuleType("made_up")
    vars(made).update(contents)
    return made


@pytest.mark.parametrize(
    "item",
    [Add, f"{__name__}:Add", f"{__name__}.Add", module(Add=Add, x=1, Task=task.Task)],
    ids=["class", "colon-name", "dotted-name", "module"],
)
def test_find_tasks_accepts_class_name_and_module(item: Any) -> None:
    assert endpoint.find_tasks([item]) == [Add]


def test_module_provides_its_tasks_in_order_and_once() -> None:
    found = endpoint.find_tasks([__name__, Add])
    # Abstract classes and those of wbengine are excluded.
    assert found == [Add, AddLater, Needy, Bursting, Remembering]


@pytest.mark.parametrize(
    "item", [module(), module(Task=task.Task), "json"], ids=["empty", "base-class", "stdlib"]
)
def test_module_without_tasks_is_refused(item: Any) -> None:
    with pytest.raises(ValueError, match="contains no task classes"):
        endpoint.find_tasks([item])


@pytest.mark.parametrize(
    "item",
    [3, None, int, Add("x"), "json:dumps", Unfinished, task.Task],
    ids=["int", "none", "builtin", "instance", "function", "abstract", "base-class"],
)
def test_objects_that_are_not_task_classes_are_refused(item: Any) -> None:
    with pytest.raises(ValueError, match="must be task classes or modules"):
        endpoint.find_tasks([item])


@pytest.mark.parametrize("item", ["no_such_module", f"{__name__}:Ad", f"{__name__}.Ad"])
def test_name_that_cannot_be_imported_raises_import_error(item: str) -> None:
    with pytest.raises(ImportError):
        endpoint.find_tasks([item])


def test_misspelled_task_name_gets_a_suggestion() -> None:
    with pytest.raises(ImportError, match="did you mean 'Add'"):
        endpoint.find_tasks([f"{__name__}:Adds"])


@pytest.mark.parametrize("item", ["", ":", "a:", ":b", "a..b"])
def test_malformed_name_raises_value_error(item: str) -> None:
    with pytest.raises(ValueError):
        endpoint.find_tasks([item])


# Instances ---------------------------------------------------------------------------------------


class Remembering(task.Task):
    def execute(self) -> int:
        self.count = getattr(self, "count", 0) + 1
        return self.count


def test_each_request_gets_a_new_task_instance() -> None:
    made = endpoint.Endpoint(Remembering)
    work = unit(arguments={})
    assert [made.run(work, None, lambda *_: None).value for _ in range(3)] == [1, 1, 1]
    one, two = made.generate("one"), made.generate("two")
    assert (one.name, two.name) == ("one", "two")
    assert one.notifier is not two.notifier
