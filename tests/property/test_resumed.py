"""Random flows with waits, Maps, coroutines and overlapping retries, on all engines and stores.

They are suspended, cancelled, limited by deadlines, or resumed by other engines.
`WBENGINE_RESUMED=1000` runs more flows, `WBENGINE_SEED=n` a single one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import places
from tests.contract.flows import kinds
from tests.property.resumed import Life, World
from tests.support import servers
from tests.support.amounts import amount
from wbengine.persistence import backends, base

SEED = os.environ.get("WBENGINE_SEED")

#: Number of flows.  The serial engine runs most, because it is deterministic.
ON_KINDS = {"serial": 80, "threads": 24, "processes": 8, "memory": 16, "filesystem": 6}
ON_STORES = {"sqlite": 24, "postgresql": 4, "mysql": 4}
#: Maximum duration of a task in seconds on engines with concurrent tasks, so that events overlap.
PACE = {"threads": 0.02, "memory": 0.02}


def seeds(most: int) -> list[int]:
    return list(range(amount(most, 6 * most, "WBENGINE_RESUMED"))) if SEED is None else [int(SEED)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a new folder, in memory if possible."""
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as place:
        yield Path(place)


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[kinds.Kind]:
    with kinds.kind(request.param, tmp_path, "tests.contract.flows.fated") as made:
        yield made


def lead(seed: int, kind: kinds.Kind, backend: base.Backend, folder: Path) -> Life:
    """Run one flow until its end.

    :raises AssertionError: if the run violates a rule; contains the seed, the flow and all events
    """
    place = folder / f"{seed}-{kind.name}"
    place.mkdir()
    world = World(seed, place, pace=PACE.get(kind.name, 0.0))
    try:
        return Life(world, kind, backend).run()
    except Exception as error:
        told = "\n".join(map(str, world.told()))
        raise AssertionError(
            f"WBENGINE_SEED={seed} on {kind.name}: {error!r}\n{world.spec!r}\n{told}"
        ) from error


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", kinds.NAMES, indirect=True)
def test_interrupted_flow_matches_oracle_on_engine(kind: kinds.Kind, folder: Path) -> None:
    """The oracle accepts each run, and the final state is that of an uninterrupted run.

    The flows of the serial engine are diverse. Otherwise the comparison would prove little.
    """
    seen: Counter[str] = Counter()
    with kinds.kind("serial", folder, "") as serial, backends.backend("memory://") as backend:
        for seed in seeds(ON_KINDS[kind.name]):
            life = lead(seed, kind, backend, folder)
            seen.update(described(life))
            if not life.comparable:
                continue
            place = folder / f"{seed}-undisturbed"
            place.mkdir()
            undisturbed = Life(World(seed, place, troubled=False), serial, backend).run()
            assert life.end() == undisturbed.end(), f"WBENGINE_SEED={seed} on {kind.name}"
    if kind.name == "serial" and SEED is None:
        few = {what: seen[what] for what in WANTED if seen[what] < 3}
        assert not few, f"{few} of {seen}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("store", ON_STORES)
def test_interrupted_flow_matches_oracle_on_store(
    store: str, folder: Path, database_servers: servers.Databases
) -> None:
    with contextlib.ExitStack() as stack:
        conf = stack.enter_context(places.place(store, folder, database_servers))
        backend = stack.enter_context(backends.backend(conf))
        serial = stack.enter_context(kinds.kind("serial", folder, ""))
        for seed in seeds(ON_STORES[store]):
            lead(seed, serial, backend, folder)


def described(life: Life) -> Iterator[str]:
    world = life.world
    told = world.told()
    events = {words[1] for words in told if words[0] == "event"}
    yield from events
    yield life.state()
    for error in life.errors:
        yield type(error).__name__
    bodies = {words[1] for words in told if words[0] == "body"}
    yield from {"items" for name in bodies if "[" in name}
    if life.replay.complete:
        yield "followed"
    if life.comparable:
        yield "comparable"
    if len(life.errors) > 3:
        yield "several runs"


#: Events that must occur in at least three of eighty flows.
WANTED = (
    "SUCCESS", "REVERTED", "FAILURE", "REVERT_FAILURE", "IGNORE", "PENDING", "RETRYING",
    "said RETRY", "said REVERT", "said REVERT_ALL", "yes", "no", "raised", "suspended", "lost",
    "resumed", "items", "followed", "comparable", "several runs",
    "LeaseLost", "DeadlineExceeded", "Cancelled",
)  # fmt: skip
