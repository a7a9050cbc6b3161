"""Functions that create records of flows, under TaskFlow's names."""

from __future__ import annotations

from wbengine.persistence.base import (
    create_flow_detail,
    temporary_flow_detail,
    temporary_log_book,
)

__all__ = ["create_flow_detail", "temporary_flow_detail", "temporary_log_book"]
