"""Flows of the crash corpus succeed if nothing fails."""

from __future__ import annotations

import types

import pytest

from tests.testing import crash_corpus
from wbengine import engines

MODULES = crash_corpus.modules()


def short_name(module: types.ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def test_corpus_has_30_faulty_and_15_right_flows() -> None:
    kinds = [short_name(module).rpartition("_")[0].split("_")[0] for module in MODULES]
    assert (kinds.count("faulty"), kinds.count("right"), len(kinds)) == (30, 15, 45)


@pytest.mark.parametrize("module", MODULES, ids=short_name)
def test_flow_without_faults_succeeds(module: types.ModuleType) -> None:
    for world in module.WORLDS:
        world.clear()
    flow = module.flow() if isinstance(module.flow, types.FunctionType) else module.flow
    engine = engines.load(flow, inputs=module.INPUTS, backend="memory://")
    for name, value in getattr(module, "SIGNALS", {}).items():
        engine.signal(name, value)
    engine.run()
    assert engine.storage.get_flow_state() == "SUCCESS"
    assert any(world.keys for world in module.WORLDS)
