"""Number of files of the package that one task enters, from `engines.load` to the end."""

from __future__ import annotations

from pathlib import Path

from tests.support import fresh

#: Maximum number of files by engine and broker.  A change may lower a number, but not raise one.
CEILINGS = {
    "serial": 57,
    "parallel": 62,
    "worker-based memory": 120,
    "worker-based filesystem": 128,
    "worker-based redis": 131,
    "worker-based rabbitmq": 126,
}
#: A lower count means that the trace is incomplete.
LEAST = 15


def check(kind: str, url: str | None = None, **options: str) -> None:
    engine = kind.partition(" ")[0]
    files = fresh.call("tests.support.hops", "entered", engine, url, options)
    print(f"{kind}: {len(files)} files", *files, sep="\n  ")
    assert LEAST <= len(files) <= CEILINGS[kind]


def test_serial_task_enters_few_files() -> None:
    check("serial")


def test_task_in_thread_enters_few_files() -> None:
    check("parallel", executor="threads")


def test_task_over_memory_enters_few_files() -> None:
    check("worker-based memory", "memory://hops")


def test_task_over_filesystem_enters_few_files(tmp_path: Path) -> None:
    check("worker-based filesystem", f"filesystem://{tmp_path / 'broker'}")


def test_task_over_redis_enters_few_files(redis_url: str) -> None:
    check("worker-based redis", str(redis_url))


def test_task_over_rabbitmq_enters_few_files(rabbitmq_url: str) -> None:
    check("worker-based rabbitmq", str(rabbitmq_url))
