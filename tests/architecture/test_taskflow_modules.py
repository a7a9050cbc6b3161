"""Which modules of TaskFlow have a twin here, and that the guide tells which ones have none."""

from __future__ import annotations

import importlib
import pathlib
import re

import pytest

from . import imports

#: Every public module of TaskFlow 6.5, without examples and schema migrations.
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

#: Those (with all below them) that have no twin.
_MISSING = """
conductors contrib engines.action_engine engines.helpers jobs persistence.path_based
persistence.backends.impl_zookeeper persistence.backends.sqlalchemy test utils.banner
utils.eventlet_utils utils.iter_utils utils.kazoo_utils utils.kombu_utils utils.redis_utils
utils.schema_utils
"""
MISSING = _MISSING.split()

GUIDE = imports.ROOT / "doc" / "source" / "migrating_from_taskflow.rst"


def has_twin(module: str) -> bool:
    path = imports.ROOT.joinpath("wbengine", *module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def is_missing(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in MISSING)


@pytest.mark.parametrize("module", [module for module in MODULES if not is_missing(module)])
def test_a_module_of_taskflow_has_a_twin(module: str) -> None:
    assert has_twin(module)
    importlib.import_module(f"wbengine.{module}")


def test_what_is_missing_is_missing() -> None:
    assert [module for module in MODULES if is_missing(module) and has_twin(module)] == []
    assert [module for module in MISSING if module not in MODULES] == []


def untold(guide: pathlib.Path) -> list[str]:
    told = set(re.findall(r"``taskflow\.([\w.]+)``", guide.read_text(encoding="utf-8")))
    return [module for module in MISSING if module not in told]


def test_the_guide_tells_what_is_missing() -> None:
    assert untold(GUIDE) == []


def test_the_check_sees_what_it_should(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text("".join(f"``taskflow.{module}``\n" for module in MISSING if module != "jobs"))
    assert untold(page) == ["jobs"]
