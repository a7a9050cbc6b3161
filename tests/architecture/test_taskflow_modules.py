"""Counterparts of TaskFlow's modules, names and calls, and the guide's list of missing ones."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import pkgutil
import re
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import taskflow

from . import imports

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TaskFlow imports deprecated modules
    _NAMES = [each.name for each in pkgutil.walk_packages(taskflow.__path__, "taskflow.")]
#: All modules of TaskFlow, without examples and tests.
MODULES = [
    name.removeprefix("taskflow.")
    for name in _NAMES
    if not name.startswith(("taskflow.examples", "taskflow.tests"))
]

#: Modules, with their submodules, that have no counterpart.
_MISSING = """
contrib engines.action_engine.actions engines.action_engine.builder
engines.action_engine.compiler engines.action_engine.completer engines.action_engine.deciders
engines.action_engine.executor engines.action_engine.runtime engines.action_engine.scheduler
engines.action_engine.scopes engines.action_engine.selector engines.action_engine.traversal
persistence.backends.impl_zookeeper persistence.backends.sqlalchemy
test utils.banner utils.eventlet_utils utils.iter_utils utils.kombu_utils utils.schema_utils
"""
MISSING = _MISSING.split()

#: Modules, classes and functions, with their members, that have other parameters or defaults, or
#: no signature.
_OTHER_PARAMETERS = """
conductors.backends.impl_blocking conductors.backends.impl_executor
conductors.backends.impl_nonblocking engines.worker_based.endpoint.Endpoint.execute
engines.worker_based.endpoint.Endpoint.revert engines.worker_based.server
exceptions.NotImplementedError jobs.backends.impl_etcd.EtcdJob jobs.backends.impl_redis
jobs.backends.impl_zookeeper jobs.base patterns.graph_flow.TargetedFlow
persistence.backends.impl_sqlalchemy persistence.models persistence.path_based retry.Retry
types.graph.OrderedDiGraph types.graph.OrderedGraph utils.threading_utils.get_ident
"""
OTHER_PARAMETERS = _OTHER_PARAMETERS.split()

GUIDE = imports.ROOT / "doc" / "source" / "explanation" / "differences_from_taskflow.rst"


def has_twin(module: str) -> bool:
    try:
        return importlib.util.find_spec(f"wbengine.{module}") is not None
    except ModuleNotFoundError:  # the surrounding package does not exist
        return False


def is_in(name: str, roots: list[str]) -> bool:
    """Return whether a dotted name is one of these names, or is inside one of them."""
    return any(name == each or name.startswith(f"{each}.") for each in roots)


COUNTERPARTS = [module for module in MODULES if not is_in(module, MISSING)]


@pytest.mark.parametrize("module", COUNTERPARTS)
def test_module_of_taskflow_has_counterpart(module: str) -> None:
    assert has_twin(module)
    importlib.import_module(f"wbengine.{module}")


def test_module_with_two_names_is_one_object() -> None:
    names = {"utils": "_compat", "types": "_compat.types"}
    pairs = [
        (f"wbengine.{alias}.{module.name}", f"wbengine.{home}.{module.name}")
        for alias, home in names.items()
        for module in pkgutil.iter_modules(importlib.import_module(f"wbengine.{home}").__path__)
        if not module.ispkg
    ]
    assert ("wbengine.types.entity", "wbengine._compat.types.entity") in pairs
    assert ("wbengine.utils.misc", "wbengine._compat.misc") in pairs
    for alias, home in pairs:
        assert importlib.import_module(alias) is importlib.import_module(home), alias


def test_modules_listed_as_missing_do_not_exist() -> None:
    assert [module for module in MODULES if is_in(module, MISSING) and has_twin(module)] == []
    assert [module for module in MISSING if module not in MODULES] == []


def names_of(module: types.ModuleType) -> Iterator[tuple[str, ...]]:
    """Yield the public names of a TaskFlow module and of its classes."""
    for name, value in vars(module).items():
        home = getattr(value, "__module__", None) or module.__name__
        if name.startswith("_") or name == "LOG" or inspect.ismodule(value):
            continue
        if home.startswith("taskflow"):
            yield (name,)
            for inner in vars(value) if inspect.isclass(value) else ():
                # Atoms set `name` per instance.
                if not inner.startswith("_") and inner != "name":
                    yield name, inner


def lacks(module: object, name: tuple[str, ...]) -> bool:
    """Return True if only the last part of the name is missing."""
    for part in name[:-1]:
        module = getattr(module, part, None)
    return module is not None and not hasattr(module, name[-1])


def twins(module: str) -> tuple[types.ModuleType, types.ModuleType]:
    """Return a module of TaskFlow and its counterpart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TaskFlow imports deprecated modules
        theirs = importlib.import_module(f"taskflow.{module}")
    return theirs, importlib.import_module(f"wbengine.{module}")


