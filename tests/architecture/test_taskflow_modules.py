"""Counterparts of TaskFlow's modules and names, and the guide's list of missing ones."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import pkgutil
import re
import types
import warnings
from collections.abc import Iterator

import pytest

from . import imports

#: All public modules of TaskFlow 6.5, without examples and schema migrations.
_MODULES = """
atom contrib deciders exceptions flow formatters logging retry states storage task test version
conductors conductors.base conductors.backends conductors.backends.impl_blocking
conductors.backends.impl_executor conductors.backends.impl_nonblocking
engines engines.base engines.helpers
engines.action_engine engines.action_engine.actions engines.action_engine.actions.base
engines.action_engine.actions.retry engines.action_engine.actions.task
engines.action_engine.builder engines.action_engine.compiler engines.action_engine.completer
engines.action_engine.deciders engines.action_engine.engine engines.action_engine.executor
engines.action_engine.runtime engines.action_engine.scheduler engines.action_engine.scopes
engines.action_engine.selector engines.action_engine.traversal
engines.worker_based engines.worker_based.dispatcher engines.worker_based.endpoint
engines.worker_based.engine engines.worker_based.executor engines.worker_based.protocol
engines.worker_based.proxy engines.worker_based.server engines.worker_based.types
engines.worker_based.worker
jobs jobs.base jobs.backends jobs.backends.impl_etcd jobs.backends.impl_redis
jobs.backends.impl_zookeeper
listeners listeners.base listeners.capturing listeners.claims listeners.logging listeners.printing
listeners.timing
patterns patterns.graph_flow patterns.linear_flow patterns.unordered_flow
persistence persistence.base persistence.models persistence.path_based persistence.backends
persistence.backends.impl_dir persistence.backends.impl_memory
persistence.backends.impl_sqlalchemy persistence.backends.impl_zookeeper
persistence.backends.sqlalchemy persistence.backends.sqlalchemy.migration
persistence.backends.sqlalchemy.tables
types types.entity types.failure types.graph types.latch types.notifier types.sets types.timing
types.tree
utils utils.banner utils.eventlet_utils utils.iter_utils utils.kazoo_utils utils.kombu_utils
utils.misc utils.persistence_utils utils.redis_utils utils.schema_utils utils.threading_utils
"""
MODULES = _MODULES.split()

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

GUIDE = imports.ROOT / "doc" / "source" / "explanation" / "differences_from_taskflow.rst"


def has_twin(module: str) -> bool:
    try:
        return importlib.util.find_spec(f"wbengine.{module}") is not None
    except ModuleNotFoundError:  # the surrounding package does not exist
        return False


def is_missing(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in MISSING)


@pytest.mark.parametrize("module", [module for module in MODULES if not is_missing(module)])
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
    assert [module for module in MODULES if is_missing(module) and has_twin(module)] == []
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


@pytest.mark.parametrize("module", [module for module in MODULES if not is_missing(module)])
def test_name_of_taskflow_exists_or_is_in_guide(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TaskFlow imports deprecated modules
        theirs = importlib.import_module(f"taskflow.{module}")
    ours = importlib.import_module(f"wbengine.{module}")
    told = set(re.findall(r"\w+", GUIDE.read_text(encoding="utf-8")))
    missing = [name for name in names_of(theirs) if lacks(ours, name)]
    assert [".".join(name) for name in missing if not told.intersection(name[-1:])] == []


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
