"""Settings: precedence, validation, secrets, and databases of tasks."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import Answer, Command
from wbengine._cli import config, errors, settings_schema
from wbengine._imports import search_path


def setting(answer: Answer, name: str) -> tuple[Any, str]:
    (entry,) = [each for each in answer.json["settings"] if each["name"] == name]
    return entry["value"], entry["from"]


def user_file(home: Path, text: str) -> Path:
    path = home.parent / "config" / "wbengine" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_flag_overrides_environment_files_and_default(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_TIMEOUT")

    def timeout(*flags: str) -> tuple[Any, str]:
        return setting(wbengine("config", "show", "--json", *flags), "timeout")

    assert timeout() == (5.0, "default")
    path = user_file(home, "timeout = 1\n")
    assert timeout() == (1, str(path))
    (home.parent / "pyproject.toml").write_text("[tool.wbengine]\ntimeout = 2\n")
    (home.parent / "pyproject.toml").chmod(0o644)  # independent of the umask
    assert timeout() == (2, str(home.parent / "pyproject.toml"))
    (home / "wbengine.toml").write_text("timeout = 3\n")
    assert timeout() == (3, str(home / "wbengine.toml"))
    monkeypatch.setenv("WBENGINE_TIMEOUT", "4")
    assert timeout() == (4, "$WBENGINE_TIMEOUT")
    assert timeout("--timeout", "5.5") == (5.5, "flag")


def test_named_file_replaces_the_others(wbengine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WBENGINE_TIMEOUT")
    (wbengine.folder / "wbengine.toml").write_text("timeout = 3\n")
    (wbengine.folder / "other.toml").write_text("exchange = 'x'\n")
    answer = wbengine("--config", "other.toml", "config", "show", "--json")
    assert setting(answer, "timeout") == (5.0, "default")
    assert setting(answer, "exchange") == ("x", "other.toml")
    assert wbengine("config", "path", "--config", "other.toml").out == "other.toml\n"
    answer = wbengine("config", "show", "--config", "none.toml")
    assert answer.code == 78 and "must name an existing file, got 'none.toml'" in answer.error


@pytest.fixture
def above(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder; the command is called in its subfolder."""
    home.chmod(0o755)
    (home / "src").mkdir()
    monkeypatch.chdir(home / "src")
    return home


OTHER = 54_321

#: Path, change to the file or its folder, and expected error.
STRANGE = [
    (".", "chown", "must belong to you or root, got user 54321"),
    (".", 0o775, "{folder} is writable by its group (mode 0775)"),
    (".", 0o757, "{folder} is writable by other users (mode 0757)"),
    ("file", "chown", "{file} must belong to you or root, got user 54321"),
    ("file", 0o664, "{file} is writable by its group (mode 0664)"),
    ("file", 0o646, "{file} is writable by other users (mode 0646)"),
]


def make_strange(path: Path, what: str | int) -> None:
    if isinstance(what, int):
        path.chmod(what)
    elif os.geteuid() == 0:
        os.chown(path, OTHER, OTHER)
    else:
        pytest.skip("only root gives files away")


@pytest.mark.parametrize("name", ["wbengine.toml", "pyproject.toml"])
@pytest.mark.parametrize(("where", "what", "why"), STRANGE)
def test_file_in_parent_folder_that_others_can_write_is_refused(
    name: str, where: str, what: str | int, why: str, wbengine: Command, above: Path
) -> None:
    file = above / name
    file.write_text("[tool.wbengine]\nexchange = 'x'\n" if "py" in name else "exchange = 'x'\n")
    file.chmod(0o644)
    assert setting(wbengine("config", "show", "--json"), "exchange") == ("x", str(file))
    make_strange(file if where == "file" else above, what)
    answer = wbengine("config", "show", "--json")
    assert (answer.code, answer.out) == (78, "")
    assert f"refused to read {file}: " in answer.error
    assert why.format(folder=above, file=file) in answer.error
    assert f"--config {file}" in answer.error
    mend = f"chmod go-w {file if where == 'file' else above}"
    assert (mend in answer.error) == isinstance(what, int)
    trusted = wbengine("config", "show", "--json", "--config", str(file))
    assert setting(trusted, "exchange") == ("x", str(file))
    wbengine.setenv("WBENGINE_CONFIG", str(file))
    assert setting(wbengine("config", "show", "--json"), "exchange") == ("x", str(file))


