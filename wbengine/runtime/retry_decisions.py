"""What a failure leads to: which part of the flow is undone, and whether it is tried again.

Pure: whoever calls `resolve` passes the function that asks a retry atom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wbengine import retry as retry_module
from wbengine import states
from wbengine.runtime.plan import Plan

#: `(retry_node, failed_node) -> retry.RETRY | retry.REVERT | retry.REVERT_ALL`.  The first retry is
#: asked about the node that failed, one further out about the retry inside it that gave up.
Ask = Callable[[int, int], str]


class Resolution(NamedTuple):
    """The nodes of `scope` (the whole plan, or a retry and its flow) are reverted; with the
    intention RETRY, that retry then runs them again.
    """

    intention: str
    scope: range


def resolve(plan: Plan, node: int, ask: Ask, *, defer_reverts: bool) -> Resolution:
    """Find out what follows from the failure of `node`.

    Retries are asked from the inside out, beginning with the one that answers for the node, each at
    most once, until one of them says something else than REVERT:

    - RETRY: its own subflow is reverted and runs again.
    - REVERT_ALL, or nobody to ask: the whole plan is reverted.
    - REVERT, and all retries around it say REVERT too: with `defer_reverts` the whole plan is
      reverted, without it only the subflow of the innermost one (TaskFlow's default).

    Whatever `ask` raises passes through.

    :raises ValueError: any other answer; the text names the retry and what it said.
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
                f"on_failure() of retry {plan.names[retry]!r} answered {decision!r} to the failure"
                f" of {plan.names[failed]!r}; it must be one of"
                f" {retry_module.RETRY!r}, {retry_module.REVERT!r}, {retry_module.REVERT_ALL!r}"
            )
        failed, retry = retry, plan.controller[retry]
    if inner < 0 or defer_reverts:
        return everything(plan)
    return Resolution(states.REVERT, plan.scope(inner))


def everything(plan: Plan) -> Resolution:
    """The whole plan is reverted."""
    return Resolution(states.REVERT, range(len(plan)))
