"""Tasks: names, events, wrapped callables, function tasks."""

from __future__ import annotations

import functools
import logging
import operator
import pickle
import threading
import types

import pytest

from tests.support.threads import call_in_threads
from wbengine import retry, task
from wbengine._calls.invocation import EXECUTE, REVERT, Invocation, invoke
from wbengine._introspection import object_names
from wbengine.engines.worker_based import endpoint


class Nothing(task.Task):
    def execute(self): ...


class Telling(task.Task):
    TASK_EVENTS = task.Task.TASK_EVENTS + ("halfway",)  # noqa: RUF005 - as old code has it

    def execute(self):
        self.update_progress(0.5)
        self.notifier.notify("halfway", {"at": 1})


def values(made: task.Task, **stored):
    """Execute as an engine does: arguments by name, injections first."""
    stored.update(made.inject or {})
    return made.execute(**{arg: stored[name] for arg, name in made.rebind.items()})


# Tasks.


def attach(made: task.Task, sink) -> None:
    made.attach(Invocation(made, EXECUTE, "uuid", events=sink))


def test_default_task_name_is_the_class_path():
    assert Nothing().name == f"{__name__}.Nothing"
    assert Nothing("x").name == Nothing(name="x").name == "x"
    assert Nothing.idempotent is None and Nothing.local is False


def test_constructor_passes_all_arguments():
    class Full(task.Task):
        def execute(self, a, b, ignored=1): ...

        def revert(self, a, b, ignored=1, **_): ...

    made = Full("n", "p", ["b"], True, {"a": "s"}, {"b": 1}, ["ignored"], {"a": "t"}, [])
    assert made.rebind == {"a": "s", "b": "b"} and made.provides == {"p"}
    assert made.revert_rebind == {"a": "t", "b": "b"} and made.requires == {"s", "t"}


def test_notifier_is_created_on_first_use():
    made = Telling()
    assert made._listeners is None
    made.update_progress(0.3)
    assert made._listeners is None and "_listeners" not in vars(made)
    assert made.notifier is made.notifier
    assert made._listeners is made.notifier is made._notifier


def test_concurrent_threads_receive_the_same_notifier():
    for _ in range(50):
        made, barrier = Nothing(), threading.Barrier(2)
        found = []

        def look(_, made=made, barrier=barrier, found=found):
            barrier.wait()
            found.append(made.notifier)

        call_in_threads(look, range(2))
        assert found[0] is found[1]


def test_listeners_receive_progress_and_custom_events():
    made, heard = Telling(), []
    made.notifier.register("*", lambda event, details: heard.append((event, details)))
    made.execute()
    assert heard == [("update_progress", {"progress": 0.5}), ("halfway", {"at": 1})]
    with pytest.raises(ValueError, match="known events: halfway, update_progress"):
        made.notifier.register("other", print)


@pytest.mark.parametrize(
    ("told", "kept"), [(0, 0), (1.0, 1.0), (-0.1, 0.0), (7, 1.0), (float("nan"), 0.0)]
)
def test_progress_is_clamped_with_a_warning(told, kept, caplog):
    made, heard = Nothing("n"), []
    attach(made, lambda event, details: heard.append(details["progress"]))
    with caplog.at_level(logging.WARNING):
        made.update_progress(told)
    assert heard == [kept]
    assert ("must be from 0.0 to 1.0" in caplog.text) == (told != kept)


@pytest.mark.parametrize("listening", [False, True])
def test_attached_sink_receives_every_event_after_listeners(listening):
    made, order = Telling(), []
    if listening:
        made.notifier.register("*", lambda event, details: order.append(("listener", event)))
    attach(made, lambda event, details: order.append(("sink", event)))
    made.update_progress(0.5)
    made.notifier.notify("halfway", {})
    made.notifier.notify("unknown", {})
    made.detach()
    made.detach()
    made.update_progress(0.6)
    # Listeners for "*" also receive events that the class does not list, wherever the task runs.
    expected = [("sink", "update_progress"), ("sink", "halfway"), ("sink", "unknown")]
    if listening:
        both = [(who, event) for _, event in expected for who in ("listener", "sink")]
        expected = [*both, ("listener", "update_progress")]
    assert order == expected


