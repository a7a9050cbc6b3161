"""Defaults of the parameters of workflows are those of the code that created the flow."""

import contextlib

import pytest

from tests.support.continued_engines import continued, suspended
from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models

CALLS = []


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    uri = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/flows.db"}[request.param]
    with contextlib.closing(backends.fetch(uri)) as backend:
        yield backend


@task.task
def note(value):
    CALLS.append(value)


def workflow_of(default):
    """Return the class of a workflow whose code contains this default."""

    @task.workflow(name="noting")
    def noting(steps, value=default, *, other=None):
        steps.run(note, value)
        steps.run(note, other)
        return value

    return noting


def test_running_workflow_keeps_its_default(store):
    engine = suspended(workflow_of(1), store, lambda name: True)
    assert CALLS == [1]
    resumed = continued(engine, workflow_of(2), store)
    resumed.run()
    assert CALLS == [1, None] and resumed.storage.fetch_all() == {"result": 1}


def test_workflow_that_has_not_begun_keeps_its_default(store):
    engine = engines.load(workflow_of({"rate": (1, 2)}), backend=store)
    continued(engine, workflow_of(2), store).run()
    assert CALLS == [{"rate": (1, 2)}, None]


def test_each_workflow_of_a_flow_keeps_its_own_default(store):
    def flow_of(first, second):
        return linear_flow.Flow("both").add(
            workflow_of(first)("first", provides="a"),
            workflow_of(second)("second", provides="b", rebind={"other": "a"}),
        )

    engine = engines.load(flow_of(1, 2), backend=store)
    continued(engine, flow_of(3, 4), store).run()
    assert CALLS == [1, None, 2, 1]


@pytest.mark.parametrize("later", [False, True])
def test_input_replaces_the_default(store, later):
    inputs = {"value": 5}
    engine = engines.load(workflow_of(1), backend=store, inputs=None if later else inputs)
    continued(engine, workflow_of(2), store, inputs=inputs if later else None).run()
    assert CALLS == [5, None]


def test_injected_value_replaces_the_default(store):
    flow = workflow_of(1)(inject={"value": 5})
    engine = engines.load(flow, backend=store)
    continued(engine, workflow_of(2)(inject={"value": 6}), store).run()
    assert CALLS == [6, None]


def test_default_of_a_removed_parameter_is_not_passed(store):
    engine = engines.load(workflow_of(1), backend=store)

    @task.workflow(name="noting")
    def noting(steps):
        steps.run(note, "no parameter")

    continued(engine, noting, store).run()
    assert CALLS == ["no parameter"]


def test_default_that_cannot_be_stored_is_that_of_the_code(store):
    engine = engines.load(workflow_of(object()), backend=store)
    continued(engine, workflow_of(2), store).run()
    assert CALLS == [2, None]


def test_flow_without_defaults_has_no_record_of_inputs(store):
    engine = engines.load(linear_flow.Flow("empty").add(note(inject={"value": 1})), backend=store)
    assert models.INJECTOR not in {record.name for record in engine.storage.flow_detail}
