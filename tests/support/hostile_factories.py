"""A module of flow factories with common imports, which forged records name."""

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


def make_again() -> linear_flow.Flow:
    return make("again")


class Shop:
    """A class with a class method that returns a flow."""

    @classmethod
    def opened(cls) -> linear_flow.Flow:
        return make("opened")

    def shut(self) -> None:
        """Do nothing. It is a method of an instance."""


SHOP = Shop()
FLOW = make("kept")
SHORT = functools.partial(make, "short")
CALLS = functools.partial(subprocess.call, ["touch", "called"])
COMMANDS: list[Any] = []


@functools.cache
def cached() -> linear_flow.Flow:
    return make("cached")
