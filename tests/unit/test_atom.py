"""Atoms: what their signatures and arguments come to."""

from __future__ import annotations

import functools
import pickle
import sys
import tracemalloc
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import _binding, atom, retry, task
from wbengine.patterns import graph_flow


class Atom(atom.Atom):
    def execute(self): ...


def atom_of(execute, revert=None, **members):
    """A class whose methods are the given functions."""
    members["execute"] = execute
    if revert is not None:
        members["revert"] = revert
    return type("Made", (atom.Atom,), members)


# Outputs.


@pytest.mark.parametrize(
    ("provides", "save_as"),
    [
        (None, {}),
        ("ab", {"ab": None}),
        (["a", "b"], {"a": 0, "b": 1}),
        (("a",), {"a": 0}),
        ({"a", "b"}, {"a": "a", "b": "b"}),
        (frozenset(["a"]), {"a": "a"}),
        ([], {}),
        (set(), {}),
    ],
)
def test_provides(provides, save_as):
    for made in (Atom("x", provides), atom_of(Atom.execute, default_provides=provides)("x")):
        assert made.save_as == save_as
        assert made.provides == frozenset(save_as)
        assert isinstance(made.provides, frozenset)


def test_given_outputs_replace_the_default():
    made = atom_of(Atom.execute, default_provides="d")
    assert made("x", provides="a").provides == {"a"}
    assert made("x", provides=[]).provides == set()
    made.default_provides = "changed"
    assert made("x").provides == {"changed"}
    made.default_provides = 3
    assert made("x", provides="a").provides == {"a"}
    with pytest.raises(TypeError):
        made("x")


def test_what_both_bodies_are_given_is_there_once():
    def execute(self, a, b): ...

    def revert(self, d, **kwargs): ...

    made = atom_of(execute)("x", rebind={"b": "c"})
    assert made.rebind == {"a": "a", "b": "c"} and made.revert_rebind == {"b": "c"}
    assert made.requires == {"a", "c"} and made.revert_requires == {"c"}
    made = atom_of(execute)("x", rebind={"a": "e", "b": "c"})
    assert made.revert_rebind is made.rebind
    assert made.revert_requires is made.requires == {"e", "c"}
    made = atom_of(execute, revert=revert)("x", revert_rebind={})
    assert (made.rebind, made.revert_rebind) == ({"a": "a", "b": "b"}, {"d": "d"})
    assert (made.requires, made.revert_requires) == ({"a", "b", "d"}, {"d"})


def test_what_many_provide_by_default_is_there_once():
    made = atom_of(Atom.execute, default_provides=("a", "b"))
    one, other = made("x"), made("y", provides=("a", "b"))
    assert made("z").save_as is one.save_as == other.save_as
    assert made("z").provides is one.provides == other.provides


# Inputs.


def body(parameters):
    return eval(f"lambda self, {parameters}: None")


def bound(words):
    """`"a=s b"` is argument a, filled from the stored name s, and b, from its own."""
    return {word.partition("=")[0]: word.rpartition("=")[2] for word in words.split()}


@pytest.mark.parametrize(
    ("parameters", "options", "rebind", "requires", "optional"),
    [
        ("a, b, c=3, *, d, e=5", {}, "a b c d e", "abd", "ce"),
        ("*args, **kwargs", {}, "", "", ""),
        ("/, a", {}, "a", "a", ""),
        ("a, **kwargs", {"requires": ["b", "c"]}, "a b c", "abc", ""),
        ("a=1", {"requires": "a"}, "a", "a", ""),
        ("a=1", {"requires": {"a": 1}.keys()}, "a", "a", ""),
        ("a=1", {"auto_extract": False}, "", "", ""),
        ("a, b", {"auto_extract": False, "requires": ["a", "b"]}, "a b", "ab", ""),
        ("a, b, c=1, d=2", {"rebind": {"a": "s", "c": "t"}}, "a=s b c=t d", "sbt", "d"),
        ("a, b, c=1", {"rebind": ["s"]}, "a=s b c", "sb", "c"),
        ("a, b, c=1", {"rebind": ("s", "t")}, "a=s b=t c", "st", "c"),
        ("a, **kwargs", {"rebind": ["s", "t", "u"]}, "a=s t u", "stu", ""),
        # What is injected needs no provider, but is passed.
        ("a, b, c=1", {"rebind": {"a": "s"}, "inject": {"s": 1, "c": 2}}, "a=s b c", "b", ""),
        ("a, b, c=1", {"ignore_list": ["b", "c"]}, "a", "a", ""),
    ],
)
def test_what_execute_asks_for(parameters, options, rebind, requires, optional):
    made = atom_of(body(parameters))("x", **options)
    assert made.rebind == bound(rebind)
    assert (made.requires, made.optional) == (frozenset(requires), frozenset(optional))
    assert isinstance(made.requires, frozenset) and isinstance(made.optional, frozenset)
    assert made.inject == options.get("inject")


