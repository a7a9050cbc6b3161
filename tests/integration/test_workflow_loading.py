"""Workflows are accepted wherever a flow or its factory is accepted."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import conducted
from wbengine import engines, exceptions, operations, task
from wbengine.engines import _flow_factories
from wbengine.persistence import backends as stores
from wbengine.steps import Steps

NAME = f"{__name__}:count_up"


@task.task
def add(value: int) -> int:
    return value + 1


@task.workflow
def count_up(steps: Steps, start: int) -> int:
    value = start
    while value < 5:
        steps.sleep(3600 if start else 0)
        value = steps.run(add, value)
    return value


@pytest.mark.parametrize(
    "run",
    [
        lambda inputs: engines.run(count_up, inputs),
        lambda inputs: asyncio.run(engines.arun(count_up, inputs)),
        lambda inputs: engines.run(count_up(), inputs),
        lambda inputs: engines.run(_flow_factories.flow_of(NAME), inputs),
    ],
)
def test_workflow_class_is_loaded_as_a_flow(run: Callable[[Any], Any]) -> None:
    assert run({"start": 0})["result"] == 5


@pytest.mark.parametrize("factory", [count_up, NAME])
def test_submitted_workflow_is_run_by_a_conductor(factory: Any, tmp_path: Path) -> None:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as store:
        handle = engines.submit(factory, backend=store, inputs={"start": 0})
        with conducted.conducting(store):
            assert handle.result(60)["result"] == 5


def test_stored_workflow_can_be_loaded_from_its_record(tmp_path: Path) -> None:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as store:
        detail = engines.load(count_up, {"start": 0}, backend=store).storage.flow_detail
        engine = engines.load_from_detail(detail, backend=store, flows=NAME)
        engine.run()
        assert engine.storage.fetch("result") == 5


def test_stored_workflow_of_a_function_has_no_factory(tmp_path: Path) -> None:
    @task.workflow
    def local(steps: Steps) -> None:
        steps.sleep(0)

    engine = engines.load(local, backend=f"sqlite:///{tmp_path}/flows.db")
    with pytest.raises(ValueError, match=r"does not record .* cannot be imported"):
        engines.load_from_detail(engine.storage.flow_detail)


def test_workflow_of_the_main_program_says_why_it_has_no_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def local(steps: Steps) -> None:
        steps.sleep(0)

    local.__module__, local.__qualname__ = "__main__", "local"
    main.local = task.workflow(local)  # type: ignore[attr-defined]
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as store:
        uuid = engines.load(main.local, backend=store).storage.flow_uuid
        with pytest.raises(ValueError, match=r"'__main__.local' is in the main program.*move"):
            operations.resume(store, uuid)


def test_factory_in_the_main_program_of_another_process_is_explained() -> None:
    for path in ("__main__.gone", "__main__:gone"):
        with pytest.raises(ImportError, match=f"'{path}' is in the main program of the process"):
            _flow_factories.remake(path, None, None)


def test_submitted_workflow_without_its_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(exceptions.MissingDependencies, match="start"):
        engines.submit(count_up, backend=f"sqlite:///{tmp_path}/flows.db")


def test_workflow_in_a_list_of_allowed_names_can_be_loaded() -> None:
    assert type(_flow_factories.remake(_flow_factories.FLOW_OF, [NAME], None, [NAME])) is count_up
    with pytest.raises(exceptions.NotTrusted):
        _flow_factories.remake(_flow_factories.FLOW_OF, [f"{__name__}:other"], None, [NAME])


def test_missing_name_of_a_flow_suggests_workflows() -> None:
    with pytest.raises(ValueError, match=f"this module has {NAME}$"):
        _flow_factories.flow_of(__name__)


def test_base_class_of_workflows_cannot_be_loaded() -> None:
    with pytest.raises(exceptions.NotAFlow, match="Only a flow or a task"):
        engines.load(task.Workflow)


def test_sleep_of_a_workflow_takes_no_time_with_a_fake_clock(
    wbe_engine: Any, wbe_clock: Any
) -> None:
    engine = wbe_engine(count_up, inputs={"start": 3}, engine="serial", clock=wbe_clock)
    began = wbe_clock.time()
    engine.run()
    assert engine.storage.fetch("result") == 5
    assert wbe_clock.time() - began == 7200
