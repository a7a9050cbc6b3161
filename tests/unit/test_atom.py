"""Signatures and arguments of atoms."""

from __future__ import annotations

import functools
import pickle
import tracemalloc
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import atom, retry, task
from wbengine._introspection import binding
from wbengine.patterns import graph_flow


class Atom(atom.Atom):
    def execute(self): ...


def atom_of(execute, revert=None, **members):
    """Return a class with the given functions as methods."""
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
    ids=["none", "str", "list", "tuple", "set", "frozenset", "empty-list", "empty-set"],
)
def test_provides_maps_names_to_positions_or_keys(provides, save_as):
    for made in (Atom("x", provides), atom_of(Atom.execute, default_provides=provides)("x")):
        assert made.save_as == save_as
        assert made.provides == frozenset(save_as)
        assert isinstance(made.provides, frozenset)


def test_provides_argument_replaces_default_provides():
    made = atom_of(Atom.execute, default_provides="d")
    assert made("x", provides="a").provides == {"a"}
    assert made("x", provides=[]).provides == set()
    made.default_provides = "changed"
    assert made("x").provides == {"changed"}
    made.default_provides = 3
    assert made("x", provides="a").provides == {"a"}
    with pytest.raises(TypeError):
        made("x")


def test_execute_and_revert_share_equal_bindings():
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


def test_atoms_with_default_provides_share_save_as():
    made = atom_of(Atom.execute, default_provides=("a", "b"))
    one, other = made("x"), made("y", provides=("a", "b"))
    assert made("z").save_as is one.save_as == other.save_as
    assert made("z").provides is one.provides == other.provides


# Inputs.


def body(parameters):
    return eval(f"lambda self, {parameters}: None")


def bound(words):
    """Parse `"a=s b"`: argument a from the stored name s, and b from the stored name b."""
    return {word.partition("=")[0]: word.rpartition("=")[2] for word in words.split()}


EXECUTE_SIGNATURES = {
    "plain": ("a, b, c=3, *, d, e=5", {}, "a b c d e", "abd", "ce"),
    "varargs": ("*args, **kwargs", {}, "", "", ""),
    "positional-self": ("/, a", {}, "a", "a", ""),
    "requires-in-kwargs": ("a, **kwargs", {"requires": ["b", "c"]}, "a b c", "abc", ""),
    "requires-str": ("a=1", {"requires": "a"}, "a", "a", ""),
    "requires-keys": ("a=1", {"requires": {"a": 1}.keys()}, "a", "a", ""),
    "no-extract": ("a=1", {"auto_extract": False}, "", "", ""),
    "only-requires": ("a, b", {"auto_extract": False, "requires": ["a", "b"]}, "a b", "ab", ""),
    "rebind-dict": ("a, b, c=1, d=2", {"rebind": {"a": "s", "c": "t"}}, "a=s b c=t d", "sbt", "d"),
    "rebind-short-list": ("a, b, c=1", {"rebind": ["s"]}, "a=s b c", "sb", "c"),
    "rebind-tuple": ("a, b, c=1", {"rebind": ("s", "t")}, "a=s b=t c", "st", "c"),
    "rebind-list-in-kwargs": ("a, **kwargs", {"rebind": ["s", "t", "u"]}, "a=s t u", "stu", ""),
    # Injected values need no provider, but are passed.
    "inject": ("a, b, c=1", {"rebind": {"a": "s"}, "inject": {"s": 1, "c": 2}}, "a=s b c", "b", ""),
    "ignore-list": ("a, b, c=1", {"ignore_list": ["b", "c"]}, "a", "a", ""),
}


@pytest.mark.parametrize(
    ("parameters", "options", "rebind", "requires", "optional"),
    EXECUTE_SIGNATURES.values(),
    ids=EXECUTE_SIGNATURES,
)
def test_execute_signature_defines_requires_and_optional(
    parameters, options, rebind, requires, optional
):
    made = atom_of(body(parameters))("x", **options)
    assert made.rebind == bound(rebind)
    assert (made.requires, made.optional) == (frozenset(requires), frozenset(optional))
    assert isinstance(made.requires, frozenset) and isinstance(made.optional, frozenset)
    assert made.inject == options.get("inject")


#: Arguments that the engine passes to `revert`.
ENGINES = "result, flow_failures"


