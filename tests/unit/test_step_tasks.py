"""A recorded step is only reverted with a task that the code of its workflow can name."""

import sys
import types

import pytest

from wbengine import engines, task
from wbengine._runtime.workflows import step_tasks

TASKS = """
from wbengine import task

@task.task
def charge(amount): ...

@charge.revert
def refund(amount): ...

class Payments:
    @task.task
    def pay(amount): ...
"""


@pytest.fixture(autouse=True)
def import_module(monkeypatch):
    """Import a module from its source; `step_payments` contains TASKS."""

    def module_of(name, source):
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(source, vars(module))
        return module

    module_of("step_payments", TASKS)
    return module_of


@pytest.mark.parametrize(
    "source",
    [
        "from step_payments import charge\ndef run(steps): ...",
        "import step_payments\ndef run(steps): steps.run(step_payments.charge)",
        "import step_payments\ndef run(steps): getattr(step_payments, 'charge')",
        "def run(steps):\n    import step_payments",
        "def run(steps):\n    from step_payments import charge",
        "def run(steps):\n    def inner():\n        from step_payments import charge",
        "import step_payments\nALL = {'a': [step_payments.charge]}\ndef run(steps): ALL['a']",
        (
            "import step_payments\ndef make(charge):\n    def run(steps): steps.run(charge)\n"
            "    return run\nrun = make(step_payments.charge)"
        ),
        (
            "import functools, step_payments\ndef help(steps): step_payments.charge\n"
            "part = functools.partial(help)\ndef run(steps): part(steps)"
        ),
        (
            "import step_payments\nclass Helper:\n    def book(self): step_payments.charge\n"
            "helper = Helper()\ndef run(steps): helper.book()"
        ),
    ],
)
def test_task_that_the_code_can_name_is_found(import_module, source):
    module = import_module("step_flows", source)
    assert type(step_tasks.find("step_payments:charge", module.run)).__name__ == "charge"


def test_task_of_a_function_in_another_module_is_found(import_module):
    import_module("step_helpers", "import step_payments\ndef book(steps): step_payments.charge")
    source = "import step_helpers\ndef run(steps): step_helpers.book(steps)"
    assert step_tasks.find("step_payments:charge", import_module("step_flows", source).run)


def test_task_inside_a_class_is_found_with_its_class(import_module):
    source = "from step_payments import Payments\ndef run(steps): ..."
    run = import_module("step_flows", source).run
    assert step_tasks.find("step_payments:Payments.pay", run)
    assert step_tasks.find("step_payments:charge", run) is None


@pytest.mark.parametrize(
    "source",
    [
        "def run(steps): ...",
        # Only another function uses it.
        "import step_payments\ndef other(steps): step_payments.charge\ndef run(steps): ...",
        "import sys\ndef run(steps): sys.modules",
        "from wbengine import engines, task\ndef run(steps): engines.run(task.Task)",
    ],
)
def test_task_of_an_unrelated_module_is_not_found(import_module, source):
    run = import_module("step_flows", source).run
    assert step_tasks.find("step_payments:charge", run) is None
    assert step_tasks.find("step_unknown:charge", run) is None


@pytest.mark.parametrize("name", ["Workflow", "Map", "WaitFor"])
def test_class_that_cannot_be_a_step_is_not_found(import_module, name):
    source = f"from wbengine.task import *\nfrom wbengine import task\ndef run(s): task.{name}"
    run = import_module("step_flows", source).run
    assert step_tasks.find(f"wbengine.task:{name}", run) is None


def test_workflow_cannot_call_a_task_that_its_code_cannot_name(import_module):
    source = "import sys\ndef run(steps): steps.run(sys.modules['step_payments'].charge, 1)"
    workflow = task.workflow(import_module("step_flows", source).run)
    with pytest.raises(TypeError, match="import it in module 'step_flows'"):
        engines.run(workflow)
