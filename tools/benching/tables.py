"""Tables of measured figures.

They are made from bench.json, databases.json (of a run on databases), scale.json and counts.json.
`tools/bench` prints them after a run, `tools/bench --table` prints those of the last run, and
`tools/bench --page` writes them into the page about performance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tools.benching import bare, profiling, result_file, rst, timeline
from tools.benching.result_file import COMPARED, MARKS, STARTED
from tools.benching.systems import LOCALS, SYSTEMS

Document = Mapping[str, Any]


class Grid(NamedTuple):
    """A table. Its first `texts` columns contain texts, the others figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    #: Widths of the columns in percent, for cells that contain sentences.
    widths: Sequence[int] = ()

    def lines(self) -> Iterator[str]:
        if self.widths:
            yield from rst.columns(self.head, self.rows, self.widths)
        else:
            yield from rst.table(self.head, self.rows)
        yield ""


MEDIA = {"redis": "Redis", "amqp": "RabbitMQ", "filesystem": "Folder"}
OURS, SHARED = "wbengine", "wbengine-shared"
COSTS = ("caller_us", "workers_us", "broker_us")
SHAPES = {"unordered": "all at once", "linear": "in a line", "nested": "nested flows"}


class Cells:
    """Measurements by case, medium and system."""

    def __init__(self, document: Document) -> None:
        self._cells = {(c["case"], c["medium"], c["system"]): c for c in document["cells"]}
        self.titles = {system["name"]: system["title"] for system in document["systems"]}

    def get(self, case: str, medium: str, system: str) -> Document:
        return self._cells.get((case, medium, system), {})

    def cases(self, medium: str) -> list[str]:
        return list(dict.fromkeys(case for case, on, _ in self._cells if on == medium))

    def systems(self, medium: str) -> list[str]:
        """Return the systems measured on a medium, fastest in the first case first."""
        measured = dict.fromkeys(system for _, on, system in self._cells if on == medium)
        case = self.cases(medium)[0]
        return sorted(measured, key=lambda name: -self.get(case, medium, name).get("rate", 0))

    def rate(self, case: str, medium: str, system: str) -> str:
        """Return the tasks per second, and the ratio of wbengine to the system."""
        cell = self.get(case, medium, system)
        ours = self.get(COMPARED.get(case, case), medium, OURS).get("rate")
        if "rate" in cell:
            times = f" ({ours / cell['rate']:.1f})" if ours and not system.startswith(OURS) else ""
            return f"{cell['rate']:,.0f}{times}"
        if "limit" in cell:
            times = f" (> {ours / cell['limit']:.1f})" if ours else ""
            return f"< {cell['limit']:,.0f}{times}"
        return "failed" if cell else ""


# -- bench.json --------------------------------------------------------------------------------


def run(document: Document) -> Iterator[str]:
    """Yield the conditions of the measurement."""
    facts = document["facts"]
    names = {"redis": "Redis", "amqp": "RabbitMQ", "postgresql": "PostgreSQL", "mysql": ""}
    brokers = [
        f"{names[entry]} {version}".strip() for entry, version in facts.get("brokers", {}).items()
    ]
    peers = {
        f"{name} {version}": None
        for entry in document["systems"]
        for name, version in entry["versions"].items()
        if name != OURS
    }
    yield (
        f"Measured on {facts['when'][:10]} at {facts['when'][11:16]} UTC: wbengine"
        f" {facts['wbengine']}, Python {facts['python']}; {facts['machine']}"
        f" ({facts['processor']});"
    )
    runs = "one run" if facts["repeat"] == 1 else f"medians of {facts['repeat']} runs"
    yield f"{', '.join(brokers)}; {runs}; load at the start"
    yield f"{facts['load at the start']}.  Installed: {', '.join(sorted(peers))}."


def rates(document: Document) -> Iterator[str]:
    cells = Cells(document)
    for medium, title in MEDIA.items():
        if cells.cases(medium):
            yield f"*{title}*:"
            yield ""
            yield from _rates(cells, medium)
            yield ""


