"""Ways to a broker: our own kombu transports, and which one a URL means.

`resolve(url, transport, transport_options)` says where to connect; see `registry`.
"""

from __future__ import annotations

from wbengine.transports.registry import RetryOptions, Target, resolve

__all__ = ["RetryOptions", "Target", "resolve"]
