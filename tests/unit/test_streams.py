"""Commands without standard streams, or with a narrow encoding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import workers

OPENER = """
import sys
from wbengine._cli import standard_streams
standard_streams.ensure()
with open(sys.argv[1], "w") as file:
    print("said")
    print("told", file=sys.stderr)
    file.write(str(file.fileno() > 2 and sys.stdin is not None))
"""


def shell(words: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run `words`, in which "$@" is this Python and the arguments."""
    return subprocess.run(
        ["sh", "-c", f"exec {words}", "sh", sys.executable, *arguments],
        cwd=workers.REPOSITORY, capture_output=True, text=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [
        ("", "said\n", "told\n"),
        ("<&-", "said\n", "told\n"),
        (">&-", "", "told\n"),
        ("2>&-", "said\n", ""),
        ("<&- >&- 2>&-", "", ""),
    ],
)
def test_opened_file_does_not_replace_a_closed_standard_stream(
    tmp_path: Path, closed: str, out: str, err: str
) -> None:
    ended = shell(f'"$@" {closed}', "-c", OPENER, str(tmp_path / "file"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, out, err)
    assert (tmp_path / "file").read_text() == "True"


def test_characters_missing_in_the_encoding_are_replaced() -> None:
    code = "from wbengine._cli import standard_streams as s; s.ensure(); print('\\u2026 \\u00e4')"
    ended = shell('env PYTHONIOENCODING=ascii "$@"', "-c", code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "? ?\n", "")


@pytest.mark.slow
def test_worker_runs_without_standard_streams(tmp_path: Path) -> None:
    ended = shell(
        '"$@" <&- >&- 2>&-', "-W", "error", "-m", "wbengine.worker",
        "--url", f"filesystem://{tmp_path / 'broker'}", "--topic", "t",
        "--tasks", "tests.support.sample_tasks", "--processes", "1",
        "--burst", "--max-idle-time", "0.1",
    )  # fmt: skip
    assert ended.returncode == 0


@pytest.mark.slow
def test_closed_stdout_does_not_fail_the_census_report(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "one.py").write_text("x = 1\n")
    with subprocess.Popen(
        [sys.executable, "-m", "examples.census", "--engine", "serial",
         "--root", str(tmp_path / "root"), "--out", str(tmp_path / "out")],
        cwd=workers.REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None and run.stderr is not None
        run.stdout.close()
        said = run.stderr.read()
    assert run.returncode == 0, said
    assert "Errno" not in said and "Exception" not in said
    assert (tmp_path / "out" / "census.html").is_file()
