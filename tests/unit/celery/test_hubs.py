"""Hubs of connections that are gone."""

from __future__ import annotations

import os

from kombu import asynchronous

from wbengine.interop.celery import brokers


def fail() -> None:
    raise ConnectionResetError("it is gone")


def test_nothing_is_left_open_of_a_hub() -> None:
    """Not even if something was still to be read."""
    before = os.listdir("/proc/self/fd")
    hub = asynchronous.Hub()
    hub.call_later(0.0, print)
    next(hub.create_loop())
    hub.call_soon(fail)
    brokers.close_hub(hub)
    assert len(os.listdir("/proc/self/fd")) == len(before)
