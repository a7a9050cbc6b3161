"""Scheduler and recovery rules, compared with an oracle without incremental state.

`WBENGINE_FLOWS=n` sets the number of flows, `WBENGINE_SEED=n` runs a single one.  `tools/simulate`
runs many in several processes.
"""

from __future__ import annotations

import os

import pytest

from tests.property.lives import live
from tests.support.amounts import amount

FLOWS = amount(200, 5000, "WBENGINE_FLOWS")
SEED = os.environ.get("WBENGINE_SEED")


@pytest.mark.timeout(3600)
def test_scheduler_agrees_with_oracle() -> None:
    """The random histories cover all cases. Otherwise the comparison would prove little."""
    seen: set[str] = set()
    tasks = 0
    for seed in range(FLOWS) if SEED is None else [int(SEED)]:
        life = live(seed)
        tasks += len(set(life.oracle.atoms) - set(life.oracle.retry_scope))
        for line in life.history:
            seen.update(line.split())
    if SEED is not None:
        return
    wanted = {"crash", "approved", "ignored", "stuck", "RETRY", "REVERT", "None", "failed", "back"}
    wanted |= {"suspended", "postponed", "woken", "rule", "deciders", "ANY", "NONE_FAILED"}
    wanted |= {"cancel", "cancelled", "True", "False"}
    assert wanted | {"SUCCESS", "REVERTED", "FAILURE", "ALL", "FLOW"} <= seen
    assert tasks > 500
