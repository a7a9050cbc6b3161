"""ZooKeeper clients, for programs that share one client among job boards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wbengine.jobs.backends import impl_zookeeper

if TYPE_CHECKING:
    from kazoo.client import KazooClient

__all__ = ["finalize_client", "make_client"]


def make_client(conf: Mapping[str, Any]) -> KazooClient:
    """Create a client from the options in `conf`; the caller starts it.

    The options are the client options of `impl_zookeeper.ZookeeperJobBoard`. Other keys are
    ignored, so that `conf` may be the configuration of a board.

    :raises ValueError: if the value of an option is invalid.
    """
    known_options = impl_zookeeper.CLIENT_OPTIONS
    return impl_zookeeper.make_client({name: conf[name] for name in known_options if name in conf})


def finalize_client(client: KazooClient) -> None:
    """Stop and close a client, even if it was not started."""
    client.stop()
    client.close()
