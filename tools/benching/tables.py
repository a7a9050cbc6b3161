"""The tables of the page on performance: from bench.json, scale.json and counts.json, never typed.

`tools/bench` prints them when it has measured, `tools/bench --table` those of the last run, and
`tools/bench --page` writes them into the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tools.benching import profiling, rst, telling
from tools.benching.systems import LOCALS, SYSTEMS
from tools.benching.telling import COMPARED, MARKS, STARTED

Found = Mapping[str, Any]


class Grid(NamedTuple):
    """A table; all columns but the first of them, which are `texts`, are figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    #: Of cells that hold whole sentences: of each column, in percent.
    widths: Sequence[int] = ()

    def lines(self) -> Iterator[str]:
        if self.widths:
            yield from rst.columns(self.head, self.rows, self.widths)
        else:
            yield from rst.table(self.head, self.rows)
        yield ""


MEDIA = {"redis": "Redis", "amqp": "RabbitMQ", "filesystem": "a folder"}
OURS = "wbengine"
SHAPES = {"unordered": "all at once", "linear": "in a line", "nested": "nested flows"}


class Cells:
    """What was measured, by case, medium and system."""

    def __init__(self, found: Found) -> None:
        self._cells = {(c["case"], c["medium"], c["system"]): c for c in found["cells"]}
        self.titles = {one["name"]: one["title"] for one in found["systems"]}

    def get(self, case: str, medium: str, system: str) -> Found:
        return self._cells.get((case, medium, system), {})

    def cases(self, medium: str) -> list[str]:
        return list(dict.fromkeys(case for case, on, _ in self._cells if on == medium))

    def systems(self, medium: str) -> list[str]:
        """Those that have been measured on it, the fastest in the first case first."""
        there = {system for _, on, system in self._cells if on == medium}
        case = self.cases(medium)[0]
        return sorted(there, key=lambda name: -self.get(case, medium, name).get("rate", 0))

    def rate(self, case: str, medium: str, system: str) -> str:
        """Tasks per second, and how many times that ours is."""
        cell = self.get(case, medium, system)
        ours = self.get(COMPARED.get(case, case), medium, OURS).get("rate")
        if "rate" in cell:
            times = f" ({ours / cell['rate']:.1f})" if ours and not system.startswith(OURS) else ""
            return f"{cell['rate']:,.0f}{times}"
        if "limit" in cell:
            times = f" (> {ours / cell['limit']:.1f})" if ours else ""
            return f"< {cell['limit']:,.0f}{times}"
        return "failed" if cell else ""


# Of bench.json.


def run(found: Found) -> Iterator[str]:
    """When, where, what."""
    facts = found["facts"]
    names = {"redis": "Redis", "amqp": "RabbitMQ"}
    brokers = [f"{names[one]} {version}" for one, version in facts.get("brokers", {}).items()]
    peers = {
        f"{name} {version}": None
        for one in found["systems"]
        for name, version in one["versions"].items()
        if name != OURS
    }
    yield (
        f"Measured on {facts['when'][:10]} at {facts['when'][11:16]} UTC: wbengine"
        f" {facts['wbengine']}, Python {facts['python']}; {facts['machine']}"
        f" ({facts['processor']});"
    )
    yield f"{', '.join(brokers)}; medians of {facts['repeat']} runs, systems in turn."
    yield f"The load of the machine was {facts['load at the start']} when it began."
    yield f"Installed: {', '.join(sorted(peers))}."


def rates(found: Found) -> Iterator[str]:
    cells = Cells(found)
    for medium, title in MEDIA.items():
        cases = cells.cases(medium)
        if not cases:
            continue
        yield f"*Over {title}*:"
        yield ""
        rows = (
            [cells.titles[system], *(cells.rate(case, medium, system) for case in cases)]
            for system in cells.systems(medium)
        )
        yield from rst.table(("tasks per second", *cases), rows)
        yield ""


def local(found: Found) -> Iterator[Grid]:
    cells = Cells(found)
    pairs = [(medium, case) for medium in LOCALS for case in cells.cases(medium)]
    if not pairs:
        return
    names = [one for one in (OURS, "taskflow") if any(cells.get(c, m, one) for m, c in pairs)]
    rows = [
        [f"{medium}, {case}", *(cells.rate(case, medium, name) for name in names)]
        for medium, case in pairs
    ]
    head = ("tasks per second", *(cells.titles[name] for name in names))
    yield Grid("Without workers", head, rows)


def large(found: Found) -> Iterator[Grid]:
    rows = [
        [SHAPES.get(one["shape"], one["shape"]), f"{one['tasks']:,}", f"{one['all']:.3f}",
         f"{1e6 * one['all'] / one['tasks']:.1f}", f"{one['peak_mb']:.0f}",
         "" if one["growth"] is None else f"{one['growth']:.2f}"]
        for one in found["scale"]
    ]  # fmt: skip
    if rows:
        head = ("flow", "tasks", "seconds", "µs a task", "peak MB", "exponent")
        yield Grid("Flows that grow", head, rows)


