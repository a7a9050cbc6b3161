"""The result of `crash_everywhere`, for people."""

from __future__ import annotations

import linecache
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wbengine.testing._crashing.checks import Problem
from wbengine.testing._crashing.matrix import Matrix
from wbengine.testing._crashing.outcome import Event, Outcome
from wbengine.testing._crashing.schedules import At, Schedule

__all__ = ["Finding", "Report"]

#: Findings that the text of a report explains.
_SHOWN: Final = 5

#: Events that a timeline shows: the first and the last ones of a longer run.
_MAX_EVENTS: Final = 40

_MARKS: Final = {"fault": "!!", "operation": "->"}

#: Kinds of events whose text begins with the step.
_OF_STEPS: Final = ("step", "success", "failure")

#: Kinds of events that other events of the timeline imply.
_DETAILS: Final = ("refused", "success")


@dataclass(frozen=True)
class Finding:
    """A problem, and the smallest run that shows it.

    :ivar problem: the broken promise.
    :ivar schedule: the faults of the run; its text repeats it.
    """

    problem: Problem
    schedule: Schedule
    events: Sequence[Event]
    trace: Sequence[At]

    @property
    def check(self) -> str:
        """Name of the check."""
        return self.problem.check

    def __str__(self) -> str:
        return _text(self, "")


@dataclass
class Report:
    """The result of `crash_everywhere`: `assert report.ok, report`.

    :ivar seed: the seed of the pairs.
    :ivar findings: broken promises, each with the smallest run that shows it.
    :ivar singles: number of single faults; `singles_run` of them were injected.
    :ivar pairs: number of pairs of faults; `pairs_run` of them were injected.
    :ivar real_runs: number of runs with real processes; in `real_kills` of them, one was killed.
    :ivar seconds: how long it took.
    :ivar command: command that repeats the test with the faults that follow it; "" outside pytest.
    """

    seed: int
    findings: list[Finding] = field(default_factory=list)
    singles: int = 0
    singles_run: int = 0
    pairs: int = 0
    pairs_run: int = 0
    real_runs: int = 0
    real_kills: int = 0
    seconds: float = 0.0
    command: str = ""
    matrix: Matrix = field(default_factory=Matrix, init=False)

    @property
    def ok(self) -> bool:
        """Whether all single faults were injected and no promise was broken."""
        return not self.findings and self.singles_run == self.singles

    @property
    def runs(self) -> int:
        """Number of runs, without and with faults."""
        return 2 + self.singles_run + self.pairs_run + self.real_runs

    def add(self, outcome: Outcome, problems: Iterable[Problem]) -> None:
        """Add a run and its problems. Each problem is one finding, that of its first run."""
        self.matrix.add(
            outcome.schedule, outcome.trace, [self._number(outcome, each) for each in problems]
        )

    def _number(self, outcome: Outcome, problem: Problem) -> int:
        """Return the index of the finding of a problem."""
        for number, other in enumerate(self.findings):
            if (other.problem.check, other.problem.about) == (problem.check, problem.about):
                return number
        self.findings.append(Finding(problem, outcome.schedule, outcome.events, outcome.trace))
        return len(self.findings) - 1

    def save_html(self, path: str | os.PathLike[str], *, title: str = "crash_everywhere") -> None:
        """Write the report to a file, as one HTML page that loads nothing.

        It shows how many runs had which fault at which step, and the timelines of all findings.

        :raises OSError: if the file cannot be written.
        """
        from wbengine.testing._crashing import page

        figures = [
            ("runs", f"{self.runs:,}"),
            ("single faults", f"{self.singles_run:,} of {self.singles:,}"),
            ("pairs of faults", f"{self.pairs_run:,} of {self.pairs:,}"),
            ("took", f"{self.seconds:.1f} s"),
        ]
        findings = [
            (f"{each.check}: {each.problem.text}", _text(each, self.command))
            for each in self.findings
        ]
        page.save(path, title, figures, findings, self.matrix, self.seed)

    @property
    def _heading(self) -> str:
        """The first line of the text."""
        count = len(self.findings)
        return (
            f"{count} finding{'' if count == 1 else 's'} in {self.runs:,} runs"
            f" ({self.singles_run:,} of {self.singles:,} single faults,"
            f" {self.pairs_run:,} of {self.pairs:,} pairs, seed {self.seed})"
            + (f", {self.real_runs:,} of them with real processes," if self.real_runs else "")
            + f" in {self.seconds:.1f} s"
            + ("; the budget was too small" if self.singles_run < self.singles else "")
        )

    def __repr__(self) -> str:
        return f"<Report: {self._heading}>"

    def __str__(self) -> str:
        count = len(self.findings)
        lines = [self._heading]
        for number, finding in enumerate(self.findings[:_SHOWN], 1):
            lines += ["", f"{number}. {_text(finding, self.command)}"]
        if count > _SHOWN:
            lines += ["", f"{count - _SHOWN} more:"]
            lines += [f"  {each.check}: {each.problem.text}" for each in self.findings[_SHOWN:]]
        return "\n".join(lines)


def _text(finding: Finding, command: str) -> str:
    """Return a finding with its timeline.

    :param command: a command that repeats the run if the schedule follows it; "": an argument of
        `crash_everywhere` is shown instead.
    """
    problem, faults = finding.problem, str(finding.schedule)
    lines = [f"{problem.check}: {problem.text}"]
    if problem.line:
        lines.append(f"    at {_shown(problem.line)}: {_code(problem.line)}")
    lines += ["", *_timeline(finding.events, problem.event)]
    if not faults:
        return "\n".join(lines)
    repeat = (
        f"{command} {shlex.quote(faults)}" if command else f"crash_everywhere(..., only={faults!r})"
    )
    lines.append(f"  repeat it: {repeat}")
    return "\n".join(lines)


def _timeline(events: Sequence[Event], marked: int) -> Iterator[str]:
    shown = [
        (number, event)
        for number, event in enumerate(events)
        if number == marked or event.kind not in _DETAILS
    ]
    left_out = len(shown) - _MAX_EVENTS
    if left_out > 0:
        shown = [*shown[: _MAX_EVENTS // 2], *shown[-_MAX_EVENTS // 2 :]]
    for number, event in shown:
        if left_out > 0 and (number, event) == shown[_MAX_EVENTS // 2]:
            yield f"       ... {left_out} more"
        mark = "=>" if number == marked else _MARKS.get(event.kind, "  ")
        who = f"{event.step} " if event.kind in _OF_STEPS else ""
        where = f"  ({_shown(event.line)})" if event.line else ""
        yield f"    {mark} {who}{event.text}{where}"


def _code(line: str) -> str:
    name, _, number = line.rpartition(":")
    return linecache.getline(name, int(number)).strip()


def _shown(line: str) -> str:
    """Return a file and line, relative to the current folder if possible."""
    name, _, number = line.rpartition(":")
    path = Path(name)
    folder = Path.cwd()
    return f"{path.relative_to(folder) if path.is_relative_to(folder) else path}:{number}"