def test_a_sink_that_fails_does_not_fail_the_task(caplog):
    made = Nothing()

    def broken(event, details):
        raise RuntimeError("sink broke")

    attach(made, broken)
    made.update_progress(0.5)
    assert made.notifier.notify("update_progress", {}) is None
    assert len(caplog.records) == 2 and "sink broke" in caplog.text


def test_copy_retains_listeners_unless_disabled():
    made, heard = Nothing("n", inject={"a": 1}), []

    def listen(event, details):
        heard.append(details["progress"])

    made.notifier.register("update_progress", listen)
    attach(made, lambda event, details: heard.append("the original's sink"))
    kept, bare = made.copy(), made.copy(retain_listeners=False)
    assert (kept.name, kept.inject) == (bare.name, bare.inject) == ("n", {"a": 1})
    assert kept._latest is None and bare._listeners is None
    kept.update_progress(0.1)
    bare.update_progress(0.2)
    kept.notifier.deregister("update_progress", listen)
    assert heard == [0.1] and len(made.notifier) == 1


def test_pickled_task_has_no_listeners():
    made = Nothing("n")
    made.notifier.register("*", lambda event, details: None)
    attach(made, lambda event, details: None)
    again = pickle.loads(pickle.dumps(made))
    assert again.name == "n" and again._listeners is None and again._latest is None
    assert len(made.notifier) == 1


# Invocation.


def test_events_are_passed_to_the_sink_of_the_invocation():
    heard = []
    invoke(Invocation(Telling(), EXECUTE, "uuid", events=lambda *event: heard.append(event)))
    assert heard == [("update_progress", {"progress": 0.5}), ("halfway", {"at": 1})]


# Wrapped callables.


def add(a, b=2):
    return a + b


def undo_add(a, result, flow_failures): ...


def test_functor_task_uses_name_and_arguments_of_its_function():
    made = task.FunctorTask(add, provides="sum")
    assert made.name == f"{__name__}.add"
    assert made.requires == {"a"} and made.optional == {"b"} and made.provides == {"sum"}
    assert values(made, a=1, b=5) == 6
    assert made.revert(result=1, flow_failures={}) is None
    # It does nothing, so the engine need not collect arguments.
    assert made.revert_accepts == set()


def test_functor_revert_does_not_require_result_or_failures():
    made = task.FunctorTask(add, revert=undo_add)
    assert made.requires == {"a"} and made.revert_requires == {"a"}
    assert made.revert_accepts == {"result", "flow_failures"}
    only = task.FunctorTask(add, revert=lambda result: ("undid", result))
    assert only.revert_requires == set() and only.revert_accepts == {"result"}
    assert invoke(Invocation(only, REVERT, "uuid", result=3)).value == ("undid", 3)


CALLABLES = {
    "lambda": (lambda a: a, "<lambda>"),
    "partial": (functools.partial(add, b=1), f"{__name__}.add"),
    "method": (Nothing().execute, f"{__name__}.Nothing.execute"),
}


@pytest.mark.parametrize(("body", "name"), CALLABLES.values(), ids=CALLABLES)
def test_functor_task_wraps_any_callable(body, name):
    assert name in task.FunctorTask(body).name


def test_functor_task_accepts_task_arguments():
    made = task.FunctorTask(add, "n", ["x"], None, True, {"a": "s"}, None, (2, 1), {"b": 3})
    assert (made.name, made.version, made.save_as) == ("n", (2, 1), {"x": 0})
    assert made.requires == {"s"} and values(made, s=1) == 4
    assert task.FunctorTask(add).version == (1, 0)
    for wrong in ({"execute": 3}, {"execute": add, "revert": 3}):
        with pytest.raises(ValueError, match="must be callable"):
            task.FunctorTask(**wrong)
    with pytest.raises(ValueError, match="Extra arguments"):
        task.FunctorTask(add, requires=["nope"])


