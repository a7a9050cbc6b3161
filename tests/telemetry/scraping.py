"""Metrics pages, parsed with Prometheus' parser."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable
from typing import Any

from prometheus_client import parser

from tests.support import workers

#: Value by `(name, sorted labels)`.
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Samples:
    """Return all samples; fail on repeated samples and families."""
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
    """Return the sum of all samples of a name that have at least these labels."""
    return sum(
        number
        for (of, theirs), number in found.items()
        if of == name and labels.items() <= dict(theirs).items()
    )


def together(scrapes: Iterable[Samples]) -> Samples:
    """Return the sum over several processes, as Prometheus computes it."""
    found: Samples = {}
    for scrape in scrapes:
        for key, number in scrape.items():
            found[key] = found.get(key, 0) + number
    return found


def get(url: str) -> tuple[int, str]:
    """Return the status and text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def place(worker: workers.WorkerProcess, path: str) -> str:
    """Return the URL under which a worker reports that it serves `path`."""
    pattern = rf"serving (?:/\w+, )*{path}(?:, /\w+)* on (http://\S+)"
    workers.until(lambda: re.search(pattern, worker.text))
    match: Any = re.search(pattern, worker.text)
    return f"{match[1]}{path}"