#: The names that the engine gives to `revert`.
ENGINES = "result, flow_failures"


@pytest.mark.parametrize(
    ("execute", "revert", "options", "requires", "rebind", "optional"),
    [
        ("", f"a, {ENGINES}, b=1", {}, "a", "a b", "b"),
        ("a", "b, **_", {}, "ab", "b", ""),
        # Of `requires` and `rebind` it takes over what it can.
        ("a, **_", f"a, {ENGINES}", {"requires": ["b"], "rebind": {"a": "s"}}, "sb", "a=s", ""),
        ("a, **_", None, {"requires": ["b"], "rebind": {"a": "s"}}, "sb", "a=s b", ""),
        ("a", ENGINES, {"requires": ["a"]}, "a", "", ""),
        ("a", ENGINES, {"rebind": ["s"]}, "s", "", ""),
        ("a", "", {"rebind": {"a": "s"}}, "s", "", ""),
        ("a", "a", {"rebind": {"a": "s"}}, "s", "a=s", ""),
        ("a", "*_, **__", {"rebind": {"a": "s"}}, "s", "a=s", ""),
        ("a", "**_", {"rebind": {"a": "s"}}, "s", "a=s", ""),
        ("a", "a, **_", {"rebind": {"a": "s"}}, "s", "a=s", ""),
        ("a", "y, **_", {"rebind": {"a": "s"}}, "sy", "a=s y", ""),
        ("a", "z=1, **_", {"rebind": {"a": "s"}}, "s", "a=s z", "z"),
        ("**_", "**_", {"requires": ["a"]}, "a", "a", ""),
        # A list is laid on it as TaskFlow does, when it fits; else by name.
        ("a, b", f"p, q, {ENGINES}", {"rebind": ["s", "t"]}, "st", "p=s q=t", ""),
        ("a, b", f"b, {ENGINES}", {"rebind": ["s", "t"]}, "st", "b=t", ""),
        # It has its own, and an empty one switches taking over off.
        ("**_", "**_", {"requires": ["a"], "revert_requires": []}, "a", "", ""),
        ("a", "a, **_", {"rebind": {"a": "s"}, "revert_rebind": {}}, "sa", "a", ""),
        (
            "a", "a, **_",
            {"rebind": {"a": "s"}, "revert_rebind": {"a": "t"}, "revert_requires": ["u"]},
            "stu", "a=t u", "",
        ),
        ("", "a, b=1, **_", {"inject": {"a": 1, "b": 2}}, "", "a b", ""),
        ("a, b, c=1", "a, b, c=1", {"ignore_list": ["b", "c"]}, "a", "a", ""),
    ],
)  # fmt: skip
def test_what_revert_asks_for(execute, revert, options, requires, rebind, optional):
    made_by = atom_of(body(execute), None if revert is None else body(revert))
    for _ in range(2):  # the first instance of a class has it looked at
        made = made_by("x", **options)
        assert made.requires == frozenset(requires)
        assert made.revert_rebind == bound(rebind)
        assert made.revert_optional == frozenset(optional)
        injected = options.get("inject", {}).keys()
        assert made.revert_requires == {*bound(rebind).values()} - {*optional} - injected


def test_what_only_a_body_could_take_is_refused():
    with pytest.raises(ValueError, match="takes no 'u'"):
        atom_of(body("a, b, c=1"))("x", rebind=["s", "t", "u"])
    with pytest.raises(ValueError, match=r"revert\(\) takes no 'u'"):
        atom_of(Atom.execute, body(""))("x", revert_requires=["u"])


@pytest.mark.parametrize("how", [{"requires": ["lenght"]}, {"rebind": {"lenght": "stored"}}])
def test_what_the_body_cannot_take_is_refused(how):
    with pytest.raises(ValueError) as caught:
        atom_of(lambda self, length=0: None)("measure", **how)
    text = str(caught.value)
    assert "Extra arguments given to atom measure" in text
    assert "'lenght' (did you mean 'length'?)" in text and "execute()" in text


def test_a_needed_argument_that_is_left_out_is_refused():
    made = atom_of(lambda self, length, width: None)
    with pytest.raises(
        ValueError, match=r"Missing arguments for atom m: execute\(\) needs 'width'"
    ):
        made("m", auto_extract=False, requires=["length"])
    kept = made("m", auto_extract=False, requires=["length", "width"])
    assert kept.requires == {"length", "width"}


