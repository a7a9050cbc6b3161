"""`crash_everywhere` finds the faults of the crash corpus, and nothing in its right flows."""

from __future__ import annotations

import importlib
import types

import pytest

from tests.testing import crash_corpus
from wbengine import engines
from wbengine.testing import crash_everywhere

MODULES = crash_corpus.modules()

#: Faults that no check finds, because only their author knows what is right, or because they need
#: another hash seed.
NOT_FOUND = {
    "faulty_15_half_of_map",
    "faulty_20_order_of_set",
    "faulty_23_charged_before_approval",
}


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


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES, ids=short_name)
def test_faults_are_found_and_right_flows_pass(module: types.ModuleType) -> None:
    module = importlib.reload(module)  # Its variables are those of a new process.
    report = crash_everywhere(
        module.flow,
        module.INPUTS,
        world=module.WORLDS,
        signals=getattr(module, "SIGNALS", {}),
        exceptions=getattr(module, "EXCEPTIONS", None),
        budget=600.0,
        max_runs=120,
    )
    is_right = short_name(module).startswith("right") or short_name(module) in NOT_FOUND
    assert report.ok == is_right, report
    assert report.singles_run == report.singles or report.findings