@pytest.mark.parametrize("rebind", [{"b": "s"}, ["a", "s"]], ids=["dict", "list"])
def test_map_and_reduce_functor_tasks_support_rebind(rebind):
    mapped = task.MapFunctorTask(abs, requires=["a", "b"], rebind=rebind)
    folded = task.ReduceFunctorTask(operator.sub, requires=["a", "b"], rebind=rebind)
    assert mapped.requires == folded.requires == {"a", "s"}
    assert values(mapped, a=-1, s=-2) == [1, 2]
    assert values(folded, a=5, s=2) == 3


def test_map_and_reduce_functor_tasks_support_inject():
    mapped = task.MapFunctorTask(abs, requires=["a", "b"], inject={"b": -9})
    folded = task.ReduceFunctorTask(operator.add, requires=["a", "b"], inject={"b": 9})
    assert mapped.requires == folded.requires == {"a"}
    assert values(mapped, a=-1) == [1, 9]
    assert values(folded, a=1) == 10


@pytest.mark.parametrize(
    ("make", "functor", "requires", "error"),
    [
        (task.MapFunctorTask, 3, ["a"], ValueError),
        (task.MapFunctorTask, lambda: 0, ["a"], ValueError),
        (task.MapFunctorTask, lambda a, b: 0, ["a"], ValueError),
        (task.MapFunctorTask, lambda a, *, b: 0, ["a"], ValueError),
        (task.MapFunctorTask, abs, 3, TypeError),
        (task.MapFunctorTask, abs, "abc", TypeError),
        (task.ReduceFunctorTask, lambda a: 0, ["a", "b"], ValueError),
        (task.ReduceFunctorTask, lambda a, b, c: 0, ["a", "b"], ValueError),
        (task.ReduceFunctorTask, operator.add, ["a"], ValueError),
        (task.ReduceFunctorTask, operator.add, 3, TypeError),
    ],
)
def test_map_and_reduce_functor_tasks_reject_wrong_arguments(make, functor, requires, error):
    with pytest.raises(error):
        make(functor, requires=requires)


def test_map_and_reduce_functor_tasks_accept_name_and_provides():
    made = task.MapFunctorTask(lambda a, b=1, *c: a, ["a"], name="m", provides="out")
    assert (made.name, made.provides) == ("m", {"out"})
    assert task.ReduceFunctorTask(max, ["a", "b"]).name == "max"


# Function tasks.


@task.task
def bare(a, b=2):
    """Adds."""
    return a + b


@task.task(
    provides="total",
    name="adder",
    version=(1, 3),
    rebind={"a": "first"},
    inject={"b": 40},
    priority=5,
    idempotent=True,
    local=True,
)
def full(a, b):
    return a + b


@full.revert
def forget(a, result):
    return a, result


@task.task
def with_self(self, n):
    self.update_progress(1.0)
    return n


@with_self.revert
def _(self, **kwargs):
    return self.name


@task.task
def same(a): ...


@same.revert
def same(a, **_):
    return "undone"


def test_function_task_without_options_uses_its_function():
    assert issubclass(bare, task.Task) and bare.__doc__ == "Adds."
    made = bare()
    assert made.name == f"{__name__}.bare"
    assert made.requires == {"a"} and made.optional == {"b"}
    assert values(made, a=1, b=1) == 2 and bare.fn(1) == 3
    assert made.revert(result=1, flow_failures={}) is None and made.revert_accepts is None
    assert bare("other").name == bare(name="other").name == "other"


def test_function_tasks_can_be_loaded_by_name_and_pickled():
    for made in (bare, full, with_self, same):
        assert object_names.load(object_names.dotted(made)) is made
        again = pickle.loads(pickle.dumps(made("x")))
        assert type(again) is made and again.name == "x"