@pytest.mark.parametrize(
    ("execute", "revert", "options", "requires", "rebind", "optional"),
    [
        ("", f"a, {ENGINES}, b=1", {}, "a", "a b", "b"),
        ("a", "b, **_", {}, "ab", "b", ""),
        # `revert` inherits those parts of `requires` and `rebind` that it accepts.
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
        # A list is applied by position, as in TaskFlow, if it fits; otherwise by name.
        ("a, b", f"p, q, {ENGINES}", {"rebind": ["s", "t"]}, "st", "p=s q=t", ""),
        ("a, b", f"b, {ENGINES}", {"rebind": ["s", "t"]}, "st", "b=t", ""),
        # `revert` has separate settings; an empty one disables inheritance.
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
def test_revert_signature_defines_revert_requires_and_optional(
    execute, revert, options, requires, rebind, optional
):
    made_by = atom_of(body(execute), None if revert is None else body(revert))
    for _ in range(2):  # the first instance of a class triggers its inspection
        made = made_by("x", **options)
        assert made.requires == frozenset(requires)
        assert made.revert_rebind == bound(rebind)
        assert made.revert_optional == frozenset(optional)
        injected = options.get("inject", {}).keys()
        assert made.revert_requires == {*bound(rebind).values()} - {*optional} - injected


def test_rebind_list_and_revert_requires_reject_unknown_arguments():
    with pytest.raises(ValueError, match="takes no 'u'"):
        atom_of(body("a, b, c=1"))("x", rebind=["s", "t", "u"])
    with pytest.raises(ValueError, match=r"revert\(\) takes no 'u'"):
        atom_of(Atom.execute, body(""))("x", revert_requires=["u"])


@pytest.mark.parametrize(
    "how", [{"requires": ["lenght"]}, {"rebind": {"lenght": "stored"}}], ids=["requires", "rebind"]
)
def test_unknown_argument_is_refused_with_suggestion(how):
    with pytest.raises(ValueError) as caught:
        atom_of(lambda self, length=0: None)("measure", **how)
    text = str(caught.value)
    assert "Extra arguments given to atom measure" in text
    assert "'lenght' (did you mean 'length'?)" in text and "execute()" in text


def test_missing_required_argument_is_refused():
    made = atom_of(lambda self, length, width: None)
    with pytest.raises(
        ValueError, match=r"Missing arguments for atom m: execute\(\) needs 'width'"
    ):
        made("m", auto_extract=False, requires=["length"])
    kept = made("m", auto_extract=False, requires=["length", "width"])
    assert kept.requires == {"length", "width"}


def test_positional_only_parameters_are_refused():
    def execute(self, a, b, /, c): ...

    with pytest.raises(ValueError, match=r"must accept \['a', 'b'\] by name.*remove the '/'"):
        atom_of(execute)("x")
    with pytest.raises(ValueError, match="must accept"):
        atom_of(Atom.execute, lambda self, a, /, **_: None)("x")


@pytest.mark.parametrize("wrap", [staticmethod, classmethod])
def test_static_and_class_methods_are_accepted_as_execute(wrap):
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
    ids=["none", "result", "flow-failures", "both", "kwargs", "result-and-kwargs", "no-revert"],
)
def test_revert_accepts_lists_engine_arguments_of_signature(revert, accepts):
    assert atom_of(Atom.execute, revert)("x").revert_accepts == accepts


# Other properties.


def test_atom_has_documented_defaults():
    made = Atom("x")
    assert (made.name, made.version, made.priority) == ("x", (1, 0), 0)
    assert str(made) == '"x==1.0"'
    assert repr(made) == f'<{__name__}.Atom "x==1.0">'
    assert made.pre_execute() is made.post_execute() is made.pre_revert() is None
    assert made.revert(result=1, flow_failures={}) is made.post_revert() is None


def test_custom_version_appears_in_str():
    made = atom_of(Atom.execute, version="2.5-beta")("x")
    assert str(made) == '"x==2.5-beta"'


def test_replaced_method_of_class_is_inspected_again():
    made = atom_of(lambda self, a: None)
    assert made("x").requires == {"a"}
    made.execute = lambda self, b: None
    assert made("x").requires == {"b"}
    made.revert = lambda self, c, **_: None
    assert made("x").requires == {"b", "c"}


def test_subclass_signature_is_independent_of_base():
    base = atom_of(lambda self, a: None)
    base("x")
    derived = type("Derived", (base,), {"execute": lambda self, b: None})
    assert derived("x").requires == {"b"} and base("x").requires == {"a"}


def test_atoms_pickle():
    made = Atom("x", provides=["a"], inject={"b": 1})
    again = pickle.loads(pickle.dumps(made))
    assert vars(again) == vars(made)


def test_ten_thousand_atoms_use_less_than_6_mb():
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
def test_each_parameter_is_bound_once_and_requires_are_complete(required, optional, rebind, inject):
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


# Coroutines.


async def coroutine(a=None, **kwargs): ...


def plain(): ...


class Called:
    async def __call__(self, a=None): ...

    async def method(self, a=None): ...

    @classmethod
    async def of_class(cls, a=None): ...


ASYNC_CALLABLES = {
    "function": coroutine,
    "instance": Called(),
    "method": Called().method,
    "classmethod": Called.of_class,
    "partial": functools.partial(coroutine, b=1),
    "nested-partial": functools.partial(functools.partial(Called().method), a=1),
    "partial-instance": functools.partial(Called()),
    "async-mock": mock.AsyncMock(),
}


@pytest.mark.parametrize("body", ASYNC_CALLABLES.values(), ids=ASYNC_CALLABLES)
def test_async_callables_of_all_kinds_are_detected(body):
    """The signature decides. It is inspected once for each function."""
    assert binding.signature_of(body).is_async
    assert binding.is_async(body)
    assert task.FunctorTask(body, name="f").async_bodies == {"execute"}
    made = task.FunctorTask(plain, name="f", revert=body, auto_extract=False)
    assert made.async_bodies == {"revert"}


@pytest.mark.parametrize(
    "body",
    [print, Called, lambda: None, functools.partial(int), Atom("a").execute],
    ids=["builtin", "class", "lambda", "partial", "method"],
)
def test_plain_callables_are_not_detected_as_async(body):
    """A class is plain, even if its instances have an async `__call__`."""
    assert not binding.is_async(body)


def test_async_bodies_lists_async_methods_of_class():
    """Instances of plain classes do not store the set."""

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
def test_async_retry_methods_are_refused(method):
    """Retry controllers run in the thread of the engine."""

    async def body(self, history, **kwargs): ...

    made = type("Waits", (retry.AlwaysRevert,), {method: body})
    with pytest.raises(ValueError, match=rf"Waits.{method} must be a plain method, got an"):
        made("r")


def test_async_deciders_are_refused():
    first, second = task.FunctorTask(plain, "1"), task.FunctorTask(plain, "2")
    flow = graph_flow.Flow("f").add(first, second)

    async def decide(history): ...

    with pytest.raises(ValueError, match=r"decide must be a plain function, got an 'async def'"):
        flow.link(first, second, decider=decide)
    assert not list(flow.iter_links())


@pytest.mark.parametrize("kind", [task.MapFunctorTask, task.ReduceFunctorTask])
def test_async_map_and_reduce_functors_are_refused(kind):
    async def functor(a, b=None): ...

    with pytest.raises(ValueError, match=r"functor must not be an 'async def'.*async def execute"):
        kind(functor, requires=["a", "b"])


def test_missing_super_init_call_is_explained_on_attribute_access():
    class Forgets(Atom):
        def __init__(self): ...

    for name in ("name", "requires", "save_as"):
        with pytest.raises(AttributeError, match=r"Forgets.* must call super\(\).__init__\(\)"):
            getattr(Forgets(), name)
    with pytest.raises(AttributeError, match="object has no attribute 'nonsense'"):
        Atom("a").nonsense  # noqa: B018


def test_execute_assigned_to_instance_is_inspected():
    class Given(task.Task):
        def __init__(self, body, **options):
            self.execute = body
            super().__init__(**options)

        def execute(self): ...

    plain = Given(lambda: None, name="plain", inject={"a": 1})
    assert plain.rebind == {}
    made = Given(lambda x, y: None, name="made", rebind={"x": "stored"})
    assert made.rebind == {"x": "stored", "y": "y"}


def test_provides_is_computed_on_first_access():
    made = atom_of(lambda self: None)("x", provides={"a", "b"})
    assert "provides" not in vars(made)
    again = pickle.loads(
        pickle.dumps(task.FunctorTask(pickle.dumps, name="x", provides=["a", "b"]))
    )
    for one in (made, again):
        assert one.provides == {"a", "b"}
        assert one.provides is one.provides


def test_revert_rebind_makes_optional_argument_required():
    made = atom_of(lambda self, x, z=1: x)("made", rebind=["s"], revert_rebind={"x": "s", "z": "z"})
    assert (made.rebind, made.optional) == ({"x": "s", "z": "z"}, {"z"})
    assert (made.revert_requires, made.revert_optional) == ({"s", "z"}, frozenset())
