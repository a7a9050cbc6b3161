"""Completed futures."""

from __future__ import annotations

from concurrent import futures
from typing import TypeVar

_T = TypeVar("_T")


def make_completed_future(result: _T) -> futures.Future[_T]:
    future: futures.Future[_T] = futures.Future()
    future.set_result(result)
    return future