def test_parameters_by_position_only_are_refused():
    def execute(self, a, b, /, c): ...

    with pytest.raises(ValueError, match=r"takes \['a', 'b'\] by position only.*remove the '/'"):
        atom_of(execute)("x")
    with pytest.raises(ValueError, match="by position only"):
        atom_of(Atom.execute, lambda self, a, /, **_: None)("x")


@pytest.mark.parametrize("wrap", [staticmethod, classmethod])
def test_static_and_class_methods_are_bodies_too(wrap):
    body = (lambda a: None) if wrap is staticmethod else (lambda cls, a: None)
    assert atom_of(wrap(body))("x").requires == {"a"}


# Revert.


@pytest.mark.parametrize(
    ("revert", "accepts"),
    [
        (lambda self: None, set()),
        (lambda self, result: None, {"result"}),
        (lambda self, flow_failures=None: None, {"flow_failures"}),
        (lambda self, a, result, flow_failures: None, {"result", "flow_failures"}),
        (lambda self, **kwargs: None, None),
        (lambda self, result, *args, **kwargs: None, None),
        (None, None),
    ],
)
def test_which_of_them_revert_takes(revert, accepts):
    assert atom_of(Atom.execute, revert)("x").revert_accepts == accepts


# The rest.


def test_defaults():
    made = Atom("x")
    assert (made.name, made.version, made.priority) == ("x", (1, 0), 0)
    assert str(made) == '"x==1.0"'
    assert repr(made) == f'<{__name__}.Atom "x==1.0">'
    assert made.pre_execute() is made.post_execute() is made.pre_revert() is None
    assert made.revert(result=1, flow_failures={}) is made.post_revert() is None


def test_a_version_of_ones_own():
    made = atom_of(Atom.execute, version="2.5-beta")("x")
    assert str(made) == '"x==2.5-beta"'


def test_a_class_that_changes_is_looked_at_again():
    made = atom_of(lambda self, a: None)
    assert made("x").requires == {"a"}
    made.execute = lambda self, b: None
    assert made("x").requires == {"b"}
    made.revert = lambda self, c, **_: None
    assert made("x").requires == {"b", "c"}


def test_subclasses_do_not_share_what_differs():
    base = atom_of(lambda self, a: None)
    base("x")
    derived = type("Derived", (base,), {"execute": lambda self, b: None})
    assert derived("x").requires == {"b"} and base("x").requires == {"a"}


def test_atoms_pickle():
    made = Atom("x", provides=["a"], inject={"b": 1})
    again = pickle.loads(pickle.dumps(made))
    assert vars(again) == vars(made)


def test_many_atoms_are_cheap():
    tracemalloc.start()
    try:
        several = [Atom(f"t{number}") for number in range(10_000)]
        assert tracemalloc.get_traced_memory()[0] < 6_000_000
    finally:
        tracemalloc.stop()
    one, other = several[:2]
    assert one.rebind is other.rebind and one.requires is other.requires


NAMES = st.sampled_from("abcdef")


@given(
    required=st.sets(NAMES, max_size=4),
    optional=st.sets(NAMES, max_size=4),
    rebind=st.dictionaries(NAMES, st.sampled_from("stuv"), max_size=3),
    inject=st.dictionaries(st.sampled_from("abstuv"), st.integers(), max_size=3),
)
def test_every_parameter_is_bound_once_and_names_add_up(required, optional, rebind, inject):
    optional -= required
    rebind = {arg: name for arg, name in rebind.items() if arg in required | optional}
    parameters = [*required, *(f"{name}=0" for name in optional)]
    execute = eval(f"lambda self, {', '.join(parameters)}: None")
    made = atom_of(execute)("x", rebind=rebind, inject=inject)
    assert set(made.rebind) == required | optional
    assert all(made.rebind[arg] == rebind.get(arg, arg) for arg in made.rebind)
    needed = {made.rebind[arg] for arg in required | set(rebind)}
    assert made.requires == needed - set(inject)
    assert made.optional == optional - set(rebind) - set(inject)


# Wrong programs.


# Coroutines.


async def coroutine(a=None, **kwargs): ...


def plain(): ...


class Called:
    async def __call__(self, a=None): ...

    async def method(self, a=None): ...

    @classmethod
    async def of_class(cls, a=None): ...


@pytest.mark.parametrize(
    "body",
    [
        coroutine,
        Called(),
        Called().method,
        Called.of_class,
        functools.partial(coroutine, b=1),
        functools.partial(functools.partial(Called().method), a=1),
        functools.partial(Called()),
        pytest.param(
            mock.AsyncMock(),
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="its signature cannot be read there"
            ),
        ),
    ],
)
def test_it_is_known_what_has_to_be_awaited(body):
    """Whatever the callable; from the signature, which is looked at once per function."""
    assert _binding.signature_of(body).is_async
    assert _binding.is_async(body)
    assert task.FunctorTask(body, name="f").async_bodies == {"execute"}
    made = task.FunctorTask(plain, name="f", revert=body, auto_extract=False)
    assert made.async_bodies == {"revert"}