def beginning(found: Found) -> Iterator[Grid]:
    """Start-up, and workers that wait."""
    titles = Cells(found).titles
    rows = [
        [STARTED.get(name, f"first engine: {name.removeprefix('load ')}"), f"{took:.3f} s"]
        for name, took in found["start"].items()
    ]
    rows += [
        [f"{titles[one['system']]}: worker has done something, {one['medium']}",
         f"{one['seconds']:.2f} s"]
        for one in found["ready"] if one["medium"] not in LOCALS
    ]  # fmt: skip
    if rows:
        yield Grid("Start-up", ("to begin", "takes"), rows)
    idle = [
        [titles[one["system"]], one["medium"], f"{one['processor']:.2f} %",
         f"{one['memory']:.0f}", str(one["processes"])]
        for one in found["idle"]
    ]  # fmt: skip
    if idle:
        head = ("worker that waits", "over", "of a core", "MB", "processes")
        yield Grid("Idle", head, idle, texts=2)


def promises(found: Found) -> Iterator[Grid]:
    rows = [
        [MARKS[one["kept"]], one["text"], one["promised"], one["found"]] for one in found["checks"]
    ]
    if rows:
        yield Grid("Promises", ("kept", "what", "promised", "found"), rows, texts=4)


def defaults(found: Found) -> Iterator[Grid]:
    known = {one["name"]: one["versions"] for one in found["systems"]}
    rows = [
        [one.title, one.slots, one.defaults, one.helped, one.log]
        for one in SYSTEMS if one.name in known
    ]  # fmt: skip
    head = ("system", "at once", "by default", "told otherwise", "log")
    yield Grid("By default", head, rows, texts=5, widths=(12, 10, 42, 22, 14))


def profile(found: Found) -> Iterator[Grid]:
    """Where the time of each process goes, as it was sampled."""
    looked = [profiling.Profile(**one) for one in found.get("profiles", ())]
    rows = [
        [name, *(f"{100 * one.parts.get(name, 0):.0f} %" for one in looked)]
        for name in telling.parts(looked)
    ]
    if looked:
        head = ("of the samples", *(f"{one.case}, {one.side}" for one in looked))
        yield Grid("Where the time goes", head, rows)


def costs(found: Found) -> Iterator[Grid]:
    """Processor time of a task, by process."""
    cells, names = Cells(found), ("caller_us", "workers_us", "broker_us")
    rows = [
        [f"{case}, {title}", cells.titles[system], *(f"{cell[name]:,.0f}" for name in names),
         f"{sum(cell[name] for name in names):,.0f}"]
        for medium, title in MEDIA.items()
        for case in ("wide", "chain") if case in cells.cases(medium)
        for system in cells.systems(medium)
        if "caller_us" in (cell := cells.get(case, medium, system))
    ]  # fmt: skip
    if rows:
        head = ("CPU µs of a task", "system", "caller", "workers", "broker", "all")
        yield Grid("Processor time", head, rows, texts=2)


# Of scale.json, and of both.


def stages(found: Found, scale: Found) -> Iterator[str]:
    """Where the microseconds of a wide task over Redis are, as far as parts are measured alone."""
    cells, grown = Cells(found), scale["rows"][-1]
    serial = cells.get("wide", "serial", OURS)
    whole = cells.get("wide", "redis", f"{OURS}-shared") or cells.get("wide", "redis", OURS)
    if "rate" not in serial or "caller_us" not in whole:
        return
    core, book, decides = 1e6 / serial["rate"], grown["request_us"], grown["worker_us"]
    parts = [
        ("engine", "plan, schedule, records (the serial engine)", core),
        ("engine", "request book and finder: requests made, answers heard", book),
        ("engine", "threads, connections, ledger, encoding on the way", None),
        ("worker", "its decisions, claims and answers", decides),
        ("worker", "threads, connections, ledger, the call of the task", None),
        ("broker", "Redis: queues and ledger", whole["broker_us"]),
    ]
    rest = {
        "engine": whole["caller_us"] - core - book,
        "worker": whole["workers_us"] - decides,
    }
    rows = [
        [who, what, f"{rest[who] if one is None else one:,.0f}"] for who, what, one in parts
    ]  # fmt: skip
    yield from rst.table(("process", "what of it", "µs"), rows)


