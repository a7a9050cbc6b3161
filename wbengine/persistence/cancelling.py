"""Cancel a flow that no engine runs: its next engine reverts it."""

from __future__ import annotations

import time

from wbengine import states
from wbengine.persistence import base, leases, owners

__all__ = ["cancel_idle"]


def cancel_idle(connection: base.Connection, uuid: str, reason: str | None) -> bool:
    """Mark a flow as cancelled, and make its job due. Return False if the flow has ended.

    The lease is needed, because an engine may have run the flow since the last read.

    :raises FlowBusy: if an engine runs the flow.
    """
    owner = owners.new(momentary=True)
    try:
        lease = connection.acquire_lease(uuid, str(owner), leases.LEASE_SECONDS)
        try:
            detail = connection.get_flow_details(uuid, lazy=True)
            if detail.state in states.FLOW_ENDED:
                return False
            detail.cancel(time.time(), reason)
            connection.save_changes(detail, (), lease=lease)
            connection.make_job_due(uuid)
            return True
        finally:
            connection.release_lease(lease)
    finally:
        owner.end_run()