def _rates(cells: Cells, medium: str) -> Iterator[str]:
    cases = [case for case in cells.cases(medium) if case != "latency"]
    rows = (
        [cells.titles[system], *(cells.rate(case, medium, system) for case in cases)]
        for system in cells.systems(medium)
    )
    return rst.table(("tasks per second", *cases), rows)


def targets(document: Document) -> Iterator[str]:
    """Yield the number of targets that were met, and a table of those that were missed."""
    judged = [check for check in document["checks"] if check["kept"] is not None]
    missed = [check for check in judged if not check["kept"]]
    if judged:
        yield f"{len(judged) - len(missed)} of {len(judged)} targets of ``tools/bench`` are met."
    if missed:
        yield ""
        rows = (
            [check["text"], check["promised"], check["found"].partition(" (")[0]]
            for check in missed
        )
        yield from rst.table(("missed target", "target", "measured"), rows)


def local(found: Document) -> Iterator[Grid]:
    cells = Cells(found)
    pairs = [(medium, case) for medium in LOCALS for case in cells.cases(medium)]
    if not pairs:
        return
    names = [
        system for system in (OURS, "taskflow") if any(cells.get(c, m, system) for m, c in pairs)
    ]
    rows = [
        [f"{medium}, {case}", *(cells.rate(case, medium, name) for name in names)]
        for medium, case in pairs
    ]
    head = ("tasks per second", *(cells.titles[name] for name in names))
    yield Grid("Without workers", head, rows)


def large(document: Document) -> Iterator[Grid]:
    rows = [
        [SHAPES.get(row["shape"], row["shape"]), f"{row['tasks']:,}", f"{row['all']:.3f}",
         f"{1e6 * row['all'] / row['tasks']:.1f}", f"{row['peak_mb']:.0f}",
         "" if row["growth"] is None else f"{row['growth']:.2f}"]
        for row in document["scale"]
    ]  # fmt: skip
    if rows:
        head = ("flow", "tasks", "seconds", "µs a task", "peak MB", "exponent")
        yield Grid("Flows that grow", head, rows)


def beginning(document: Document) -> Iterator[Grid]:
    """Yield the tables about start-up and idle workers."""
    rows = [
        [STARTED.get(name, f"first engine: {name.removeprefix('load ')}"), f"{took:.3f}"]
        for name, took in document["start"].items()
    ]
    if rows:
        yield Grid("Start-up", ("start", "seconds"), rows)
    ready = {
        (entry["system"], entry["medium"]): f"{entry['seconds']:.2f}" for entry in document["ready"]
    }
    idle = {(entry["system"], entry["medium"]): entry for entry in document["idle"]}
    measured = {*ready, *idle}
    media = [entry for entry in MEDIA if any(medium == entry for _, medium in measured)]
    rows = []
    for name, title in Cells(document).titles.items():
        if all((name, medium) not in measured for medium in media):
            continue
        waiting = [idle.get((name, medium)) for medium in media]
        processes = max((entry["processes"] for entry in waiting if entry), default="")
        rows.append([title, str(processes)])
        for medium, entry in zip(media, waiting, strict=True):
            rows[-1].append(ready.get((name, medium), ""))
            rows[-1] += (
                [f"{entry['processor']:.2f}", f"{entry['memory']:.0f}"] if entry else ["", ""]
            )
    if rows:
        columns = (f"{MEDIA[medium]}: {unit}" for medium in media for unit in ("s", "%", "MB"))
        yield Grid("Workers", ("worker", "processes", *columns), rows)


def promises(document: Document) -> Iterator[Grid]:
    rows = [
        [MARKS[check["kept"]], check["text"], check["promised"], check["found"]]
        for check in document["checks"]
    ]
    if rows:
        yield Grid("Targets", ("met", "what", "target", "measured"), rows, texts=4)


def defaults(document: Document) -> Iterator[Grid]:
    versions = {system["name"]: system["versions"] for system in document["systems"]}
    rows = [
        [system.title, system.defaults, system.helped]
        for system in SYSTEMS if system.name in versions
    ]  # fmt: skip
    head = ("system", "defaults", "changed settings")
    yield Grid("Settings", head, rows, texts=3, widths=(18, 50, 32))


