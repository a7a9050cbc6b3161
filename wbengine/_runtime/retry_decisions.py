"""Decide which part of the flow is reverted after a failure, and whether it is retried."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wbengine import retry as retry_module
from wbengine import states
from wbengine._runtime.plan import Plan

#: `(retry_node, failed_node) -> retry.RETRY | retry.REVERT | retry.REVERT_ALL`. The first
#: controller is asked about the failed node, each further one about the previous controller.
Ask = Callable[[int, int], str]


class Resolution(NamedTuple):
    """The nodes to revert; with the intention RETRY, their controller then runs them again."""

    intention: str
    scope: range


def resolve(plan: Plan, node: int, ask: Ask, *, defer_reverts: bool) -> Resolution:
    """Decide what follows from the failure of `node`.

    Retry controllers are asked once each, from the inside out, until one returns something other
    than REVERT:

    - RETRY: its own flow is reverted and runs again.
    - REVERT_ALL, or no controller: the whole plan is reverted.
    - REVERT by all controllers: with `defer_reverts` the whole plan is reverted; without it, only
      the flow of the innermost controller (TaskFlow's default).

    Exceptions of `ask` propagate.

    :raises ValueError: if a controller returns another value; the message names both.
    """
    inner = plan.controller[node]
    failed, retry = node, inner
    while retry >= 0:
        decision = ask(retry, failed)
        if decision == retry_module.RETRY:
            return Resolution(states.RETRY, plan.scope(retry))
        if decision == retry_module.REVERT_ALL:
            return everything(plan)
        if decision != retry_module.REVERT:
            raise ValueError(
                f"on_failure() of retry {plan.names[retry]!r} must return"
                f" {retry_module.RETRY!r}, {retry_module.REVERT!r} or"
                f" {retry_module.REVERT_ALL!r}, got {decision!r} for the failure of"
                f" {plan.shown_name(failed)!r}"
            )
        failed, retry = retry, plan.controller[retry]
    if inner < 0 or defer_reverts:
        return everything(plan)
    return Resolution(states.REVERT, plan.scope(inner))


def everything(plan: Plan) -> Resolution:
    return Resolution(states.REVERT, range(len(plan)))
