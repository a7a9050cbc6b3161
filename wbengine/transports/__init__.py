"""Ways to a broker: our own kombu transports, and which one a URL means.

`resolve(url, transport, transport_options)` says where to connect; see `target`.
"""

from __future__ import annotations

from wbengine.transports.target import RetryOptions, Target, resolve

__all__ = ["RetryOptions", "Target", "resolve"]
