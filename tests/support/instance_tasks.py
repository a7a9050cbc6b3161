"""A task that returns its argument, whose values have classes of several libraries."""

from __future__ import annotations

from typing import Any

from wbengine import task


@task.task(provides="returned")
def hand_on(values: Any) -> Any:
    return values
