"""A module of flows, with what such modules import: records that somebody forged name it."""

import functools
import os
import subprocess
from typing import Any

from tests.support import conducted
from wbengine import task
from wbengine.patterns import linear_flow

__all__ = ["conducted", "os", "subprocess"]


class Nothing(task.Task):
    def execute(self) -> None:
        pass


def make(name: str = "made") -> linear_flow.Flow:
    return linear_flow.Flow(name).add(Nothing())


class Shop:
    """It has what makes a flow."""

    @classmethod
    def opened(cls) -> linear_flow.Flow:
        return make("opened")

    def shut(self) -> None:
        """Of an object."""


SHOP = Shop()
FLOW = make("kept")
SHORT = functools.partial(make, "short")
CALLS = functools.partial(subprocess.call, ["touch", "called"])
COMMANDS: list[Any] = []


@functools.cache
def cached() -> linear_flow.Flow:
    return make("cached")
