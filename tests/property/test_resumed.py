"""Random flows with waits, Maps, coroutines and overlapping retries, on all engines and stores.

They are suspended or cancelled, given too little time, or taken over by other engines.
`WBENGINE_RESUMED=1000` runs so many flows, `WBENGINE_SEED=n` one alone.
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

#: How many flows: a serial engine shows most, for it is the same each time.
ON_KINDS = {"serial": 80, "threads": 24, "processes": 8, "memory": 16, "filesystem": 6}
ON_STORES = {"dir": 24, "sqlite": 16, "postgresql": 4, "mysql": 4}
#: Seconds that a task takes at most where several are under way: something is to happen meanwhile.
PACE = {"threads": 0.02, "memory": 0.02}


def seeds(most: int) -> list[int]:
    return list(range(amount(most, 25 * most, "WBENGINE_RESUMED"))) if SEED is None else [int(SEED)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where there is one, on a disk that need not be waited for."""
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as place:
        yield Path(place)


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[kinds.Kind]:
    with kinds.kind(request.param, tmp_path, "tests.contract.flows.fated") as made:
        yield made


def lead(seed: int, kind: kinds.Kind, backend: base.Backend, folder: Path) -> Life:
    """One life, up to its end.

    :raises AssertionError: it went wrong; tells the seed, the flow and all that happened.
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


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", kinds.NAMES, indirect=True)
def test_interrupted_flows_on_all_kinds(kind: kinds.Kind, folder: Path) -> None:
    """Each life is one that the oracle allows, and its end is that of an undisturbed one."""
    with kinds.kind("serial", folder, "") as serial, backends.backend("memory://") as backend:
        for seed in seeds(ON_KINDS[kind.name]):
            life = lead(seed, kind, backend, folder)
            if not life.comparable:
                continue
            place = folder / f"{seed}-undisturbed"
            place.mkdir()
            undisturbed = Life(World(seed, place, troubled=False), serial, backend).run()
            assert life.end() == undisturbed.end(), f"WBENGINE_SEED={seed} on {kind.name}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("store", ON_STORES)
def test_interrupted_flows_on_all_stores(
    store: str, folder: Path, database_servers: servers.Lazy
) -> None:
    with contextlib.ExitStack() as stack:
        conf = stack.enter_context(places.place(store, folder, database_servers))
        backend = stack.enter_context(backends.backend(conf))
        serial = stack.enter_context(kinds.kind("serial", folder, ""))
        for seed in seeds(ON_STORES[store]):
            lead(seed, serial, backend, folder)


def test_interrupted_lives_are_diverse(folder: Path) -> None:
    """What the lives above are made of; without it they could agree on nothing much."""
    seen: Counter[str] = Counter()
    with kinds.kind("serial", folder, "") as serial, backends.backend("memory://") as backend:
        for seed in range(80):
            life = lead(seed, serial, backend, folder)
            seen.update(described(life))
    few = {what: seen[what] for what in WANTED if seen[what] < 3}
    assert not few, f"{few} of {seen}"


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


#: Each has to be seen in three flows of eighty at least.
WANTED = (
    "SUCCESS", "REVERTED", "FAILURE", "REVERT_FAILURE", "IGNORE", "PENDING", "RETRYING",
    "said RETRY", "said REVERT", "said REVERT_ALL", "yes", "no", "raised", "suspended", "lost",
    "resumed", "items", "followed", "comparable", "several runs",
    "LeaseLost", "DeadlineExceeded", "Cancelled",
)  # fmt: skip
