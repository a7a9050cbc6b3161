"""Flows with shared large values, killed processes and concurrent sweeps."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support import dying_values, python
from tests.support.amounts import amount
from wbengine import _payloads, engines
from wbengine._payloads import sweeping
from wbengine.operations import _sweeping
from wbengine.persistence import backends, base
from wbengine.types._references import Reference

#: Number of flows.
FLOWS = amount(8, 30, "PAYLOAD_FLOWS")
#: Seconds in which a flow that is being submitted is stored.
GRACE = 15.0


def references(backend: base.Backend) -> set[str]:
    """Return the addresses to which the records of all flows refer."""
    found: set[str] = set()

    def collect(value: object) -> None:
        if isinstance(value, Reference):
            found.add(value.address)
        elif isinstance(value, dict):
            for each in value.values():
                collect(each)
        elif isinstance(value, list | tuple):
            for each in value:
                collect(each)

    with contextlib.closing(backend.get_connection()) as connection:
        for uuid in dying_values.stored(backend):
            for record in connection.get_flow_details(uuid):
                collect([record.results, record.revert_results, dict(record.own_meta)])
    return found


@pytest.mark.slow
@pytest.mark.timeout(60 + 4 * FLOWS)
def test_no_value_is_missing_and_none_is_left(tmp_path: Path) -> None:
    uri, place = f"sqlite:///{tmp_path}/flows.db", str(tmp_path / "payloads")
    stop, begun = threading.Event(), 0
    with backends.backend({"connection": uri, "payloads": place}) as backend:
        sweeps = list[int]()

        def sweep() -> None:
            while not stop.wait(0.05):
                sweeps.append([*_sweeping.sweep(backend, GRACE, force=True)][-1].deleted)

        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        try:
            while begun < FLOWS:
                command = ["-m", dying_values.__name__, uri, place, FLOWS]
                with python.start(
                    command, stdout=subprocess.PIPE, cwd=python.REPOSITORY
                ) as process:
                    assert process.stdout is not None
                    for _ in range(random.randrange(1, 8)):
                        begun += bool(process.stdout.readline())
                    time.sleep(random.random() * 0.3)
                    process.kill()
            dying_values.resume(backend)
        finally:
            stop.set()
            sweeper.join()
        assert sweeps
        flows = dying_values.stored(backend)
        assert flows and set(flows.values()) == {"SUCCESS"}
        payloads = _payloads.opened(place)
        assert payloads is not None
        # As if a day had passed.
        later = time.time() + 2 * sweeping.GRACE_SECONDS
        swept = list(sweeping.sweep(payloads, set(flows).intersection, later))[-1]
        names = {path.name for path in Path(place).glob("data/*/*")}
        needed = references(backend)
        assert needed - names == set(), "missing"
        assert names - needed == set(), "orphans"
        assert swept.kept == len(names)
        for uuid in flows:
            values = engines.handle(uuid, backend=backend).result()
            expected = dying_values.text_of(values["number"] % 5)
            assert values["text"] == expected
            assert values["longer"] == expected + dying_values.text_of(values["number"] % 7)
