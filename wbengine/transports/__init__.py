"""Connections to brokers: wbengine's own transports, kombu's, and their selection by URL.

`resolve(url, transport, transport_options)` returns the address of a broker. A package that adds a
transport needs only the names that this module exports.
"""

from __future__ import annotations

from wbengine._configuration.named_options import option
from wbengine._introspection.object_names import check_label
from wbengine.transports._broker import MAX_BATCH_BYTES, Broker, Delivery, Finish, Frame
from wbengine.transports._kinds import (
    BrokerKind,
    RetryOptions,
    Target,
    check_options,
    kombu_target,
    resolve,
)
from wbengine.transports._ledger import Claim, Fence, Listed, Opening, Page, Row, RowAccess
from wbengine.transports._nudge import Nudge
from wbengine.transports._routing import RoutingTable

__all__ = [
    "MAX_BATCH_BYTES", "Broker", "BrokerKind", "Claim", "Delivery", "Fence", "Finish", "Frame",
    "Listed", "Nudge", "Opening", "Page", "RetryOptions", "RoutingTable", "Row", "RowAccess",
    "Target", "check_label", "check_options", "kombu_target", "option", "resolve",
]  # fmt: skip
