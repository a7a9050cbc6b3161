"""Connections to brokers: kombu transports, and the choice of one by URL.

`resolve(url, transport, transport_options)` returns where to connect; see `registry`.
"""

from __future__ import annotations

from wbengine.transports.registry import RetryOptions, Target, resolve

__all__ = ["RetryOptions", "Target", "resolve"]
