"""All flows of the suite on all kinds of engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.flows import (
    arguments,
    deciding,
    failing,
    maps,
    newer,
    retrying,
    shapes,
    steering,
    values,
    waiting,
)
from tests.contract.flows.case import CASES, Case, play
from tests.contract.flows.kinds import KEPT, NAMES, POSTGRESQL, Kind
from tests.support import tally

#: Modules that register their flows on import.
MODULES = (arguments, shapes, deciding, retrying, failing, steering, values, newer, maps, waiting)


#: Kinds for which a third of the flows is enough: they differ from another kind in the store of the
#: records, in the pool or in the transport.
VARIANTS = (KEPT, "processes", "filesystem", POSTGRESQL)
RUNS = [
    (name, case)
    for name in (*NAMES, KEPT, POSTGRESQL)
    for case in (CASES[::3] if name in VARIANTS else CASES)
    if case.runs_on(name)
]


@pytest.mark.parametrize(
    ("kind", "case"), RUNS, indirect=["kind"], ids=[f"{name}-{case.name}" for name, case in RUNS]
)
def test_flow(case: Case, kind: Kind, tmp_path: Path) -> None:
    play(case, kind, tmp_path)
    tally.flows.add((case.name, kind.name))