def test_function_task_options_set_attributes_of_instances():
    made = full()
    assert (made.name, made.version, made.provides) == ("adder", (1, 3), {"total"})
    assert (made.priority, made.idempotent, made.local) == (5, True, True)
    assert made.requires == {"first"} and made.revert_requires == {"first"}
    assert values(made, first=2) == 42 and full.fn(1, 2) == 3


def test_instance_arguments_override_decorator_options():
    made = full("mine", provides=["x"], rebind={"a": "z"}, inject={"c": 1})
    assert (made.name, made.provides, made.rebind["a"]) == ("mine", {"x"}, "z")
    assert made.inject == {"b": 40, "c": 1} and full().inject == {"b": 40}
    with pytest.raises(TypeError, match="nonsense"):
        full(nonsense=1)


def test_function_task_revert_is_called_with_its_arguments():
    made = full()
    assert made.revert(a=1, result=2) == (1, 2)
    assert made.revert_accepts == {"result"}
    assert forget(3, 4) == (3, 4)
    assert with_self("me").revert(result=1, flow_failures={}) == "me"
    assert same("x").revert(a=1) == "undone" and issubclass(same, task.Task)
    local = task.task(revert=lambda result: result)(lambda: 1)
    assert local().revert(result=5) == 5


def test_revert_attached_later_applies_to_new_instances():
    late = task.task(lambda a: a)
    assert late("x").requires == {"a"}
    late.revert(lambda b, **_: b)
    assert late("x").requires == {"a", "b"}


def test_revert_of_a_subclass_does_not_change_its_base():
    class Derived(full):
        pass

    Derived.revert(lambda **_: "derived")
    assert Derived().revert() == "derived"
    assert full().revert(a=1, result=2) == (1, 2)


def test_function_with_self_parameter_receives_the_task():
    made, heard = with_self(), []
    attach(made, lambda event, details: heard.append(details))
    assert made.requires == {"n"} and values(made, n=3) == 3
    assert heard == [{"progress": 1.0}]


def test_local_function_task_accepts_reserved_parameter_names():
    @task.task(provides="out")
    def inner(name, provides):
        return name, provides

    assert "<locals>" in inner().name
    assert values(inner("x"), name=1, provides=2) == (1, 2)


def test_invalid_decorator_option_is_rejected_on_instantiation():
    made = task.task(requires=["c"])(lambda a: a)
    with pytest.raises(ValueError, match=r"Extra arguments.*'c'"):
        made()


def test_failures_are_copied_only_for_reverts_that_accept_them():
    """Copying all failures of a flow for each of its tasks is expensive."""

    class Counted(dict):
        copies = 0

        def keys(self):
            type(self).copies += 1
            return super().keys()

        def __iter__(self):
            type(self).copies += 1
            return super().__iter__()

    class Own(task.Task):
        def execute(self): ...

        def revert(self, flow_failures):
            flow_failures.clear()

    class Result(task.Task):
        def execute(self): ...

        def revert(self, result): ...

    class Default(task.Task):
        def execute(self): ...

    @task.task
    def function(): ...

    failures = Counted(a=1)
    for made in (Default("a"), Result("a"), task.FunctorTask(add, name="a"), function()):
        call = Invocation(made, REVERT, "u", failures=failures)
        assert not invoke(call).failed
    assert Counted.copies == 0
    call = Invocation(Own("a"), REVERT, "u", failures=failures)
    assert not invoke(call).failed
    assert Counted.copies == 1 and failures == {"a": 1}


# Map.


class Inner(task.Task):
    default_provides = "unused"

    def execute(self, item, factor, offset=0):
        return item * factor + offset

    def revert(self, result, item, note):
        pass


class Controller(retry.AlwaysRevert):
    pass