@pytest.mark.parametrize("module", COUNTERPARTS)
def test_name_of_taskflow_exists_or_is_in_guide(module: str) -> None:
    theirs, ours = twins(module)
    told = set(re.findall(r"\w+", GUIDE.read_text(encoding="utf-8")))
    missing = [name for name in names_of(theirs) if lacks(ours, name)]
    assert [".".join(name) for name in missing if not told.intersection(name[-1:])] == []


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
_PLAIN = (bool, int, float, str, tuple, type(None))


def mismatch(ours: Callable[..., Any], theirs: Callable[..., Any]) -> str | None:
    """Return why a call that TaskFlow accepts fails or has another default, or None.

    More parameters are allowed if they have defaults. Only plain defaults are compared.
    """
    parameters, required = inspect.signature(ours).parameters, inspect.Parameter.empty
    positional = [each.name for each in parameters.values() if each.kind is _POSITIONAL]
    expected = inspect.signature(theirs).parameters.values()
    defaults = {each.name: each.default for each in expected if each.kind is _POSITIONAL}
    if positional[: len(defaults)] != list(defaults):
        return f"takes {positional}, not {list(defaults)}"
    for name, default in defaults.items():
        own = parameters[name].default
        if isinstance(default, str):
            default = default.replace("taskflow", "wbengine", 1)
        if default is not required and own is required:
            return f"{name} has no default"
        if isinstance(default, _PLAIN) and own != default:
            return f"the default of {name} is {own!r}, not {default!r}"
    for name, each in parameters.items():
        more = name not in defaults and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if more and each.default is required:
            return f"{name} must be given"
    return None


def value_of(module: Any, name: tuple[str, ...]) -> Any:
    """Return a value of a module or of its classes, or None."""
    for part in name:
        module = getattr(module, part, None)
    return module


@pytest.mark.parametrize("module", COUNTERPARTS)
def test_calls_of_taskflow_are_accepted(module: str) -> None:
    theirs, ours = twins(module)
    found = {}
    for name in names_of(theirs):
        pair = value_of(ours, name), value_of(theirs, name)
        if all(map(callable, pair)) and not is_in(".".join((module, *name)), OTHER_PARAMETERS):
            found[name] = mismatch(*pair)
    assert {name: reason for name, reason in found.items() if reason} == {}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, b=1: None, None),
        (lambda a, b=1, c=2, *, d=3, **more: None, None),
        (lambda b, a=1: None, "takes"),
        (lambda a: None, "takes"),
        (lambda a, *, b=1: None, "takes"),
        (lambda a, b: None, "b has no default"),
        (lambda a, b=2: None, "default of b"),
        (lambda a=0, b=1: None, None),
        (lambda a, b=1, *, c: None, "c must be given"),
    ],
)
def test_signature_mismatch_is_found(function: Any, reason: str | None) -> None:
    found = mismatch(function, lambda a, b=1: None)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    "name", ["Notify.TYPE", "Notify.SENDER_SCHEMA", "Request.TYPE", "Response.TYPE"]
)
def test_constant_of_messages_equals_that_of_taskflow(name: str) -> None:
    theirs, ours = twins("engines.worker_based.protocol")
    assert value_of(ours, tuple(name.split("."))) == value_of(theirs, tuple(name.split(".")))


def untold(guide: pathlib.Path) -> list[str]:
    told = set(re.findall(r"``taskflow\.([\w.]+)``", guide.read_text(encoding="utf-8")))
    return [module for module in MISSING if module not in told]


def test_guide_names_missing_modules() -> None:
    assert untold(GUIDE) == []


def test_missing_module_or_name_is_found(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(
        "".join(f"``taskflow.{module}``\n" for module in MISSING if module != "contrib")
    )
    assert untold(page) == ["contrib"]
    made = types.ModuleType("taskflow.made")
    exec("class A:\n    def b(self): pass\n    def c(self): pass", made.__dict__)
    twin = types.SimpleNamespace(A=types.SimpleNamespace(b=1))
    assert [name for name in names_of(made) if lacks(twin, name)] == [("A", "c")]
