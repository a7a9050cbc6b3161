"""Outages of ZooKeeper that are shorter than the sessions of its boards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import brokers, servers, tcp_proxy
from tests.support.waiting import until
from wbengine import exceptions
from wbengine.jobs import backends as boards
from wbengine.jobs import base

zookeeper = pytest.importorskip("wbengine.jobs.backends.impl_zookeeper")


@pytest.fixture
def server() -> Iterator[brokers.Broker]:
    """Separate ZooKeeper, which the test may stop."""
    try:
        with brokers.coordinator("zookeeper") as found:
            yield found
    except servers.ServerMissing as error:
        servers.skip_or_fail(str(error))


def board_at(url: str) -> contextlib.AbstractContextManager[base.JobBoard]:
    return boards.backend("b", f"{url}?timeout=30")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "cut"])
def test_claim_with_lost_reply_does_not_block_job(
    how: str, server: brokers.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has stored the claim of a live session, but the board has no reply."""
    with tcp_proxy.forked(server.port) as proxy, board_at(server.url()) as other:
        url = server.url().replace(f":{server.port}", f":{proxy.port}")
        with board_at(url) as board:
            job = other.post("x")
            [same] = board.iterjobs()
            commit = board._commit  # type: ignore[attr-defined]

            def late(*args: Any) -> Any:
                """Send the claim; its reply does not arrive in time."""
                server.pause() if how == "stopped" else proxy.lose("to-client")
                return commit(*args)

            monkeypatch.setattr(zookeeper, "_TIMEOUT", 1.0)
            monkeypatch.setattr(board, "_commit", late)
            with pytest.raises(exceptions.JobFailure):
                board.claim(same, "me", expiry=15)
            monkeypatch.undo()
            if how == "stopped":
                server.resume()
            else:
                assert other.find_owner(job) == "me"  # the claim is stored
                proxy.cut()
            # Neither side has detected the loss, and the session of the claim continues.
            until(lambda: _claimed(board))
            assert other.find_owner(job) == "me"


def _claimed(board: base.JobBoard) -> bool:
    try:
        for job in board.iterjobs(only_unclaimed=True, ensure_fresh=True):
            board.claim(job, "me")
            return True
    except (exceptions.JobFailure, exceptions.UnclaimableJob):
        pass
    return False
