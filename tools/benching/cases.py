"""The cases: what is run, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tools.benching.systems import LOCALS, WIRES


@dataclass(frozen=True, eq=False)
class Case:
    """What a driver's method of this name does, with these sizes."""

    name: str
    text: str
    sizes: Mapping[str, int]
    media: tuple[str, ...] = WIRES
    #: Of which drivers; nothing: of all.
    drivers: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """How many tasks one run has."""
        found = self.sizes
        return found["layers"] * found["width"] if "layers" in found else found["tasks"]

    def smaller(self, times: int) -> Case:
        """The same with fewer tasks, as a warm-up or to try it out."""
        sizes = {
            name: value if name in ("size", "width") else max(value // times, 2)
            for name, value in self.sizes.items()
        }
        return replace(self, sizes=sizes)

    def suits(self, driver: str) -> bool:
        """Whether a driver knows how to do it."""
        return not self.drivers or driver in self.drivers


#: On each medium.
RUN = {
    "wide": (
        Case("wide", "tasks that do nothing, all at once", {"tasks": 2000}),
    ),
    "chain": (
        Case("chain", "tasks each fed by the last, whose result the caller has got",
             {"tasks": 200}),
        # What a caller does who needs the last result only; the way there is nobody's to see.
        Case("pipeline", "tasks each fed by the last, sent on by the worker", {"tasks": 200},
             drivers=("celery", "dramatiq", "huey")),
    ),
    "diamond": (
        Case("diamond", "layers of 40 tasks, each begins when the last has ended",
             {"layers": 50, "width": 40}),
    ),
    "payload": (
        Case("payload", "tasks that are given 100 KB and give them back",
             {"tasks": 200, "size": 100_000}),
    ),
    "local": (
        Case("wide", "tasks that do nothing, all at once", {"tasks": 1000}, LOCALS),
        Case("linear", "tasks that do nothing, one after the other", {"tasks": 1000}, LOCALS),
    ),
}  # fmt: skip
#: What is measured in another manner.
OTHERS = ("scale", "start", "idle", "profile")
NAMES = (*RUN, *OTHERS)


def of(names: list[str], medium: str, divide: int = 1) -> list[Case]:
    """Those of some groups that are run on a medium."""
    found = [one for name in names if name in RUN for one in RUN[name] if medium in one.media]
    return [one.smaller(divide) for one in found] if divide > 1 else found
