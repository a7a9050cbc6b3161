"""Connections to brokers: wbengine's own transports, kombu's, and their selection by URL.

`registry.resolve(url, transport, transport_options)` returns the address of a broker.
"""

from __future__ import annotations

from wbengine.transports.registry import RetryOptions, Target, resolve

__all__ = ["RetryOptions", "Target", "resolve"]