@pytest.mark.parametrize(("what", "refused"), [("chown", True), (0o646, True), (0o664, False)])
def test_file_in_current_folder_may_be_writable_by_its_group_only(
    what: str | int, refused: bool, wbengine: Command, home: Path
) -> None:
    home.chmod(0o775)
    file = home / "wbengine.toml"
    file.write_text("exchange = 'x'\n")
    make_strange(file, what)
    answer = wbengine("config", "show", "--json")
    if refused:
        assert answer.code == 78 and f"refused to read {file}: " in answer.error
    else:
        assert setting(answer, "exchange") == ("x", str(file))


def test_own_file_in_a_sticky_folder_is_read(wbengine: Command, above: Path) -> None:
    (above / "wbengine.toml").write_text("exchange = 'x'\n")
    (above / "wbengine.toml").chmod(0o644)
    above.chmod(0o1777)
    answer = wbengine("config", "show", "--json")
    assert setting(answer, "exchange") == ("x", str(above / "wbengine.toml"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_symlink_of_another_user_is_refused(wbengine: Command, home: Path, above: Path) -> None:
    (above / "mine.toml").write_text("exchange = 'x'\n")
    (above / "mine.toml").chmod(0o644)
    link = above / "wbengine.toml"
    link.symlink_to("mine.toml")
    assert setting(wbengine("config", "show", "--json"), "exchange")[0] == "x"
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    wbengine.fails(78, f"{link} must belong to you or root, got user {OTHER}", "config", "show")


def test_parent_pyproject_without_our_table_may_be_world_writable(
    wbengine: Command, above: Path
) -> None:
    (above / "pyproject.toml").write_text("[tool.other]\n")
    (above / "pyproject.toml").chmod(0o666)
    above.chmod(0o777)
    assert wbengine("config", "show").code == 0


def test_detached_process_reads_the_named_file(wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text("persistence = 'no-such-store://'\n")
    (home / "wbengine.toml").chmod(0o666)
    (home.parent / "mine.toml").write_text(f"persistence = 'dir://{home}/flows'\n")
    mine = ("--config", "../mine.toml")
    answer = wbengine.apart("flow", "run", "tests.cli.shop:order", "--detach", *mine)
    assert answer.code == 0, answer.err
    assert wbengine("flow", "watch", answer.out.strip(), *mine).code == 0


def test_environment_for_a_child_process_reproduces_the_options(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of the output are not passed on."""
    given = {
        "url": "memory://x", "transport_options": {"port": 1, "hosts": ["a", "b"]},
        "include": ["one", "two"], "flows": ["shop"], "timeout": 3.5, "log_level": "debug",
    }  # fmt: skip
    options = config.read({**given, "json": True, "quiet": True}, [])
    for name, value in options.environment().items():
        monkeypatch.setenv(name, value)
    again = config.read({}, [])
    assert {name: getattr(again, name) for name in given} == {
        **given, "include": ("one", "two"), "flows": ("shop",),
    }  # fmt: skip
    assert not again.json and not again.quiet and again.origins["url"] == "$WBENGINE_URL"


def test_pyproject_without_our_table_is_ignored(wbengine: Command, home: Path) -> None:
    (home / "pyproject.toml").write_text("[tool.other]\nwbengine = 1\n")
    assert wbengine("config", "path").out == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TIMEOUT", "soon", "$WBENGINE_TIMEOUT must be a number"),
        ("JSON", "maybe", '$WBENGINE_JSON must be true or false, got "maybe"'),
        ("LOG_LEVEL", "warnin", "(did you mean 'warning'?)"),
        ("TRANSPORT_OPTIONS", "[]", "$WBENGINE_TRANSPORT_OPTIONS must be a table, got []"),
        ("FLOW_RUN_DEADLINE", "never", "$WBENGINE_FLOW_RUN_DEADLINE must be a duration"),
        ("URL_FILE", "/no/such/file", "$WBENGINE_URL_FILE: cannot read '/no/such/file'"),
    ],
)
def test_invalid_setting_in_the_environment_is_refused(
    name: str, value: str, words: str, wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"WBENGINE_{name}", value)
    wbengine.fails(78, words, "flow", "run", "no_such:flow")


def test_secrets_are_read_from_files_and_masked(wbengine: Command) -> None:
    (wbengine.folder / "url").write_text("mongodb://:canary@host/0\n")  # any options are allowed
    wbengine.setenv("WBENGINE_URL_FILE", str(wbengine.folder / "url"))
    wbengine.setenv("WBENGINE_LEDGER", "postgresql://me:canary@host/db")
    wbengine.setenv("WBENGINE_TRANSPORT_OPTIONS", '{"password": "canary", "n": 1}')
    reply = wbengine("config", "show", "--json")
    assert setting(reply, "url") == ("mongodb://:***@host/0", "$WBENGINE_URL_FILE")
    assert setting(reply, "transport_options")[0]["n"] == 1
    for answer in (reply, wbengine("config", "show")):
        assert answer.code == 0 and "canary" not in answer.out + answer.err


def test_default_url_is_database_of_flows_in_postgresql(wbengine: Command) -> None:
    store = "postgresql://me:canary@host/flows"
    wbengine.setenv("WBENGINE_PERSISTENCE", store)
    url = ("postgresql://me:***@host/flows", "persistence")
    assert setting(wbengine("config", "show", "--json"), "url") == url
    options = ("--transport-option", "dead_after=5")
    assert setting(wbengine("config", "show", "--json", *options), "url") == url
    answer = wbengine("config", "show", "--json", "--url", "redis://queues/0")
    assert setting(answer, "url") == ("redis://queues/0", "flag")
    for words in (["--persistence", "memory"], ["--transport", "memory"]):
        answer = wbengine("config", "show", "--json", *words)
        assert setting(answer, "url") == (None, "default")


def test_invalid_default_url_is_reported_as_setting_of_store(home: Path) -> None:
    settings = config.read({"persistence": "postgresql://me@host/flows"}, [])
    assert settings.origin("url") == "--persistence"
    with pytest.raises(errors.Failed) as raised, settings.failing("url", ValueError):
        raise ValueError("needs psycopg")
    assert raised.value.line == "--persistence: needs psycopg"
    assert raised.value.code == errors.USAGE


def test_include_modules_are_imported_first(wbengine: Command) -> None:
    (wbengine.folder / "noted.py").write_text("import pathlib\npathlib.Path('noted').touch()\n")
    assert wbengine("-I", "noted", "config", "path").code == 0
    assert (wbengine.folder / "noted").exists()
    wbengine.setenv("WBENGINE_INCLUDE", "no_such_module")
    wbengine.fails(78, "$WBENGINE_INCLUDE: cannot import 'no_such_module'", "config", "path")


@pytest.mark.slow
def test_schema_is_valid_and_matches_the_settings(wbengine: Command) -> None:
    schema = wbengine("config", "schema").json
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"timeout": 3, "flow": {"run": {"engine": "parallel"}}}, schema)
    for bad in ({"timout": 3}, {"timeout": "x"}, {"flow": {"run": {"engin": "parallel"}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_defaults_are_valid_settings() -> None:
    for name, value in settings_schema.DEFAULTS.items():
        jsonschema.validate(value, settings_schema.SCHEMA["properties"][name])


def test_log_can_be_json(wbengine: Command, home: Path) -> None:
    (home / "noisy.py").write_text(
        "import logging\nlogging.getLogger('noisy').warning('%s', 'hello', extra={'flow': 'f'})\n"
    )
    answer = wbengine.apart("-I", "noisy", "--log-format", "json", "config", "path", "-q")
    assert answer.code == 0
    (line,) = [Answer(0, line, "").json for line in answer.err.splitlines()]
    assert (line["message"], line["level"], line["flow"]) == ("hello", "WARNING", "f")
    answer = wbengine.apart("-I", "noisy", "config", "path", "-q", "--log-level", "error")
    assert answer.err == ""


def test_inputs_are_read_from_a_file(wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text('[flow.run]\ninputs = {order_id = 7, card = "x"}\n')
    answer = wbengine("flow", "run", "tests.cli.shop:order", "--quiet")
    assert answer.json["results"]["order_id"] == 7


def test_slots_on_the_command_line_override_those_of_a_file(wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text("[worker]\nthreads = 2\npool = 'threads'\n")
    words = ("t", "--tasks", "tests.support.worker_tasks", "--max-idle-time", "0.1")
    broker = ("--url", f"filesystem://{home}/broker")
    answer = wbengine("worker", *words, *broker, "--concurrency", "3")
    assert answer.code == 0 and "3 " in answer.err


def test_user_without_home_has_store_in_temporary_folder(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path("/"))
    state = home / f"wbengine-{os.getuid()}-state"
    for folder in ("/", "/nonexistent", "~"):  # the last one: no entry in the user database
        monkeypatch.setenv("HOME", folder)
        assert wbengine("db", "current").code == 0
        assert config.state_folder() == state
    assert wbengine("db", "upgrade").code == 0
    assert (state / "flows" / "flows.db").exists()
    state.chmod(0o755)
    assert "is open to other users" in wbengine("flow", "list").error


def test_command_in_deleted_folder_fails_with_reason(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    search_path.put_current_folder_last()
    (home / "other.toml").touch()
    for words in (["flow", "list"], ["flow", "list", "--config", str(home / "other.toml")]):
        wbengine.fails(1, "the current folder was deleted", *words)


PROGRAM = """
import sqlalchemy as sa

from wbengine import task
from wbengine.patterns import linear_flow


@task.task(transaction="shop", provides="receipt")
def charge(connection, order):
    connection.execute(sa.text("INSERT INTO effects VALUES (7)"))
    return order


def make():
    return linear_flow.Flow("f").add(charge())
"""


@pytest.fixture
def shop(home: Path, quiet_store: None) -> str:
    """Return the URL of a database."""
    (home / "orders.py").write_text(PROGRAM)
    with contextlib.closing(sqlite3.connect(home / "shop.db")) as connection:
        connection.execute("CREATE TABLE effects (number INTEGER)")
    return f"sqlite:///{home}/shop.db"


RUN = ("flow", "run", "orders:make", "--inputs", '{"order": 7}')


def test_command_registers_databases_of_its_file(wbengine: Command, shop: str, home: Path) -> None:
    (home / "wbengine.toml").write_text(f'[databases]\nshop = "{shop}"\n')
    answer = wbengine.apart(*RUN)
    assert answer.code == 0, answer
    with contextlib.closing(sqlite3.connect(home / "shop.db")) as connection:
        assert connection.execute("SELECT number FROM effects").fetchall() == [(7,)]


def test_unknown_database_ends_the_command(wbengine: Command, shop: str) -> None:
    answer = wbengine.apart(*RUN, env={"WBENGINE_DATABASES": json.dumps({"shops": shop})})
    assert answer.code != 0
    assert "did you mean 'shops'" in answer.err


def test_passwords_of_databases_are_masked(wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text('[databases]\nshop = "postgresql://me:hidden@host/shop"\n')
    for words in (), ("--json",):
        assert "hidden" not in wbengine("config", "show", *words).out
