"""wbengine as a user meets it first: a plain installation, and README and tutorial on it."""

from __future__ import annotations

import configparser
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import installed as installing
from tests.support import pages, workers

README = installing.README
TUTORIAL = workers.REPOSITORY / "doc" / "source" / "tutorial.rst"

# The first of them to run waits for the installation.
pytestmark = pytest.mark.timeout(900)


def shown(page: Path) -> list[pages.Block]:
    """The blocks of a page, without the commands by which the installation was made."""
    found = pages.blocks(page)
    return found[1:] if page == README else found


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda page: page.stem)
def test_page_works_as_typed_without_extras(page: Path, installed: Path, tmp_path: Path) -> None:
    environment = installing.environment(tmp_path)
    environment["WBENGINE_TIMEOUT"] = "60"  # no command gives up because the machine is slow
    folder = tmp_path / "folder"
    folder.mkdir()
    found = shown(page)
    pages.compare(page, found, pages.printed(found, folder, environment, installed))


def saved(folder: Path) -> Path:
    """A folder in `folder` that the README's modules are saved in."""
    place = folder / "orders"
    place.mkdir()
    for block in pages.blocks(README):
        if block.caption:
            (place / block.caption).write_text(block.text, encoding="utf-8")
    return place


def run(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the installation, on the README's modules."""
    return subprocess.run(
        [installed.with_name("wbengine"), *words],
        cwd=saved(folder),
        env=installing.environment(folder),
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_installation_has_no_optional_package(installed: Path) -> None:
    """Otherwise the tests here prove nothing of a plain one; nor is it a checkout."""
    program = """
import importlib.util, sys, wbengine
names = "celery jinja2 opentelemetry prometheus_client psycopg pymysql redis starlette"
print([name for name in names.split() if importlib.util.find_spec(name)])
print(wbengine.__file__.startswith(sys.prefix))
"""
    done = subprocess.run(
        [installed, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "True"]


def test_doctor_has_no_complaint_of_a_plain_installation(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "doctor", "--timeout", "60")  # however busy this host is
    assert "✘" not in done.stdout
    assert (done.returncode, done.stderr) == (0, "nothing is wrong\n")
    (extras,) = [line for line in done.stdout.splitlines() if "extras:" in line]
    assert extras.startswith("- extras: optional, and not installed: dashboard, metrics,")


RUN = ("flow", "run", "shop:order", "--store", '{"order_id": 7}')
WORKER = ("worker", "orders", "--tasks", "orders")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("dashboard",), "dashboard"),
        ((*RUN, "--engine", "worker-based", "--url", "redis://127.0.0.1:1/0"), "redis"),
        ((*RUN, "--persistence", "postgresql://127.0.0.1:1/flows"), "postgresql"),
        ((*RUN, "--persistence", "mysql://127.0.0.1:1/flows"), "mysql"),
        ((*WORKER, "--url", "redis://127.0.0.1:1/0"), "redis"),
        ((*WORKER, "--ledger", "redis://127.0.0.1:1/0"), "redis"),
        ((*WORKER, "--ledger", "postgresql://127.0.0.1:1/flows"), "postgresql"),
        ((*WORKER, "--metrics-addr", "127.0.0.1:0"), "metrics"),
        (
            (*WORKER, "--celery-queue", "orders", "--celery-broker", "redis://127.0.0.1:1/0"),
            "celery",
        ),
    ],
)
def test_command_says_in_one_line_which_extra_it_needs(
    words: tuple[str, ...], extra: str, installed: Path, tmp_path: Path
) -> None:
    done = run(installed, tmp_path, *words)
    assert done.returncode in (1, 2) and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("wbengine ")
    assert re.search(rf"pip install ['\"]wbengine\[{extra}\]", line), line


@pytest.mark.parametrize(
    ("options", "said"),
    [((), "none: pip install 'wbengine[dashboard]'\n"), (("--no-dashboard",), "none\n")],
    ids=["wanted", "unwanted"],
)
def test_dev_works_without_pages_and_names_the_extra_of_those_that_are_wanted(
    options: tuple[str, ...], said: str, installed: Path, tmp_path: Path
) -> None:
    folder = saved(tmp_path)
    with subprocess.Popen(
        [installed.with_name("wbengine"), "dev", "orders", "--quiet", *options],
        cwd=folder,
        env=installing.environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            told = dict(process.stdout.readline().split(maxsplit=1) for _ in range(4))
            assert told["persistence"].startswith("sqlite:///")
            assert told["dashboard"] == said
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_every_extra_is_in_the_table_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    (table,) = re.findall(r"\| extra \|.*\n\| --- .*\n((?:\|.*\n)+)", text)
    told = [name for row in table.splitlines() for name in re.findall("`(.+?)`", row.split("|")[1])]
    assert sorted(told) == sorted(extras())


def test_extra_that_is_named_anywhere_exists() -> None:
    """In hints of errors, on pages, in what one extra brings along."""
    root = workers.REPOSITORY
    places = [root / "setup.cfg", README, *root.glob("doc/source/**/*.rst")]
    named = {
        (name, path.name)
        for path in [*places, *root.glob("wbengine/**/*.py")]
        for names in re.findall(r"(?:wbengine|install \W?\.)\[([a-z,]+)\]", path.read_text("utf-8"))
        for name in names.split(",")
    }
    assert len(named) > 20
    assert {(name, path) for name, path in named if name not in extras()} == set()


def extras() -> set[str]:
    """Of the package."""
    told = configparser.ConfigParser()
    told.read(workers.REPOSITORY / "setup.cfg", encoding="utf-8")
    return set(told["options.extras_require"])
