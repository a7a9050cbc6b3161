"""Known workers of an engine, under TaskFlow's names."""

from __future__ import annotations

from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._discovery.roster import NO_IDENTITY, TopicWorker

__all__ = ["NO_IDENTITY", "ProxyWorkerFinder", "TopicWorker"]
