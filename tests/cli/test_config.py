"""Settings: precedence, validation and secrets."""

from __future__ import annotations

import os
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


def test_named_file_replaces_the_others(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_TIMEOUT")
    (home / "wbengine.toml").write_text("timeout = 3\n")
    (home / "other.toml").write_text("exchange = 'x'\n")
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
    name: str,
    where: str,
    what: str | int,
    why: str,
    wbengine: Command,
    above: Path,
    monkeypatch: pytest.MonkeyPatch,
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
    monkeypatch.setenv("WBENGINE_CONFIG", str(file))
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
    answer = wbengine("config", "show")
    assert (
        answer.code == 78 and f"{link} must belong to you or root, got user {OTHER}" in answer.error
    )


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
    ("text", "words"),
    [
        ("timeout = 'soon'", 'timeout must be a number of seconds above 0, got "soon"'),
        ("timeout = 0", "timeout must be a number of seconds above 0, got 0"),
        ("timout = 3", "unknown setting 'timout' (did you mean 'timeout'?)"),
        ("color = 'alway'", 'color must be one of auto, always, never, got "alway" (did you mean'),
        (
            "exchange = 'a b'",
            'exchange must be 1 to 120 characters of A-Z a-z 0-9 _ . -, got "a b"',
        ),
        ("include = 'x'", 'include must be a list of strings, got "x"'),
        ("json = 1", "json must be true or false, got 1"),
        ("persistence = 3", "persistence must be a non-empty string"),
        ("flow = 3", "flow must be a table with options of 'wbengine flow', got 3"),
        ("x", "must contain TOML"),
    ],
)
def test_invalid_setting_in_a_file_is_refused(
    text: str, words: str, wbengine: Command, home: Path
) -> None:
    (home / "wbengine.toml").write_text(text)
    answer = wbengine("config", "show")
    assert (answer.code, answer.out) == (78, "")
    assert str(home / "wbengine.toml") in answer.error and words in answer.error


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TIMEOUT", "soon", "$WBENGINE_TIMEOUT must be a number"),
        ("JSON", "maybe", '$WBENGINE_JSON must be true or false, got "maybe"'),
        ("LOG_LEVEL", "warnin", "(did you mean 'warning'?)"),
        ("TRANSPORT_OPTIONS", "[]", "$WBENGINE_TRANSPORT_OPTIONS must be a table, got []"),
        ("URL_FILE", "/no/such/file", "$WBENGINE_URL_FILE: cannot read '/no/such/file'"),
    ],
)
def test_invalid_setting_in_the_environment_is_refused(
    name: str, value: str, words: str, wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"WBENGINE_{name}", value)
    answer = wbengine("config", "show")
    assert (answer.code, answer.out) == (78, "")
    assert words in answer.error


def test_invalid_flags_are_refused(wbengine: Command) -> None:
    answer = wbengine("config", "show", "--timeout", "0")
    assert answer.code == 2 and "--timeout" in answer.error
    answer = wbengine("config", "show", "--exchange", "a b")
    assert answer.code == 2 and "--exchange must be 1 to 120 characters" in answer.error
    answer = wbengine("config", "show", "--transport-option", "x")
    assert answer.code == 2 and "--transport-option must have the form" in answer.error


def test_secrets_are_read_from_files_and_masked(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "url").write_text("mongodb://:canary@host/0\n")  # any options are allowed
    monkeypatch.setenv("WBENGINE_URL_FILE", str(home / "url"))
    monkeypatch.setenv("WBENGINE_LEDGER", "postgresql://me:canary@host/db")
    monkeypatch.setenv("WBENGINE_TRANSPORT_OPTIONS", '{"password": "canary", "n": 1}')
    reply = wbengine("config", "show", "--json")
    assert setting(reply, "url") == ("mongodb://:***@host/0", "$WBENGINE_URL_FILE")
    assert setting(reply, "transport_options")[0]["n"] == 1
    for answer in (reply, wbengine("config", "show")):
        assert answer.code == 0 and "canary" not in answer.out + answer.err


def test_default_url_is_database_of_flows_in_postgresql(
    wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = "postgresql://me:canary@host/flows"
    monkeypatch.setenv("WBENGINE_PERSISTENCE", store)
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


def test_command_options_can_be_set_in_file_and_environment(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complaint() -> str:
        answer = wbengine("flow", "run", "no_such:flow")
        assert answer.code == 78
        return answer.error

    (home / "wbengine.toml").write_text("[flow.run]\ndeadline = 'never'\n")
    assert "[flow.run] in the settings: deadline must be a duration" in complaint()
    (home / "wbengine.toml").write_text("[flow.run]\ndead_line = '3s'\n")
    assert "[flow.run]: unknown option 'dead_line' (did you mean 'deadline'?)" in complaint()
    (home / "wbengine.toml").unlink()
    monkeypatch.setenv("WBENGINE_FLOW_RUN_DEADLINE", "never")
    assert "$WBENGINE_FLOW_RUN_DEADLINE must be a duration" in complaint()


def test_include_modules_are_imported_first(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "noted.py").write_text("import pathlib\npathlib.Path('noted').touch()\n")
    assert wbengine("-I", "noted", "config", "path").code == 0
    assert (home / "noted").exists()
    monkeypatch.setenv("WBENGINE_INCLUDE", "no_such_module")
    answer = wbengine("config", "path")
    assert answer.code == 78
    assert "$WBENGINE_INCLUDE: cannot import 'no_such_module'" in answer.error


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


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("threads = true", "threads must be a string or a number, got true"),
        ("threads = [1]", "threads must be a string or a number, got [1]"),
        ("threads = 2.5", "threads: '2.5' is not"),
        ("burst = 1", "burst must be true or false, got 1"),
        ("topic = 'orders'", 'topic must be a list of strings, got "orders"'),
        ("metrics-addr = 9100", "metrics_addr must have the form HOST:PORT, got '9100'"),
    ],
)
def test_option_of_wrong_type_in_a_table_is_refused(
    wbengine: Command, home: Path, line: str, wanted: str
) -> None:
    (home / "wbengine.toml").write_text(f"[worker]\n{line}\n")
    answer = wbengine("worker", "t", "--tasks", "tests.support.worker_tasks")
    assert answer.code == 78 and wanted in answer.error


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
        answer = wbengine(*words)
        assert answer.code == 1 and "the current folder was deleted" in answer.error
