"""README and tutorial on an installation without extras."""

from __future__ import annotations

import configparser
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import changes, pages, workers
from tests.support import installed as installing

README = installing.README
SOURCE = workers.REPOSITORY / "doc" / "source"
INSTALLING = SOURCE / "installing.rst"
TUTORIAL = SOURCE / "tutorial.rst"

# The first test waits for the installation.
pytestmark = pytest.mark.timeout(900)
SLOW = pytest.mark.slow
#: Files that decide what an installation contains. Without a recent change, its tests are slow.
DECISIVE = (README, workers.REPOSITORY / "setup.cfg", Path(__file__))


def slow_unless_changed(test: Callable[..., None]) -> Callable[..., None]:
    decisive = any(map(changes.is_recent, DECISIVE))
    return pytest.mark.every_commit(test) if decisive else SLOW(test)


def shown(page: Path) -> list[pages.Block]:
    """Return the blocks of a page without the commands that created the installation."""
    blocks = pages.blocks(page)
    if page != TUTORIAL:
        commands = blocks.pop(0).text
        assert [line[2:] for line in commands.splitlines()] == installing.install_commands()
    return blocks


@slow_unless_changed
@pytest.mark.parametrize(
    "page",
    [README, pytest.param(INSTALLING, marks=SLOW), pytest.param(TUTORIAL, marks=SLOW)],
    ids=lambda page: page.stem,
)
def test_page_works_as_typed_without_extras(page: Path, installed: Path, tmp_path: Path) -> None:
    environment = installing.environment(tmp_path)
    environment["WBENGINE_TIMEOUT"] = "60"  # a slow machine must not fail a command
    folder = tmp_path / "folder"
    folder.mkdir()
    blocks = shown(page)
    pages.compare(page, blocks, pages.run_blocks(blocks, folder, environment, installed))


def saved(folder: Path) -> Path:
    """Save the modules of the README in a folder inside `folder` and return it."""
    place = folder / "orders"
    place.mkdir()
    for block in pages.blocks(README):
        if block.caption:
            (place / block.caption).write_text(block.text, encoding="utf-8")
    return place


def run(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the installation in the folder with the README's modules."""
    return subprocess.run(
        [installed.with_name("wbengine"), *words],
        cwd=saved(folder),
        env=installing.environment(folder),
        capture_output=True,
        text=True,
    )


@slow_unless_changed
def test_installation_has_no_optional_package(installed: Path) -> None:
    """The tests of this module require an installation without extras, outside the checkout."""
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


@SLOW
def test_doctor_finds_no_problem_in_plain_installation(installed: Path, tmp_path: Path) -> None:
    # the timeout allows for a busy host
    done = run(installed, tmp_path, "doctor", "--timeout", "60")
    assert "✘" not in done.stdout
    assert (done.returncode, done.stderr) == (0, "no problems found\n")
    (extras,) = [line for line in done.stdout.splitlines() if "extras:" in line]
    missing = extras.partition("not installed: ")[2].partition(" (")[0]
    assert missing.split(", ") == [
        "dashboard", "metrics", "otel", "redis", "postgresql", "mysql", "zookeeper", "etcd",
        "keys", "celery",
    ]  # fmt: skip


RUN = ("flow", "run", "orders:order", "--inputs", '{"item": "book", "price": 20}')
WORKER = ("worker", "orders", "--tasks", "orders")


@slow_unless_changed
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
def test_command_names_missing_extra_in_one_line(
    words: tuple[str, ...], extra: str, installed: Path, tmp_path: Path
) -> None:
    done = run(installed, tmp_path, *words)
    assert done.returncode in (1, 2) and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("wbengine ")
    assert re.search(f": {command(installed, extra)}$", line), line


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("checkout", marks=SLOW),
        pytest.param("editable", marks=SLOW),
        pytest.param("wheel", marks=SLOW),
        pytest.param("removed wheel", marks=SLOW),
    ],
)
def test_printed_command_installs_extra(source: str, installed: Path, tmp_path: Path) -> None:
    environment = installing.environment(tmp_path)
    python = installing.copied(installed, tmp_path / "env", source)

    def called(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )

    new = python, "-m", "wbengine", "keys", "new", "--per-role", "ring"
    before = called(*new)
    assert before.returncode != 0 and "needs cryptography: " in before.stderr
    advice = before.stderr.partition("needs cryptography: ")[2].strip()
    added = called("bash", "-c", advice)
    assert added.returncode == 0, (advice, added.stderr)
    after = called(*new)
    assert after.returncode == 0, after.stderr
    assert (tmp_path / "ring" / "worker.json").is_file()


def command(installed: Path, extra: str) -> str:
    """Return a pattern of the command that installs an extra into the README's environment."""
    python, source = re.escape(str(installed)), re.escape(str(installed.parents[2]))
    return rf"{python}[0-9.]* -m pip install '{source}\[{extra}\]'"


@SLOW
@pytest.mark.parametrize("options", [(), ("--no-dashboard",)], ids=["wanted", "unwanted"])
def test_dev_runs_without_dashboard_and_names_missing_extra(
    options: tuple[str, ...], installed: Path, tmp_path: Path
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
            lines = dict(process.stdout.readline().split(maxsplit=1) for _ in range(4))
            assert lines["persistence"].startswith("sqlite:///")
            advice = f"not installed: {command(installed, 'dashboard')}"
            assert re.fullmatch("none\n" if options else f"{advice}\n", lines["dashboard"])
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_table_of_extras_is_complete() -> None:
    text = INSTALLING.read_text(encoding="utf-8")
    table = text.partition("* - Extra\n")[2]
    assert sorted(re.findall(r"^   \* - ``(\w+)``$", table, re.MULTILINE)) == sorted(extras())


def test_each_mentioned_extra_exists() -> None:
    """Extras are mentioned in error messages, on pages and in other extras."""
    root = workers.REPOSITORY
    places = [root / "setup.cfg", README, *root.glob("doc/source/**/*.rst")]
    named = {
        (name, path.name)
        for path in [*places, *root.glob("wbengine/**/*.py")]
        for names in re.findall(
            r"(?:wbengine\[|install \W?\.\[|\bextra `{1,2})([a-z0-9,]+)", path.read_text("utf-8")
        )
        for name in names.split(",")
    }
    assert len(named) > 20
    assert {(name, path) for name, path in named if name not in extras()} == set()


def test_pages_install_only_from_checkout() -> None:
    """The package is not published on an index."""
    root = workers.REPOSITORY
    pages = [README, *root.glob("doc/source/**/*.rst")]
    commands = [
        command
        for page in pages
        for command in re.findall(r"pip install .*", page.read_text("utf-8"))
    ]
    assert len(commands) > 2
    assert [each for each in commands if not re.match(r"pip install \W?\.", each)] == []


def extras() -> set[str]:
    """Return the names of the package's extras."""
    parser = configparser.ConfigParser()
    parser.read(workers.REPOSITORY / "setup.cfg", encoding="utf-8")
    return set(parser["options.extras_require"])
