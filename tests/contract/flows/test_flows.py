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
from tests.contract.flows.kinds import DATABASES, KEPT, NAMES, Kind
from tests.support import tally

#: Modules that register their flows on import.
MODULES = (arguments, shapes, deciding, retrying, failing, steering, values, newer, maps, waiting)


#: Kinds for which a third of the flows is enough: they differ from another kind in the store of the
#: records, in the pool or in the transport.
VARIANTS = (KEPT, "processes", "filesystem", *DATABASES)
RUNS = [
    (name, case)
    for name in (*NAMES, KEPT, *DATABASES)
    for case in (CASES[::3] if name in VARIANTS else CASES)
    if case.runs_on(name)
]
#: Engines and workers on MySQL poll, so most of its flows are slow.
SLOW = {("mysql", case.name) for number, case in enumerate(CASES) if number % 24}


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(
            name,
            case,
            id=f"{name}-{case.name}",
            marks=[pytest.mark.slow] if (name, case.name) in SLOW else [],
        )
        for name, case in RUNS
    ],
    indirect=["kind"],
)
def test_flow(case: Case, kind: Kind, tmp_path: Path) -> None:
    play(case, kind, tmp_path)
    tally.flows.add((case.name, kind.name))