def profile(document: Document) -> Iterator[Grid]:
    """Yield the table of profiles."""
    profiles = [profiling.Profile(**sample) for sample in document.get("profiles", ())]
    rows = [
        [name, *(f"{100 * sample.parts.get(name, 0):.0f} %" for sample in profiles)]
        for name in result_file.parts(profiles)
    ]
    if profiles:
        head = ("of the samples", *(f"{sample.case}, {sample.side}" for sample in profiles))
        yield Grid("Where the time goes", head, rows)


def costs(document: Document) -> Iterator[Grid]:
    """Yield processor times of a task: of wbengine by process, and the sums of all systems."""
    cells = Cells(document)
    pairs = [
        (case, medium)
        for medium in MEDIA
        for case in ("wide", "chain")
        if case in cells.cases(medium)
    ]

    def figures(case: str, medium: str, system: str) -> list[str]:
        cell = cells.get(case, medium, system)
        parts = [cell[name] for name in COSTS if name in cell]
        return [f"{value:,.0f}" for value in (*parts, sum(parts))] if parts else []

    rows = []
    for case, medium in pairs:
        own, shared = figures(case, medium, OURS), figures(case, medium, SHARED)
        joined = [f"{a} ({b})" for a, b in zip(own, shared, strict=True)] if shared else own
        if own:
            rows.append([f"{case}, {MEDIA[medium]}", *joined])
    if rows:
        head = ("wbengine, CPU µs of a task", "caller", "workers", "broker", "sum")
        yield Grid("Processor time of wbengine", head, rows)
    rows = [
        [title, *((figures(case, medium, name) or [""])[-1] for case, medium in pairs)]
        for name, title in cells.titles.items()
    ]
    rows = [row for row in rows if any(row[1:])]
    if rows:
        head = ("CPU µs of a task, sum", *(f"{case}, {MEDIA[medium]}" for case, medium in pairs))
        yield Grid("Processor time", head, rows)


def timelines(document: Document) -> Iterator[Grid]:
    """Yield the parts of a hop on each medium, with the hop without recording and the limit."""
    for found in document.get("timelines", ()):
        engine, worker = (found["parts"][side] for side in timeline.SIDES)
        sums = {
            part: engine.get(part, 0.0) + worker.get(part, 0.0) for part in {**engine, **worker}
        }
        total = sum(sums.values())
        rows = [
            [part, *(f"{side[part]:,.0f}" if part in side else "" for side in (engine, worker)),
             f"{spent:,.0f}", f"{100 * spent / total:.0f} %"]
            for part, spent in sorted(
                sums.items(), key=lambda entry: (entry[0] == timeline.OTHER, -entry[1])
            )
        ]  # fmt: skip
        values = *(sum(side.values()) for side in (engine, worker)), total
        explained = f"{100 * found['explained']:.0f} % explained"
        rows.append(["hop", *(f"{value:,.0f}" for value in values), explained])
        slower = f"recording: {100 * found['overhead']:+.0f} %"
        rows.append(["hop without recording", "", "", f"{found['hop']:,.0f}", slower])
        rows.append(["median of all such hops", "", "", f"{found['median']:,.0f}", ""])
        rows.append([bare.TITLES[found["medium"]], "", "", f"{found['limit']:,.0f}", ""])
        medium = MEDIA[found["medium"]]
        head = (f"µs of a hop, {medium}", *timeline.SIDES, "both", "share")
        yield Grid(f"Timeline of a hop, {medium}", head, rows)


# -- bench.json, or the same for databases -------------------------------------------------------