@pytest.mark.parametrize(
    "body", [print, Called, lambda: None, functools.partial(int), Atom("a").execute]
)
def test_what_is_plain_is_plain(body):
    """A class whose instances have an async `__call__` is plain itself."""
    assert not _binding.is_async(body)


def test_async_bodies_of_classes():
    """By action; nothing is kept in the instances of plain ones."""

    async def execute(self, a): ...

    def plain(self, a): ...

    assert atom_of(plain, plain)("x").async_bodies == frozenset()
    assert "async_bodies" not in vars(atom_of(plain)("x"))
    for made, bodies in (
        (atom_of(execute), {"execute"}),
        (atom_of(plain, execute), {"revert"}),
        (atom_of(execute, execute), {"execute", "revert"}),
    ):
        assert made("x").async_bodies == bodies
        assert made("x", provides="p", rebind=["b"]).async_bodies == bodies
        assert made("x").requires == {"a"}


def test_decorated_functions_may_be_async():
    @task.task
    async def fetch(url): ...

    @fetch.revert
    async def forget(result, **kwargs): ...

    assert fetch("f").async_bodies == {"execute", "revert"}
    assert fetch("f").requires == {"url"}


def test_asynchronous_generators_are_refused():
    """They have no result."""

    async def generator(self):
        yield 1

    class Streams:
        async def __call__(self):
            yield 1

    def plain(self): ...

    for execute, revert in ((generator, None), (plain, generator)):
        with pytest.raises(ValueError, match=r"generator is an asynchronous generator"):
            atom_of(execute, revert)("a")
    with pytest.raises(ValueError, match=r"Streams is an asynchronous generator"):
        task.FunctorTask(Streams(), name="s")


@pytest.mark.parametrize("method", ["execute", "revert", "on_failure", "wait"])
def test_retries_are_never_async(method):
    """They run in the engine's own thread."""

    async def body(self, history, **kwargs): ...

    made = type("Waits", (retry.AlwaysRevert,), {method: body})
    with pytest.raises(ValueError, match=rf"Waits.{method} is an 'async def'.*plain method"):
        made("r")


def test_deciders_are_never_async():
    """Not even one that looks like a function."""
    first, second = task.FunctorTask(plain, "1"), task.FunctorTask(plain, "2")
    flow = graph_flow.Flow("f").add(first, second)

    async def decide(history): ...

    with pytest.raises(ValueError, match=r"decide is an 'async def'.*plain function"):
        flow.link(first, second, decider=decide)
    assert not list(flow.iter_links())


@pytest.mark.parametrize("kind", [task.MapFunctorTask, task.ReduceFunctorTask])
def test_folding_functors_are_never_async(kind):
    async def functor(a, b=None): ...

    with pytest.raises(ValueError, match=r"functor is an 'async def'.*async def execute"):
        kind(functor, requires=["a", "b"])


def test_a_constructor_that_was_not_called():
    class Forgets(Atom):
        def __init__(self): ...

    for name in ("name", "requires", "save_as"):
        with pytest.raises(AttributeError, match=r"Forgets.* must call super\(\).__init__\(\)"):
            getattr(Forgets(), name)
    with pytest.raises(AttributeError, match="object has no attribute 'nonsense'"):
        Atom("a").nonsense  # noqa: B018


def test_bodies_of_an_instance_are_looked_at_where_it_has_its_own():
    class Given(task.Task):
        def __init__(self, body, **options):
            self.execute = body
            super().__init__(**options)

        def execute(self): ...

    plain = Given(lambda: None, name="plain", inject={"a": 1})
    assert plain.rebind == {}
    made = Given(lambda x, y: None, name="made", rebind={"x": "stored"})
    assert made.rebind == {"x": "stored", "y": "y"}


def test_what_an_atom_provides_is_known_when_it_is_asked_for():
    made = atom_of(lambda self: None)("x", provides={"a", "b"})
    assert "provides" not in vars(made)
    again = pickle.loads(
        pickle.dumps(task.FunctorTask(pickle.dumps, name="x", provides=["a", "b"]))
    )
    for one in (made, again):
        assert one.provides == {"a", "b"}
        assert one.provides is one.provides


def test_what_revert_is_given_by_name_it_requires():
    made = atom_of(lambda self, x, z=1: x)("made", rebind=["s"], revert_rebind={"x": "s", "z": "z"})
    assert (made.rebind, made.optional) == ({"x": "s", "z": "z"}, {"z"})
    assert (made.revert_requires, made.revert_optional) == ({"s", "z"}, frozenset())