def test_map_requires_the_list_and_other_inputs_of_its_task():
    """The list replaces the item, and the inputs of `revert` are included."""
    made = task.Map(Inner("i", rebind={"factor": "scale"}), over="numbers", provides="all")
    assert made.name == "i"
    assert made.requires == {"numbers", "scale", "note"}
    assert made.optional == {"offset"}
    assert made.provides == {"all"}
    assert made.rebind == {"numbers": "numbers", "factor": "scale", "offset": "offset"}
    assert made.revert_rebind == {"note": "note"}
    named = task.Map(Inner("i", inject={"factor": 2, "note": ""}), "numbers", "item", name="m")
    assert (named.name, named.requires) == ("m", {"numbers"})
    assert named.inject == {"factor": 2, "note": ""}
    assert task.Map(Inner()).requires == {"items", "factor", "note"}


def test_map_item_is_a_named_copy_of_the_inner_task():
    """The copy has the listeners of the inner task."""
    inner = Inner("i")
    heard = []
    inner.notifier.register("update_progress", lambda event, details: heard.append(details))
    made = task.Map(inner, name="m")
    item = made.of_item(3)
    assert type(item) is Inner and item.name == "m[3]" and inner.name == "i"
    item.update_progress(0.5)
    assert heard == [{"progress": 0.5}]


def test_map_is_not_offered_by_workers_and_can_be_pickled():
    assert endpoint.find_tasks([Inner]) == [Inner]
    module = types.ModuleType("m")
    module.Map, module.Inner = task.Map, Inner
    assert endpoint.find_tasks([module]) == [Inner]
    again = pickle.loads(pickle.dumps(task.Map(Inner("i"), max_in_flight=2)))
    assert (again.inner.name, again.max_in_flight) == ("i", 2)
    assert again.requires == {"items", "factor", "note"}
    with pytest.raises(NotImplementedError, match="the engine runs the inner task"):
        again.execute()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"inner": Controller("r")}, TypeError, ["requires a task", "'r'"]),
        ({"inner": len}, TypeError, ["requires a task", "task.task"]),
        ({"inner": None}, TypeError, ["requires a task, got None"]),
        ({"item": "itme"}, ValueError, ["'itme'", "did you mean 'item'?"]),
        ({"item": None}, TypeError, ["item must be a str, got None"]),
        ({"over": "item"}, ValueError, ["'item'", "use different names"]),
        ({"over": "factor"}, ValueError, ["'factor'", "whole list for each item"]),
        ({"over": "note"}, ValueError, ["'note'", "whole list for each item"]),
        ({"on_item_failure": True}, ValueError, ["'fail' or 'collect', got True"]),
        ({"max_in_flight": "3"}, ValueError, ["max_in_flight", "got '3'"]),
        ({"max_in_flight": True}, ValueError, ["max_in_flight", "got True"]),
    ],
)
def test_invalid_map_arguments_raise_one_clear_error(arguments, error, words):
    given = {"inner": Inner("i"), "over": "items", "item": "item", **arguments}
    with pytest.raises(error) as caught:
        task.Map(**given)
    for word in words:
        assert word in str(caught.value)


def test_copy_uses_copy_and_setstate_of_the_class():
    """Tasks without these methods are copied attribute by attribute."""

    class Own(Inner):
        def __copy__(self):
            other = type(self)(self.name)
            other.mark = "copied"
            return other

    class Told(Inner):
        def __setstate__(self, state):
            vars(self).update(state, mark="told")

    assert Own("o").copy().mark == "copied"
    assert Told("t").copy().mark == "told"
    plain = Inner("p")
    plain.mark = [1]
    assert plain.copy().mark is plain.mark and vars(plain.copy()) is not vars(plain)


def test_function_task_accepts_timelimit_expires_and_eta() -> None:
    made = task.task(timelimit=(1, 2), expires=3.0, eta=4.0)(_count)()
    assert (made.timelimit, made.expires, made.eta) == ((1, 2), 3.0, 4.0)
    assert task.task(_count)().timelimit is None


def _count() -> int:
    return 1