def databases(document: Document) -> Iterator[str]:
    """Yield conditions, rates, delays, costs and settings on PostgreSQL."""
    cells, medium = Cells(document), "postgresql"
    if not cells.cases(medium):
        return
    yield from run(document)
    yield ""
    yield from _rates(cells, medium)
    idle = {entry["system"]: entry for entry in document["idle"] if entry["medium"] == medium}
    rows = []
    for system in cells.systems(medium):
        delays = cells.get("latency", medium, system)
        rows.append([cells.titles[system], *(f"{delays[k]:.2f}" if k in delays else ""
                                             for k in ("p50_ms", "p99_ms"))])  # fmt: skip
        waiting = idle.get(system)
        rows[-1] += [f"{waiting['processor']:.2f}", f"{waiting['broker']:.2f}",
                     f"{waiting['transactions']:.1f}"] if waiting else [""] * 3  # fmt: skip
        rows[-1] += [_sum(cells.get(case, medium, system)) for case in ("wide", "chain")]
    head = ("", "p50, ms", "p99, ms", "idle worker, %", "idle server, %", "transactions/s",
            "wide, CPU µs", "chain, CPU µs")  # fmt: skip
    yield ""
    yield from rst.table(head, rows)
    yield ""
    for grid in defaults(document):
        yield from grid.lines()


def _sum(cell: Document) -> str:
    """Return the processor time of a task, of all processes."""
    return f"{sum(cell[name] for name in COSTS):,.0f}" if "rate" in cell else ""


# -- scale.json, or scale.json with bench.json -------------------------------------------------


def stages(document: Document, scale: Document) -> Iterator[str]:
    """Yield the separately measured parts of the processor time of a wide task over Redis."""
    cells, grown = Cells(document), scale["rows"][-1]
    serial = cells.get("wide", "serial", OURS)
    wide = cells.get("wide", "redis", SHARED) or cells.get("wide", "redis", OURS)
    if "rate" not in serial or "caller_us" not in wide:
        return
    core, book, decides = 1e6 / serial["rate"], grown["request_us"], grown["worker_us"]
    parts = [
        ("engine", "plan, schedule, records (the serial engine)", core),
        ("engine", "requests, replies, discovery of workers", book),
        ("engine", "threads, connections, ledger, encoding", None),
        ("worker", "decisions, claims, replies", decides),
        ("worker", "threads, connections, ledger, call of the task", None),
        ("broker", "queues and ledger", wide["broker_us"]),
    ]
    rest = {
        "engine": wide["caller_us"] - core - book,
        "worker": wide["workers_us"] - decides,
    }
    rows = [
        [process, part, f"{rest[process] if value is None else value:,.0f}"]
        for process, part, value in parts
    ]
    yield from rst.table(("process", "part", "µs"), rows)


def growth(scale: Document) -> Iterator[str]:
    from tests.simulation.growth import COSTS

    rows = scale["rows"]
    last = rows[-1]
    yield (
        f"{last['requests']:,.0f} requests on {last['workers']:,.0f} workers, of which"
        f" {last['lost']:,.0f} are lost, on {scale['facts']['when'][:10]}: {last['wall']:.0f} s for"
        f" {last['simulated']:,.0f} simulated seconds,"
    )
    yield (
        f"{last['peak_mb']:,.0f} MB with fleet, broker and ledger.  The engine uses"
        f" {scale['footprint']['worker_bytes']:,.0f} bytes for each worker and"
        f" {scale['footprint']['request_bytes']:,.0f} for each waiting request."
    )
    yield ""
    head = ("engine, by number of workers", *(f"{row['workers']:,.0f}" for row in rows), "exponent")
    yield from rst.table(head, (
        [text, *(f"{row[name]:,.1f}" for row in rows), f"{scale['exponents'][name]:.2f}"]
        for name, text in COSTS.items()
    ))  # fmt: skip


def beats(scale: Document) -> Iterator[str]:
    fleets = list(dict.fromkeys(row["workers"] for row in scale["beats"]))
    by = {(row["engines"], row["workers"]): row for row in scale["beats"]}
    rows = (
        [str(engines),
         *(f"{row['calm']:,.0f} ({row['hurry']:,.0f})"
           for workers in fleets for row in [by[engines, workers]])]
        for engines in dict.fromkeys(row["engines"] for row in scale["beats"])
    )  # fmt: skip
    yield from rst.table(("engines", *(f"{workers:,} workers" for workers in fleets)), rows)


