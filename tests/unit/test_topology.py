"""Peers that receive broadcasts on transports without an exchange."""

from __future__ import annotations

import types
from typing import Any

import pytest

from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._messages import envelope as env

CHANNEL: Any = types.SimpleNamespace(
    queue_declare=lambda name: types.SimpleNamespace(message_count=0)
)


@pytest.fixture
def direct() -> topology.Topology:
    return topology.Topology("x", "me", (), None, direct=True)


def receivers(layout: topology.Topology, now: float) -> list[str]:
    return layout.queues_of(CHANNEL, env.ALL_WORKERS, now)


@pytest.mark.parametrize("name", [None, 5, True, b"w", ["w"], {"w": 1}, "", "a b", "\0"])
def test_peer_with_invalid_name_receives_no_broadcasts(
    direct: topology.Topology, name: Any
) -> None:
    direct.record_peer("w", 1.0)
    direct.record_peer(name, 1.0)
    assert receivers(direct, 2.0) == ["w", "x.wbe.workers"]


def test_silent_peer_receives_no_broadcasts(direct: topology.Topology) -> None:
    direct.record_peer("old", 1.0)
    direct.record_peer("new", 31.0)
    assert receivers(direct, 61.0) == ["new", "x.wbe.workers"]
    direct.record_peer("old", 62.0)
    assert receivers(direct, 63.0) == ["new", "old", "x.wbe.workers"]
