"""Benchmark of the dashboard with a large store: first paint, updates, and many live pages.

The store contains records like those of engines. The server is a separate process. A real browser
opens single pages. For many pages, only their requests are simulated, as `dashboard.js` sends them:
the event stream and the parts of a page that are fetched again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Final

import psutil

from tools import _servers
from wbengine.persistence import backends, base, models
from wbengine.types._outline import FLOW, TASK, Outline, OutlineNode

#: Stores to measure; number of flows, and number of tasks in the large flow.
STORES: Final = ("sqlite", "postgresql")
SIZES: Final = (100_000, 10_000)
#: Targets: seconds to the first paint, seconds from a change to its display, and the fraction of a
#: core that `PAGES` live pages use.
PAINT_SECONDS: Final = 1.0
UPDATE_SECONDS: Final = 0.5
PAGES: Final = 200
CORE_FRACTION: Final = 0.6

#: Number of flows in a logbook, which is written at once.
_FLOWS_PER_BOOK: Final = 1000
_RUNS: Final = 5
_MEASURED_UPDATES: Final = 20
#: Minimum interval in seconds between two reads of the body of a large page.
BODY_INTERVAL_SECONDS: Final = 15.0
#: Duration of the measurement of live pages in seconds, and changes per second meanwhile.
_LIVE_SECONDS: Final = 15.0
_CHANGES_PER_SECOND: Final = 4.0


class Filled:
    """A store with many flows of one task, and one flow of many tasks in parts of 100."""

    def __init__(self, backend: base.Backend, flows: int, tasks: int) -> None:
        self._backend = backend
        self._moment = time.time() - flows
        with contextlib.closing(backend.get_connection()) as connection:
            connection.upgrade()
            self.small: list[str] = []
            for start in range(0, flows, _FLOWS_PER_BOOK):
                book = models.LogBook(f"nightly {start}")
                for number in range(start, min(flows, start + _FLOWS_PER_BOOK)):
                    book.add(self._small(number))
                connection.save_logbook(book)
                self.small += [each.uuid for each in book]
            self.big, outline = self._big(tasks)
            book = models.LogBook("big")
            book.add(self.big)
            connection.save_logbook(book)
            connection.save_outline(self.big.uuid, outline)

    def _small(self, number: int) -> models.FlowDetail:
        moment = self._moment + number
        flow = models.FlowDetail(f"import {number}")
        flow.created = moment
        flow.enter("RUNNING", moment)
        task = models.TaskDetail("load")
        task.attempt, task.started, task.ended = 1, moment, moment + 0.5
        task.state, task.worker = "SUCCESS", "host:1"
        flow.enter("SUCCESS", moment + 1)
        flow.add(task)
        return flow

    def _big(self, tasks: int) -> tuple[models.FlowDetail, Outline]:
        nodes, flow = [OutlineNode("everything", FLOW, None)], models.FlowDetail("everything")
        flow.enter("RUNNING", time.time() - 100)
        around = 0
        for number in range(tasks):
            if number % 100 == 0:
                around = len(nodes)
                nodes.append(OutlineNode(f"part {number // 100}", FLOW, 0))
            nodes.append(OutlineNode(f"task {number}", TASK, around))
            task = models.TaskDetail(f"task {number}")
            task.state = "PENDING"
            if number >= 100 and number % 2:
                task.state, task.worker = "SUCCESS", f"host:{number % 4}"
                task.attempt, task.started, task.ended = 1, time.time() - 90, time.time() - 50
            flow.add(task)
        return flow, Outline(tuple(nodes), ())

    def change(self, number: int) -> tuple[str, str]:
        """Change a state among the first 100 tasks of the large flow. Return uuid and state."""
        task = list(self.big)[number % 100]
        task.state = "RUNNING" if task.state != "RUNNING" else "SUCCESS"
        task.worker, task.attempt = "host:1", task.attempt + 1
        with contextlib.closing(self._backend.get_connection()) as connection:
            connection.save_changes(self.big, [task])
        return task.uuid, str(task.state)

    def change_flow(self, number: int) -> tuple[str, str]:
        """Change the state of one of the latest flows of the list. Return its uuid and state."""
        with contextlib.closing(self._backend.get_connection()) as connection:
            flow = connection.get_flow_details(self.small[-1 - number % 20])
            flow.enter("FAILURE" if flow.state == "SUCCESS" else "SUCCESS", time.time())
            connection.save_changes(flow, [])
        return flow.uuid, str(flow.state)


class Server:
    """`wbengine dashboard` in a separate process."""

    def __init__(self, url: str) -> None:
        self.token = secrets.token_urlsafe(24)
        environment = {**os.environ, "WBENGINE_PERSISTENCE": url}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wbengine", "dashboard", "--port", "0", "--token", self.token],
            stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self._process.stderr is not None
        line = ""
        while "Dashboard: " not in line:
            line = self._process.stderr.readline()
            if not line:
                raise RuntimeError("the dashboard did not start")
        self.login_url = line.split()[-1]
        self.address = self.login_url.partition("?")[0]
        self._measured = psutil.Process(self._process.pid)

    def seconds(self) -> float:
        """Return the processor time of the server in seconds."""
        times = self._measured.cpu_times()
        return float(times.user + times.system)

    @property
    def megabytes(self) -> float:
        return float(self._measured.memory_info().rss) / 2**20

    def get(self, path: str) -> bytes:
        request = urllib.request.Request(
            self.address + path, headers={"authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        assert self._process.stderr is not None
        self._process.stderr.close()


class Table:
    """Measurements, printed as they arrive, and whether all targets are met."""

    good = True

    def row(self, name: str, value: float, unit: str, limit: float | None = None) -> None:
        verdict = ""
        if limit is not None:
            self.good &= value < limit
            verdict = "passed" if value < limit else f"FAILED: at most {limit:g}"
        print(f"  {name:<58}{value:>9.2f} {unit:<8}{verdict}", flush=True)


def measure(url: str, flows: int, tasks: int) -> bool:
    """Measure one store, print the figures, and return whether all targets are met."""
    table = Table()
    with contextlib.closing(backends.fetch(url)) as backend:
        began = time.monotonic()
        filled = Filled(backend, flows, tasks)
        table.row("filled in", time.monotonic() - began, "s")
        server = Server(url)
        try:
            _measure_paint(server, filled, table)
            _measure_live_pages(server, filled, table)
        finally:
            server.end()
    return table.good


# -- One browser -------------------------------------------------------------------------------

_PAINTED: Final = """() => new Promise(done => {
  const found = performance.getEntriesByName("first-contentful-paint")[0];
  if (found) done(found.startTime);
  else new PerformanceObserver((list, me) => {
    const seen = list.getEntriesByName("first-contentful-paint")[0];
    if (seen) { me.disconnect(); done(seen.startTime); }
  }).observe({type: "paint", buffered: true});
})"""


def _measure_paint(server: Server, filled: Filled, table: Table) -> None:
    from playwright.sync_api import sync_playwright

    big = f"flows/{filled.big.uuid}"
    pages = {"the list": "", "tasks": big, "graph": f"{big}/graph", "timeline": f"{big}/timeline"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_servers.find("browser"), args=["--no-sandbox"]
        )

        @contextlib.contextmanager
        def opened(path: str) -> Iterator[Any]:
            context = browser.new_context(viewport={"width": 1280, "height": 860})
            page = context.new_page()
            page.goto(f"{server.address}static/icon.svg")
            page.request.get(server.login_url)
            page.goto(server.address + path)
            yield page
            context.close()

        for name, path in pages.items():
            took = []
            for run in range(_RUNS + 1):
                with opened(path) as page:
                    took.append(page.evaluate(_PAINTED) / 1000)
                    # wait for the rows of a flow that is read for the first time
                    if run == 0 and path == big:
                        page.wait_for_selector("tr[data-uuid]", timeout=60_000)
            table.row(f"first paint of {name}, first visit", took[0], "s", PAINT_SECONDS)
            table.row(
                f"first paint of {name}, later visits",
                statistics.median(took[1:]),
                "s",
                PAINT_SECONDS,
            )
        rows: dict[str, tuple[str, Callable[[int], tuple[str, str]], str]] = {
            "tasks": (f"{big}?under=1", filled.change, "tr[data-uuid='{}'] .badge.state-{}"),
            "the list": ("", filled.change_flow, "#r-{} .badge.state-{}"),
        }
        for name, (path, change, sign) in rows.items():
            with opened(path) as page:
                page.wait_for_selector("#live[data-state=on]")
                took = []
                for number in range(_MEASURED_UPDATES):
                    time.sleep(random.uniform(1.0, 2.0))
                    uuid, state = change(number)
                    began = time.perf_counter()
                    page.wait_for_selector(sign.format(uuid, state), state="attached")
                    took.append(time.perf_counter() - began)
            table.row(f"update of {name}, median", statistics.median(took), "s", UPDATE_SECONDS)
            table.row(f"update of {name}, slowest", max(took), "s", UPDATE_SECONDS)
        browser.close()


# -- Many pages --------------------------------------------------------------------------------


class Page:
    """The requests of a live page: its event stream, and its parts after an event."""

    def __init__(self, server: Server, stream: str, parts: dict[str, float]) -> None:
        self._server = server
        self._stream = stream
        #: Path of a part -> minimum interval in seconds between two reads.
        self._parts = parts
        self.turns = self.bytes = self.part_bytes = self.reads = 0

    async def run(self, ready: asyncio.Event) -> None:
        reader, writer = await self._request(self._stream)
        changed = asyncio.Event()
        readers = [asyncio.create_task(self._read(p, s, changed)) for p, s in self._parts.items()]
        try:
            await reader.readuntil(b"\r\n\r\n")
            ready.set()
            while line := await reader.readline():
                self.bytes += len(line)
                if line.startswith(b"data:"):
                    self.turns += 1
                    changed.set()
        finally:
            for each in readers:
                each.cancel()
            writer.close()

    async def _read(self, path: str, seconds: float, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            began = time.monotonic()
            reader, writer = await self._request(path)
            self.part_bytes += len(await reader.read())
            self.reads += 1
            writer.close()
            await asyncio.sleep(max(0, seconds - (time.monotonic() - began)))

    async def _request(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._server.address.split("/")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**22)
        writer.write(
            f"GET /{path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
            f"authorization: Bearer {self._server.token}\r\n\r\n".encode()
        )
        return reader, writer


def _measure_live_pages(server: Server, filled: Filled, table: Table) -> None:
    big = f"flows/{filled.big.uuid}"
    streams = [f"flows/{uuid}/stream" for uuid in filled.small[-PAGES:]]
    body = {f"{big}?under=1&part=body": BODY_INTERVAL_SECONDS}
    cursor = server.get(big).decode().partition('data-cursor="')[2].partition('"')[0]
    shapes: dict[str, tuple[list[tuple[str, dict[str, float]]], Any]] = {
        "pages of the large flow": (
            [(f"{big}/stream?cursor={cursor}", body)] * PAGES, filled.change,
        ),
        "pages of a flow each": ([(each, {}) for each in streams], None),
        "pages of the list": ([("stream/flows", {})] * PAGES, filled.change_flow),
    }  # fmt: skip
    for name, (pages, change) in shapes.items():
        load, measured_pages = asyncio.run(_run_pages(server, pages, change))
        changes = f", {_CHANGES_PER_SECOND:g} changes/s" if change else ""
        table.row(f"{PAGES} {name}{changes}: of a core", 100 * load, "%", 100 * CORE_FRACTION)
        events, reads = sum(p.turns for p in measured_pages), sum(p.reads for p in measured_pages)
        table.row("    events sent to a page", events / PAGES / _LIVE_SECONDS, "/s")
        table.row("    bytes of an event", _mean(measured_pages, "bytes", events), "")
        if reads:
            table.row(
                "    bytes of a part that is read again",
                _mean(measured_pages, "part_bytes", reads),
                "",
            )
    table.row("memory of the server", server.megabytes, "MB")


def _mean(pages: list[Page], attribute: str, among: int) -> float:
    return sum(getattr(page, attribute) for page in pages) / max(1, among)


async def _run_pages(
    server: Server,
    requests: list[tuple[str, dict[str, float]]],
    change: Callable[[int], tuple[str, str]] | None,
) -> tuple[float, list[Page]]:
    """Return the fraction of a core that the server used, and the simulated pages."""
    pages = [Page(server, stream, parts) for stream, parts in requests]
    ready = [asyncio.Event() for _ in pages]
    running = [asyncio.create_task(p.run(r)) for p, r in zip(pages, ready, strict=True)]
    await asyncio.gather(*(each.wait() for each in ready))
    await asyncio.sleep(3)
    for page in pages:
        page.turns = page.bytes = page.part_bytes = page.reads = 0
    began, used = time.monotonic(), server.seconds()
    number = 0
    while (passed := time.monotonic() - began) < _LIVE_SECONDS:
        if change is not None and passed * _CHANGES_PER_SECOND >= number:
            number += 1
            await asyncio.to_thread(change, number)
        await asyncio.sleep(0.02)
    load = (server.seconds() - used) / (time.monotonic() - began)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return load, pages
