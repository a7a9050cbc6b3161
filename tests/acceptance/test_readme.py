"""The example of the README with failing tasks; `test_installed` runs it unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import pages, python, workers

BLOCKS = pages.blocks(workers.REPOSITORY / "README.md")
TASKS = next(block.text for block in BLOCKS if block.caption == "orders.py")
RUN = next(block.text for block in BLOCKS if block.language == "python" and not block.caption)


def test_example_has_at_most_20_lines() -> None:
    assert len([line for line in f"{TASKS}{RUN}".splitlines() if line]) <= 20


def test_failed_charge_cancels_reservation(tmp_path: Path) -> None:
    charging = 'print("charge", price, "for", reservation)'
    assert charging in TASKS
    tasks = TASKS.replace(charging, 'raise ValueError("no money")')
    assert _run(tasks, tmp_path) == ["cancel reservation of book", "no money"]


def test_failed_reservation_is_not_cancelled(tmp_path: Path) -> None:
    reserving = 'return f"reservation of {item}"'
    assert reserving in TASKS
    tasks = TASKS.replace(reserving, 'raise ValueError("no room")')
    assert _run(tasks, tmp_path) == ["no room"]


def test_rates_equal_those_of_performance_page() -> None:
    root = workers.REPOSITORY
    page = (root / "doc/source/reference/performance.rst").read_text(encoding="utf-8")
    redis, rabbitmq = (page.partition(f"*{broker}*:")[2] for broker in ("Redis", "RabbitMQ"))
    text = (root / "README.md").read_text(encoding="utf-8").partition("## Performance")[2]
    rows = re.findall(
        r"^\| (\w.*?) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", text, re.M
    )
    assert len(rows) == 4
    for name, *rates in rows:
        assert rates == [*_rates(redis, name), *_rates(rabbitmq, name)]


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_relative_links_lead_to_files(name: str) -> None:
    root = workers.REPOSITORY
    text = (root / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links or name == "CHANGELOG.md"
    assert [link for link in links if not (root / link).exists()] == []


def _rates(table: str, system: str) -> list[str]:
    """Return the rates of the wide flow and the chain."""
    match = re.search(rf"^{re.escape(system)}  +([\d,]+)[^\d]*(?:\(.*?\))? +([\d,]+)", table, re.M)
    assert match is not None
    return [match[1], match[2]]


def _run(tasks: str, folder: Path) -> list[str]:
    """Return the lines that the example prints with these tasks."""
    (folder / "orders.py").write_text(tasks, encoding="utf-8")
    *start, run = RUN.replace('"price": 200', '"price": 20').splitlines()
    program = [*start, "try:", f"    {run}", "except ValueError as error:", "    print(error)"]
    process = python.run(
        ["-W", "error", "-c", "\n".join(program)],
        real=True,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout.splitlines()
