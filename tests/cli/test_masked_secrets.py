"""Secrets in arguments and in logs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from wbengine._cli import log_output, secret_arguments
from wbengine._logs import line_format

URL = "redis://flows:nightingale@queues/0"


@pytest.mark.parametrize(
    ("words", "name", "instead"),
    [
        (["--url", URL], "--url", "$WBENGINE_URL_FILE"),
        ([f"--url={URL}"], "--url", "$WBENGINE_URL_FILE"),
        (["-b", URL], "-b", "$WBENGINE_URL_FILE"),
        (["--broker", URL], "--broker", "$WBENGINE_URL_FILE"),
        (["--ledger", URL], "--ledger", "$WBENGINE_LEDGER_FILE"),
        (["--persistence", "mysql://u:nightingale@db/x"], "--persistence", "_FILE"),
        (["--board", URL], "--board", "$WBENGINE_BOARD_FILE"),
        (["--celery-broker", URL], "--celery-broker", "$WBENGINE_CELERY_BROKER"),
        (["--token", "nightingale-nightingale"], "--token", "--token-file"),
        (["--token=nightingale-nightingale"], "--token", "--token-file"),
        (["--inputs", '{"password": "nightingale"}'], "--inputs", "@FILE"),
        (["--transport-option", "password=nightingale"], "--transport-option", "settings"),
    ],
)
def test_secret_on_the_command_line_causes_a_warning(
    words: list[str], name: str, instead: str
) -> None:
    """The warning names the alternative, without the secret."""
    (line,) = secret_arguments.warnings_of(["flow", "run", *words, "orders:flow"])
    assert line.startswith(f"{name} contains a secret") and instead in line
    assert "nightingale" not in line


@pytest.mark.parametrize(
    "words",
    [
        ["--url", "redis://queues/0"],
        ["--url", "redis://flows@queues/0"],
        ["--token-file", "/run/secrets/token"],
        ["--keys", "/etc/wbengine/keys.json"],
        ["--inputs", '{"name": "Ada"}', "--unique", "key"],
        ["-b", "amqp://queues", "--name", "token"],
    ],
    ids=" ".join,
)
def test_harmless_arguments_cause_no_warning(words: list[str]) -> None:
    assert list(secret_arguments.warnings_of(["worker", *words, "orders"])) == []


def test_commands_warn_of_secret_arguments(wbengine: Command, home: Path) -> None:
    done = wbengine.begin("flow", "list", "--persistence", f"sqlite:///{home}/a.db", "--url", URL)
    _, errors = done.communicate(timeout=60)
    assert "--url contains a secret" in errors and "nightingale" not in errors
    done = wbengine.begin("flow", "list", env={"WBENGINE_URL": URL})
    assert "contains a secret" not in done.communicate(timeout=60)[1]


LEAKS = {
    "the URL of a broker": (f"lost the broker {URL}", ()),
    "an argument": ("cannot log in: %s", ({"user": "ada", "password": "nightingale"},)),
    "a header": ("sent %r", ("Authorization: Bearer nightingale-nightingale",)),
    "a pair": ("token=%s is wrong", ("nightingale",)),
}


def of_command(form: str, record: logging.LogRecord) -> str:
    if form == "json":
        return log_output.JSONLines().format(record)
    return line_format.Lines(mask=log_output._masked).format(record)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("leak", LEAKS)
def test_secrets_are_masked_in_log_messages(leak: str, form: str) -> None:
    message, args = LEAKS[leak]
    record = logging.makeLogRecord({"msg": message, "args": args, "levelname": "WARNING"})
    line = of_command(form, record)
    assert "nightingale" not in line and "***" in line
    if form == "json":
        assert json.loads(line)["level"] == "WARNING"


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_are_masked_in_tracebacks(form: str) -> None:
    try:
        raise ConnectionError(f"cannot reach {URL}") from ValueError("password='nightingale'")
    except ConnectionError as error:
        info = (type(error), error, error.__traceback__)
    line = of_command(form, logging.makeLogRecord({"msg": "failed", "exc_info": info}))
    assert "Traceback" in line and "ConnectionError" in line
    assert "nightingale" not in line


def test_secrets_are_masked_in_extra_fields_of_log_records() -> None:
    more = {"url": URL, "api_key": "nightingale", "deep": {"list": [{"token": "nightingale"}]}}
    record = logging.makeLogRecord({"msg": "x", **more, "path": Path("/a"), "count": 3})
    line = of_command("json", record)
    assert "nightingale" not in line
    data = json.loads(line)
    assert (data["path"], data["count"], data["api_key"]) == ("/a", 3, "***")
    assert data["deep"] == {"list": [{"token": "***"}]}


def test_secrets_are_masked_in_the_log_of_a_command(wbengine: Command, home: Path) -> None:
    """The module of a worker logs a secret on import."""
    (home / "noisy.py").write_text(
        "import logging\nfrom wbengine import task\n"
        f"logging.getLogger('noisy').warning('connected to %s', {URL!r})\n"
        "class Nothing(task.Task):\n    def execute(self): pass\n"
    )
    for form in ("text", "json"):
        done = wbengine.begin(
            "worker", "t", "--tasks", "noisy", "--burst", "--log-format", form,
            "--url", f"filesystem://{home}/broker",
        )  # fmt: skip
        _, errors = done.communicate(timeout=60)
        assert "redis://flows:***@queues/0" in errors and "nightingale" not in errors
