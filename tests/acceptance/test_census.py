"""The census example from its command line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile

import pytest

from examples.census import __main__ as cli
from examples.census import options
from tests.support import python, workers

ENGINES = options.ENGINES

SOURCES = {
    "alpha.py": "import os\n\n\ndef f(a):\n    if a:\n        return 1\n",
    "beta/__init__.py": "",
    "beta/one.py": "# nothing but a comment\n",
    "beta/deep/two.py": "class A:\n    def g(self):\n        for b in c:\n            pass\n",
    "gamma/bad.py": "print 'this is another language'\n",
    "gamma/coded.py": b"# coding: nonsense\n",
    "\N{GREEK SMALL LETTER OMEGA} <b>.py": "x = '\\d'  # a warning for those who compile it\n",
}


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "sources"
    for path, content in SOURCES.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for number in range(60):
        (folder / "beta" / f"m{number}.py").write_text(f"def f{number}():\n" + "    x\n" * number)
    return folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the folder in which the run creates temporary folders."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(autouse=True)
def signals():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def files(folder):
    """Return all paths below a folder, except folders that multiprocessing removes at exit."""
    paths = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return sorted(path for path in paths if not path.startswith("pymp-"))


@pytest.mark.slow
def test_every_engine_writes_the_same_census(root, tmp_path, temporary, capsys):
    censuses = {}
    for engine in ENGINES:
        out = tmp_path / engine / "deep" / "out"
        code = cli.main(["--root", str(root), "--out", str(out), "--engine", engine])
        output = capsys.readouterr()
        assert code == options.OK, output.err
        assert files(out) == ["census.html", "census.json"]
        censuses[engine] = (out / "census.json").read_bytes()
        assert re.search(rf"\nflow ran on {engine}, \d+\.\d\d s\n$", output.out)
        page = (out / "census.html").read_text("utf-8")
        assert "add up beta" in page
        assert "<b>.py" not in page

    assert len(set(censuses.values())) == 1
    assert str(tmp_path).encode() not in censuses["serial"]
    census = json.loads(censuses["serial"])
    names = [module["name"] for module in census["modules"]]
    assert names == ["alpha", "beta", "gamma", "\N{GREEK SMALL LETTER OMEGA} <b>"]
    assert census["source"] == "sources"
    assert census["total"]["files"] == 67
    assert census["total"]["functions"] == 61
    unparsed = [item["path"] for item in census["total"]["unparsed"]]
    assert unparsed == ["beta/m0.py", "gamma/bad.py", "gamma/coded.py"]
    assert files(temporary) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_failed_census_leaves_no_files_and_shows_source_line(
    engine, root, tmp_path, temporary, capsys
):
    out = tmp_path / "new" / "out"

    code = cli.main(["--root", str(root), "--out", str(out), "--engine", engine, "--fail", "beta"])

    output = capsys.readouterr()
    assert code == options.FAILED
    assert not out.parent.exists()
    assert files(temporary) == []
    assert "task 'measure beta.1' failed" in output.err
    assert "RuntimeError: beta.1 fails because --fail asked for it" in output.err
    assert 'raise RuntimeError(f"{group} fails because --fail asked for it")' in output.err
    assert "examples/census/tasks.py" in output.err
    assert output.err.rstrip().endswith("reverted: this run has left nothing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers must be 1 to 64, not 0"),
        (["--workers", "many"], "invalid int value: 'many'"),
        (["--root", "{root}/alpha.py"], "alpha.py: not a folder"),
        (["--root", "{root}/nowhere"], "nowhere: no such folder"),
        (["--root", "{root}/beta/deep/../../empty"], "no Python files in it"),
        (["--root", "{root}", "--fail", "alpa"], "no such module in sources"),
        (["--fail", "emial", "--out", "{root}"], "no such module in the standard library"),
        (["--engine", "steam"], "invalid choice: 'steam'"),
        (["--out", "{root}/alpha.py"], "alpha.py: not a folder"),
        (["--wrkers", "2"], "unrecognized arguments: --wrkers 2"),
    ],
)
def test_census_with_wrong_arguments_reports_one_line_and_writes_nothing(
    arguments, message, root, capsys
):
    (root / "empty").mkdir()
    before = files(root)

    code = cli.main([argument.format(root=root) for argument in arguments])

    output = capsys.readouterr()
    assert code == options.USAGE
    assert output.out == ""
    assert message in output.err
    assert output.err.startswith("quickstart: ")
    assert output.err.count("\n") == 1
    assert files(root) == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_census_leaves_no_files(number, tmp_path):
    """Interrupt the run while hundreds of tasks wait: the flow is reverted."""
    out, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    with python.start(
        ["-m", "examples.census", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=workers.REPOSITORY,
    ) as run:
        try:
            workers.until(lambda: run.poll() is not None or out.exists())
            run.send_signal(number)
            remaining_output, errors = run.communicate(timeout=60)
        finally:
            run.kill()

    assert run.returncode == options.INTERRUPTED, errors
    assert "Traceback" not in errors
    assert not out.exists()
    assert files(temporary) == []
    assert "flow ran" not in remaining_output
