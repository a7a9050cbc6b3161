"""Settings files that are refused, with the place and the reason."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command

STORE = "--persistence sqlite:///flows.db"
SERVE = f"serve {STORE}"
RUN = "flow run tests.cli.shop:order"

SETTINGS = [
    ("timeout = 'soon'", 'timeout must be a number of seconds above 0, got "soon"'),
    ("timeout = 0", "timeout must be a number of seconds above 0, got 0"),
    ("timout = 3", "unknown setting 'timout' (did you mean 'timeout'?)"),
    ("color = 'alway'", 'color must be one of auto, always, never, got "alway" (did you mean'),
    ("exchange = 'a b'", 'exchange must be 1 to 120 characters of A-Z a-z 0-9 _ . -, got "a b"'),
    ("include = 'x'", 'include must be a list of strings, got "x"'),
    ("json = 1", "json must be true or false, got 1"),
    ("persistence = 3", "persistence must be a non-empty string"),
    ("flow = 3", "flow must be a table with options of 'wbengine flow', got 3"),
    ("x", "must contain TOML"),
]
OPTIONS_OF_WORKERS = [
    ("threads = true", "threads must be a string or a number, got true"),
    ("threads = [1]", "threads must be a string or a number, got [1]"),
    ("threads = 2.5", "threads: '2.5' is not"),
    ("burst = 1", "burst must be true or false, got 1"),
    ("topic = 'orders'", 'topic must be a list of strings, got "orders"'),
    ("metrics-addr = 9100", "metrics_addr must have the form HOST:PORT, got '9100'"),
]
TABLES = [
    ("[flow.rnu]\nengine = 'parallel'", "[flow]: unknown command 'rnu' (did you mean 'run'?)"),
    ("[flow]\nengine = 'parallel'", "[flow]: unknown command 'engine'"),
    ("[flow.run]\nenginee = 'x'", "[flow.run]: unknown option 'enginee' (did you mean 'engine'?)"),
    ("[flow.run]\ndeadline = 'never'", "[flow.run] in the settings: deadline must be a duration"),
    ("[schedules.x]\nfactory = 'a:b'\nevry = 3", "x: unknown key 'evry' (did you mean 'every'?)"),
    (
        "[schedules.x]\nfactory = 'a:b'\nevery = 3\noverlap = 'skp'",
        "overlap must be one of skip, queue, cancel, allow, got 'skp' (did you mean 'skip",
    ),
]
SCHEDULES = [
    ("[schedules.a]\nevery = '5m'", "schedules.a: 'factory' is a required property"),
    ("[schedules.a]\nfactory = 'f'\ncrn = 'x'", "unknown key 'crn' (did you mean 'cron'"),
    ("[schedules.a]\nfactory = 'f'", "must have either cron or every"),
    (
        "[schedules.a]\nfactory = 'f'\nevery = '1h'\nundo_until = 'soon'",
        "undo_until must be a duration above 0",
    ),
    (
        "[schedules.a]\nfactory = 'f'\nevery = 'soon'",
        "every must be a duration such as 30 or 5m, got 'soon'",
    ),
    (
        "[schedules.a]\nfactory = 'f'\nevery = 5\njitter = 'x'",
        "jitter must be a duration such as 30 or 5m, got 'x'",
    ),
    ("[schedules.a]\nfactory = 'f'\ncron = 'x'", "cron must be an expression such as"),
    ("schedules = 'x'", "schedules must be a table"),
]
RETENTION = [
    ('failure = "soon"', "retention: failure must be"),
    ("max_flow = 5", "did you mean 'max_flows'"),
]
NOTIFY = [
    ("events = ['flow_faild']", "notify.events.0 must be one of"),
    ("evnts = []", "notify: unknown key 'evnts' (did you mean 'events'?)"),
    ("[notify.to.x]\ntype = 'slak'", "(did you mean 'slack'?)"),
    ("[notify.to.x]\ntype = 'slack'\nurl = 'https://x'", "unknown option 'url'"),
    ("[notify.to.x]\ntype = 'slack'\nurl_file = 'none'", "cannot read 'none'"),
    ("hook = 'tests.cli.shop:odrer'", "did you mean 'order'?"),
    ("interval = '1m'", "must contain a destination"),
]
REFUSED = [
    pytest.param(line, f"{head}{text}\n", place, message, id=f"{line.partition(' -')[0]} {text}")
    for line, head, place, rows in (
        ("config show", "", "/wbengine.toml", SETTINGS),
        ("worker t --tasks tests.support.worker_tasks", "[worker]\n", "", OPTIONS_OF_WORKERS),
        (RUN, "", "", TABLES),
        (SERVE, "", "wbengine.toml", SCHEDULES),
        (SERVE, "[retention]\n", "wbengine.toml", RETENTION),
        (SERVE, "[notify]\n", "wbengine.toml: notify", NOTIFY),
        (f"notify test {STORE}", "[notify]\n", "wbengine.toml: notify", NOTIFY),
    )
    for text, message in rows
]


@pytest.mark.parametrize(("line", "text", "place", "message"), REFUSED)
def test_invalid_settings_file_is_refused(
    line: str, text: str, place: str, message: str, wbengine: Command, home: Path
) -> None:
    (home / "wbengine.toml").write_text(text)
    answer = wbengine(*shlex.split(line))
    assert (answer.code, answer.out) == (78, ""), answer
    assert place in answer.error and message in answer.error
