"""Groups of equal results of `_code_checks`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wbengine.engines import _code_checks
from wbengine.operations._deploy_checks import Checked, Target

__all__ = ["Finding", "Findings"]

#: Results that are problems, in the order in which they are shown.
_PROBLEMS: Final = (
    _code_checks.BLOCKED,
    _code_checks.REFUSED,
    _code_checks.FAILS,
    _code_checks.ABANDONS,
    _code_checks.UNCLEAR,
)
_MAX_EXAMPLES: Final = 3


@dataclasses.dataclass
class Finding:
    """Flows with the same result for the same reason.

    :ivar result: one of the constants of `_code_checks`.
    :ivar name: name of the first flow.
    :ivar factory: name of the factory of the flows, or None if their records cannot be read.
    :ivar text: the reason for the first flow, in one line.
    :ivar workflow: name of the workflow, if a step differs.
    :ivar steps: the first and the last position at which a step differs, or None.
    :ivar recorded: the recorded call of the first flow.
    :ivar actual: how the code differs from it.
    :ivar place: file and line of the code.
    :ivar repair: line that makes the change depend on the version of the code.
    :ivar hint: which code to put below this line.
    :ivar examples: uuids of some flows.
    """

    result: str
    name: str
    factory: str | None
    text: str
    workflow: str | None
    steps: tuple[int, int] | None
    recorded: str | None
    actual: str | None
    place: str | None
    repair: str | None
    hint: str | None
    count: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, target: Target, step: int | None) -> None:
        self.count += 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(target.uuid)
        if step is not None and self.steps is not None:
            self.steps = min(step, self.steps[0]), max(step, self.steps[1])


class Findings:
    """The results of a check, grouped.

    :ivar count: number of checked flows.
    :ivar on_added: called after each flow, or None.
    """

    def __init__(self) -> None:
        self.count = 0
        self.on_added: Callable[[], object] | None = None
        self._counts: Counter[str] = Counter()
        self._by_key: dict[object, Finding] = {}

    def add(self, checked: Checked) -> None:
        target, verdict = checked
        self.count += 1
        self._counts[verdict.result] += 1
        if verdict.text is not None:
            finding = self._by_key.get(key := _key(checked))
            if finding is None:
                steps = None if verdict.step is None else (verdict.step, verdict.step)
                finding = self._by_key[key] = Finding(
                    verdict.result, target.name, verdict.factory, verdict.text, verdict.workflow,
                    steps, verdict.recorded, verdict.actual, verdict.place, verdict.repair,
                    verdict.hint,
                )  # fmt: skip
            finding.add(target, verdict.step)
        if self.on_added is not None:
            self.on_added()

    @property
    def continuing(self) -> int:
        """Number of flows that the code can continue."""
        return self._counts[_code_checks.CONTINUES]

    @property
    def problems(self) -> int:
        """Number of the other flows."""
        return self.count - self.continuing

    def problem_counts(self) -> dict[str, int]:
        """Return the number of the other flows by result."""
        return {result: self._counts[result] for result in _PROBLEMS if self._counts[result]}

    def sorted(self) -> list[Finding]:
        """Return the findings: problems first, those with most flows first."""
        order = (*_PROBLEMS, _code_checks.CONTINUES)
        return sorted(
            self._by_key.values(), key=lambda each: (order.index(each.result), -each.count)
        )

    def to_dict(self) -> Mapping[str, Any]:
        return {
            "flows": self.count,
            "continue": self.continuing,
            "problems": self.problem_counts(),
            "findings": [dataclasses.asdict(each) for each in self.sorted()],
        }


def _key(checked: Checked) -> object:
    """Return what equal findings have in common: not the values of arguments."""
    target, verdict = checked
    if verdict.workflow is None:
        text = (verdict.text or "").replace(target.uuid, "").replace(repr(target.name), "")
        return verdict.result, verdict.factory or target.name, text
    calls = (_without_arguments(verdict.recorded), _without_arguments(verdict.actual))
    return verdict.result, verdict.factory, verdict.workflow, calls, verdict.place


def _without_arguments(call: str | None) -> Iterable[str]:
    return () if call is None else call.partition("(")[0]
