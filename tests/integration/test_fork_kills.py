"""Processes that are killed while they fork a flow, or revert it for its fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import fork_flows
from tests.support.killed import is_killed, points
from wbengine import operations, states
from wbengine.persistence import backends, models


def run_jobs(url: str, never_resolve: bool = False) -> None:
    with backends.backend(url) as store, fork_flows.board_of(store) as board:
        fork_flows.run(store, board, never_resolve=never_resolve)


def fork(url: str, uuid: str, undo: bool) -> None:
    with backends.backend(url) as store:
        operations.fork(store, uuid, "B", own=True, undo=undo)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture
def failed(url: str, tmp_path: Path) -> str:
    """UUID of a flow whose last task failed."""
    with backends.backend(url) as store, fork_flows.board_of(store) as board:
        uuid = fork_flows.submit(store, board, fork_flows.noted, folder=str(tmp_path))
    run_jobs(url, never_resolve=True)
    (tmp_path / "fixed").touch()
    (tmp_path / "effects").unlink()
    return uuid


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []


def without_repetitions(names: list[str]) -> list[str]:
    """Return the names without those that a run after a kill repeated."""
    return [name for number, name in enumerate(names) if name not in names[:number]]


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("number", range(1, 11))
def test_fork_is_stored_completely_or_not_at_all(
    url: str, failed: str, number: int, undo: bool
) -> None:
    was_killed = is_killed(number, fork, url, failed, undo)
    with backends.backend(url) as store, store.get_connection() as connection:
        flow = connection.get_flow_details(failed)
        uuids = {row.uuid for row in connection.list_flows().flows}
        moved = {
            record.meta_value(models.RESULT_OWNER) for record in flow if record.state == "SUCCESS"
        } - {None}
        forks = {entry["flow"] for entry in flow.forks}
        commands = connection.commands([failed])
    assert uuids == {failed, *forks} and moved == forks
    assert was_killed or len(forks) == 1
    assert bool(commands) == (undo and bool(forks))


@pytest.mark.parametrize(
    "number", points([*range(5, 13), 15, 20, 25, 31, 36, 42, 46, 52, 60, 70, 80])
)
def test_fork_with_undo_starts_after_reversion_despite_a_kill(
    url: str, failed: str, number: int, tmp_path: Path
) -> None:
    fork(url, failed, undo=True)
    is_killed(number, run_jobs, url)
    with backends.backend(url) as store:
        fork_flows.expire_claims(store)
    run_jobs(url)
    run_jobs(url)
    names = effects(tmp_path)
    assert without_repetitions(names) == ["undo C", "undo B", "B", "C"]
    assert "A" not in names and "undo A" not in names
    with backends.backend(url) as store:
        flow = fork_flows.flow_of(store, failed)
        assert flow.state == states.REVERTED and flow.successor is not None
        assert fork_flows.flow_of(store, flow.successor).state == states.SUCCESS