def growth(scale: Found) -> Iterator[str]:
    from tests.simulation.growth import COSTS

    rows = scale["rows"]
    last = rows[-1]
    yield (
        f"{last['requests']:,.0f} requests on {last['workers']:,.0f} workers, measured"
        f" {scale['facts']['when'][:10]}: {last['wall']:.0f} s for {last['simulated']:,.0f}"
        f" simulated ones, {last['peak_mb']:,.0f} MB (fleet, broker and ledger included);"
    )
    yield (
        f"{last['lost']:,.0f} workers were lost on the way.  The engine keeps"
        f" {scale['footprint']['worker_bytes']:,.0f} bytes for a worker,"
        f" {scale['footprint']['request_bytes']:,.0f} for a request that waits."
    )
    yield ""
    head = ("of an engine, by workers", *(f"{row['workers']:,.0f}" for row in rows), "exponent")
    yield from rst.table(head, (
        [text, *(f"{row[what]:,.1f}" for row in rows), f"{scale['exponents'][what]:.2f}"]
        for what, text in COSTS.items()
    ))  # fmt: skip


def beats(scale: Found) -> Iterator[str]:
    fleets = list(dict.fromkeys(one["workers"] for one in scale["beats"]))
    by = {(one["engines"], one["workers"]): one for one in scale["beats"]}
    rows = (
        [str(engines),
         *(f"{one['calm']:,.0f} ({one['hurry']:,.0f})"
           for workers in fleets for one in [by[engines, workers]])]
        for engines in dict.fromkeys(one["engines"] for one in scale["beats"])
    )  # fmt: skip
    yield from rst.table(("engines", *(f"{workers:,} workers" for workers in fleets)), rows)


def limits(scale: Found) -> Iterator[str]:
    price = scale["costs"]
    yield (
        f"Computed with {price['engine_us']:.0f} µs of an engine and {price['worker_us']:.0f} µs of"
        f" a worker for a task, {price['broker_ops']:,.0f} operations/s of a broker,"
        f" {price['network'] * 8e-9:.0f} Gbit/s"
    )
    yield f"({scale['facts']['prices']})."
    yield ""
    rows = (
        [f"{one['workers']:,}", f"{one['engines']:,}", one["first"], f"{one['rate']:,.0f}",
         *(_seconds(took) for took in one["seconds"].values())]
        for one in scale["limits"]
    )  # fmt: skip
    of = (f"{name}, s" for name in scale["limits"][0]["seconds"])
    yield from rst.table(("workers", "engines", "full first", "tasks/s", *of), rows)


def _seconds(took: float | None) -> str:
    return "never" if took is None else f"{took:,.3g}"


# Of counts.json.

_ON = ("Redis", "RabbitMQ")


def counts(recorded: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """What a task counts, on both sides together."""
    cases = [f"{case} over {on}, a task" for on in _ON for case in ("wide", "chain")]
    there = [case for case in cases if case in recorded]
    names = sorted({name for case in there for name in recorded[case]})
    order = [name for name in names if not name.startswith("calls")]
    order += [name for name in names if name.startswith("calls")]
    rows = (
        [name, *(_count(recorded[case].get(name)) for case in there)] for name in order
    )  # fmt: skip
    yield from rst.table(
        ("of a task, both sides", *(case.removesuffix(", a task") for case in there)), rows
    )


def messages(recorded: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    of = recorded["messages, a task"]
    kinds = [name.partition(": ")[2] for name in of if name.startswith("bytes of a message")]
    rows = (
        [kind, _count(of.get(f"messages: {kind}")), _count(of[f"bytes of a message: {kind}"])]
        for kind in kinds
    )
    yield from rst.table(("message", "of a task", "bytes"), rows)


def _count(one: float | None) -> str:
    return "" if one is None else f"{one:,.0f}" if one >= 100 else f"{one:.2f}"


# All of it.

#: The tables of a measurement, by their places on the page.
GRIDS = {of.__name__: of for of in (local, large, beginning, promises, defaults, costs, profile)}


def texts(
    found: Found | None, scale: Found | None, recorded: Mapping[str, Mapping[str, float]] | None
) -> dict[str, str]:
    """What belongs at each place of the page; what there are no figures for is left out."""
    made: dict[str, Sequence[str]] = {}
    if recorded is not None:
        made |= {"counts": [*counts(recorded)], "messages": [*messages(recorded)]}
    if found is not None:
        made |= {of.__name__: [*of(found)] for of in (run, rates)}
        for name, grids in GRIDS.items():
            made[name] = [line for grid in grids(found) for line in grid.lines()]
    if scale is not None:
        for of in (growth, beats, limits):
            made[of.__name__] = [*of(scale)]
    if found is not None and scale is not None:
        made["stages"] = [*stages(found, scale)]
    return {name: "\n".join(lines).strip("\n") for name, lines in made.items() if lines}


def printed(made: Mapping[str, str]) -> str:
    return "\n\n".join(f".. {name}\n\n{text}" for name, text in made.items())