def limits(scale: Document) -> Iterator[str]:
    price = scale["costs"]
    yield (
        f"Computed from {price['engine_us']:.0f} µs of the engine and {price['worker_us']:.0f} µs"
        f" of the worker for each task, {price['broker_ops']:,.0f} operations/s of the broker and"
        f" {price['network'] * 8e-9:.0f} Gbit/s"
    )
    yield f"({scale['facts']['prices']})."
    yield ""
    rows = (
        [f"{row['workers']:,}", f"{row['engines']:,}", row["first"], f"{row['rate']:,.0f}",
         *(_seconds(took) for took in row["seconds"].values())]
        for row in scale["limits"]
    )  # fmt: skip
    headings = (f"{name}, s" for name in scale["limits"][0]["seconds"])
    yield from rst.table(("workers", "engines", "bottleneck", "tasks/s", *headings), rows)


def _seconds(took: float | None) -> str:
    return "never" if took is None else f"{took:,.3g}"


# -- counts.json -------------------------------------------------------------------------------

#: Names of messages in the table that differ from the recorded names.
_MESSAGES = {"answer": "reply", "beat": "heartbeat"}
_ON = ("Redis", "RabbitMQ")


def counts(recorded: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the counted operations of a task, engine and worker together."""
    cases = [f"{case} over {on}, a task" for on in _ON for case in ("wide", "chain")]
    recorded_cases = [case for case in cases if case in recorded]
    names = {
        name for case in recorded_cases for name in recorded[case] if not name.startswith("calls")
    }
    rows = (
        [name, *(_count(recorded[case].get(name)) for case in recorded_cases)]
        for name in sorted(names)
    )
    yield from rst.table(
        ("each task, both sides", *(case.removesuffix(", a task") for case in recorded_cases)), rows
    )


def messages(recorded: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    values = recorded["messages, a task"]
    kinds = [name.partition(": ")[2] for name in values if name.startswith("bytes of a message")]
    rows = (
        [
            _MESSAGES.get(kind, kind),
            _count(values.get(f"messages: {kind}")),
            _count(values[f"bytes of a message: {kind}"]),
        ]
        for kind in kinds
    )
    yield from rst.table(("message", "each task", "bytes"), rows)


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


# -- All tables --------------------------------------------------------------------------------

#: Tables that are printed but are not on the page.
PRINTED_ONLY = frozenset(
    {
        "profile",
        "timelines",
        "promises",
        "stages",
        "counts",
        "messages",
        "growth",
        "beats",
    }
)
#: Place on the page -> function that generates its tables.
GRIDS = {
    of.__name__: of
    for of in (local, large, beginning, promises, defaults, costs, profile, timelines)
}


def texts(
    document: Document | None,
    scale: Document | None,
    recorded: Mapping[str, Mapping[str, float]] | None,
    on_databases: Document | None,
) -> dict[str, str]:
    """Return the text of each table by name, without empty tables."""
    lines_by_name: dict[str, Sequence[str]] = {}
    if recorded is not None:
        lines_by_name |= {"counts": [*counts(recorded)], "messages": [*messages(recorded)]}
    if document is not None:
        lines_by_name |= {make.__name__: [*make(document)] for make in (run, rates, targets)}
        for name, grids in GRIDS.items():
            lines_by_name[name] = [line for grid in grids(document) for line in grid.lines()]
    if on_databases is not None:
        lines_by_name["databases"] = [*databases(on_databases)]
    if scale is not None:
        for make in (growth, beats, limits):
            lines_by_name[make.__name__] = [*make(scale)]
    if document is not None and scale is not None:
        lines_by_name["stages"] = [*stages(document, scale)]
    return {name: "\n".join(lines).strip("\n") for name, lines in lines_by_name.items() if lines}


def printed(texts: Mapping[str, str]) -> str:
    return "\n\n".join(f".. {name}\n\n{text}" for name, text in texts.items())
