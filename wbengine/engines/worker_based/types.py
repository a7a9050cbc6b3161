"""Who works: the workers an engine knows of, by the names that TaskFlow's users know."""

from __future__ import annotations

from wbengine.engines.worker_based.discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based.discovery.roster import NO_IDENTITY, TopicWorker

__all__ = ["NO_IDENTITY", "ProxyWorkerFinder", "TopicWorker"]
