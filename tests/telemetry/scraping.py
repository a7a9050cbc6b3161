"""What a scrape shows, read as Prometheus reads it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable
from typing import Any

from prometheus_client import parser

from tests.support import workers

#: `(name, labels in order)` to value.
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Samples:
    """All samples; a repeated one, or a family that comes twice, is an error."""
    found: Samples = {}
    families: set[str] = set()
    for family in parser.text_string_to_metric_families(text):
        assert family.name not in families, family.name
        families.add(family.name)
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    """The sum of all samples of a name that have these labels, and maybe others."""
    return sum(
        number
        for (of, theirs), number in found.items()
        if of == name and labels.items() <= dict(theirs).items()
    )


def together(scrapes: Iterable[Samples]) -> Samples:
    """What Prometheus adds up, of several processes."""
    found: Samples = {}
    for scrape in scrapes:
        for key, number in scrape.items():
            found[key] = found.get(key, 0) + number
    return found


def get(url: str) -> tuple[int, str]:
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def place(worker: workers.WorkerProcess, path: str) -> str:
    """The URL under which a worker says that it serves `path`."""
    pattern = rf"serving (?:/\w+, )*{path}(?:, /\w+)* on (http://\S+)"
    workers.until(lambda: re.search(pattern, worker.text))
    match: Any = re.search(pattern, worker.text)
    return f"{match[1]}{path}"
