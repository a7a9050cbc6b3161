"""Arguments of steps: they bind to the parameters of a task as in a call of its function."""

import pytest

from wbengine import engines, task
from wbengine._tasks import commands


@task.task
def positional(a, b=2):
    return a, b


@task.task
def keyword_only(a, b=2, *, c):
    return a, b, c


@task.task
def keyword_only_default(a, *, b, c=3):
    return a, b, c


@task.task
def required_after_default(a=1, *, c):
    return a, c


@task.task
def more_arguments(a, b=2, *more, c):
    return a, b, c


@task.task
def only_keywords(*, a, b):
    return a, b


@task.task
def any_keyword(a, b=2, **others):
    return a, b, others


class Method(task.Task):
    def execute(self, a, b=2, *, c=4):
        return a, b, c

    fn = staticmethod(lambda a, b=2, *, c=4: (a, b, c))


TASKS = [
    positional, keyword_only, keyword_only_default, required_after_default, more_arguments,
    only_keywords, any_keyword, Method,
]  # fmt: skip
CALLS = [
    ((), {}),
    ((1,), {}),
    ((1, 5), {}),
    ((1, 5, 7), {}),
    ((1,), {"c": 7}),
    ((1, 5), {"c": 7}),
    ((1,), {"b": 5}),
    ((1,), {"a": 5}),
    ((1,), {"c": 7, "b": 5}),
    ((), {"a": 1, "b": 2}),
    ((), {"b": 1, "a": 2}),
    ((), {"a": 1, "c": 7}),
    ((), {"a": 1, "more": (7,), "c": 7}),
    ((), {"a": 1, "others": 7}),
]


@pytest.mark.parametrize("step", TASKS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_arguments_of_a_step_bind_as_in_python(step, call):
    args, kwargs = call
    try:
        expected = step.fn(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError, match=rf"{step.__name__}\(\)"):
            commands.task_command(step, args, kwargs)
    else:
        arguments = commands.task_command(step, args, kwargs).arguments
        assert step.fn(**arguments) == expected


def test_step_receives_no_further_positional_arguments():
    with pytest.raises(TypeError, match="too many positional arguments"):
        commands.task_command(more_arguments, (1, 2, 3), {"c": 4})


def test_items_of_a_map_are_positional_arguments():
    @task.workflow
    def workflow(steps):
        return steps.map(required_after_default, [5, 6], c=7)

    assert engines.run(workflow)["result"] == [(5, 7), (6, 7)]


@task.task(inject={"c": 8})
def injected(a, *, c):
    return a, c


@pytest.mark.parametrize(("kwargs", "expected"), [({}, (1, 8)), ({"c": 9}, (1, 9))])
def test_injected_value_applies_to_an_argument_that_is_not_passed(kwargs, expected):
    arguments = commands.task_command(injected, (1,), kwargs).arguments
    assert injected.fn(**arguments) == expected
