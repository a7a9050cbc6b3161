"""Settings: who is believed first, what is refused, and that secrets stay secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import Answer, Command
from wbengine.cli import config, settings_schema


def setting(told: Answer, name: str) -> tuple[Any, str]:
    (found,) = [each for each in told.json["settings"] if each["name"] == name]
    return found["value"], found["from"]


def user_file(home: Path, text: str) -> Path:
    path = home.parent / "config" / "wbengine" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_who_is_believed_first(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_TIMEOUT")

    def timeout(*flags: str) -> tuple[Any, str]:
        return setting(wbengine("config", "show", "--json", *flags), "timeout")

    assert timeout() == (5.0, "default")
    path = user_file(home, "timeout = 1\n")
    assert timeout() == (1, str(path))
    (home.parent / "pyproject.toml").write_text("[tool.wbengine]\ntimeout = 2\n")
    (home.parent / "pyproject.toml").chmod(0o644)  # whatever the umask
    assert timeout() == (2, str(home.parent / "pyproject.toml"))
    (home / "wbengine.toml").write_text("timeout = 3\n")
    assert timeout() == (3, str(home / "wbengine.toml"))
    monkeypatch.setenv("WBENGINE_TIMEOUT", "4")
    assert timeout() == (4, "$WBENGINE_TIMEOUT")
    assert timeout("--timeout", "5.5") == (5.5, "flag")


def test_a_file_that_is_named_replaces_the_others(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_TIMEOUT")
    (home / "wbengine.toml").write_text("timeout = 3\n")
    (home / "other.toml").write_text("exchange = 'x'\n")
    told = wbengine("--config", "other.toml", "config", "show", "--json")
    assert setting(told, "timeout") == (5.0, "default")
    assert setting(told, "exchange") == ("x", "other.toml")
    assert wbengine("config", "path", "--config", "other.toml").out == "other.toml\n"
    told = wbengine("config", "show", "--config", "none.toml")
    assert told.code == 78 and "there is no file 'none.toml'" in told.error


@pytest.fixture
def above(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, in whose sub-folder the command is called."""
    home.chmod(0o755)
    (home / "src").mkdir()
    monkeypatch.chdir(home / "src")
    return home


OTHER = 54_321

#: The file, what was done to it or its folder, and what the error says.
STRANGE = [
    (".", "chown", "belongs to user 54321, not to you or root"),
    (".", 0o775, "its group may write {folder} (mode 0775)"),
    (".", 0o757, "others may write {folder} (mode 0757)"),
    ("file", "chown", "{file} belongs to user 54321, not to you or root"),
    ("file", 0o664, "its group may write {file} (mode 0664)"),
    ("file", 0o646, "others may write {file} (mode 0646)"),
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
def test_a_file_above_that_others_may_have_written_is_refused(
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
    told = wbengine("config", "show", "--json")
    assert (told.code, told.out) == (78, "")
    assert f"{file} is not read: " in told.error
    assert why.format(folder=above, file=file) in told.error
    assert f"--config {file}" in told.error
    mend = f"chmod go-w {file if where == 'file' else above}"
    assert (mend in told.error) == isinstance(what, int)
    trusted = wbengine("config", "show", "--json", "--config", str(file))
    assert setting(trusted, "exchange") == ("x", str(file))
    monkeypatch.setenv("WBENGINE_CONFIG", str(file))
    assert setting(wbengine("config", "show", "--json"), "exchange") == ("x", str(file))


@pytest.mark.parametrize(("what", "refused"), [("chown", True), (0o646, True), (0o664, False)])
def test_a_file_here_may_be_shared_by_a_group_only(
    what: str | int, refused: bool, wbengine: Command, home: Path
) -> None:
    home.chmod(0o775)
    file = home / "wbengine.toml"
    file.write_text("exchange = 'x'\n")
    make_strange(file, what)
    told = wbengine("config", "show", "--json")
    if refused:
        assert told.code == 78 and f"{file} is not read: " in told.error
    else:
        assert setting(told, "exchange") == ("x", str(file))


def test_a_file_of_ones_own_in_a_sticky_folder_is_read(wbengine: Command, above: Path) -> None:
    (above / "wbengine.toml").write_text("exchange = 'x'\n")
    (above / "wbengine.toml").chmod(0o644)
    above.chmod(0o1777)
    told = wbengine("config", "show", "--json")
    assert setting(told, "exchange") == ("x", str(above / "wbengine.toml"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_of_another_user_is_refused(wbengine: Command, home: Path, above: Path) -> None:
    (above / "mine.toml").write_text("exchange = 'x'\n")
    (above / "mine.toml").chmod(0o644)
    link = above / "wbengine.toml"
    link.symlink_to("mine.toml")
    assert setting(wbengine("config", "show", "--json"), "exchange")[0] == "x"
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    told = wbengine("config", "show")
    assert told.code == 78 and f"{link} belongs to user {OTHER}" in told.error


def test_a_pyproject_above_without_our_table_may_be_anybodys(
    wbengine: Command, above: Path
) -> None:
    (above / "pyproject.toml").write_text("[tool.other]\n")
    (above / "pyproject.toml").chmod(0o666)
    above.chmod(0o777)
    assert wbengine("config", "show").code == 0


def test_what_runs_on_by_itself_reads_the_file_that_was_named(
    wbengine: Command, home: Path
) -> None:
    (home / "wbengine.toml").write_text("persistence = 'no-such-store://'\n")
    (home / "wbengine.toml").chmod(0o666)
    (home.parent / "mine.toml").write_text(f"persistence = 'dir://{home}/flows'\n")
    mine = ("--config", "../mine.toml")
    told = wbengine.apart("flow", "run", "tests.cli.shop:order", "--detach", *mine)
    assert told.code == 0, told.err
    assert wbengine("flow", "watch", told.out.strip(), *mine).code == 0


def test_variables_for_a_process_that_goes_on_say_what_the_options_said(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but how it prints."""
    given = {
        "url": "memory://x", "transport_options": {"port": 1, "hosts": ["a", "b"]},
        "include": ["one", "two"], "flows": ["shop"], "timeout": 3.5, "log_level": "debug",
    }  # fmt: skip
    told = config.read({**given, "json": True, "quiet": True}, [])
    for name, value in told.environment().items():
        monkeypatch.setenv(name, value)
    again = config.read({}, [])
    assert {name: getattr(again, name) for name in given} == {
        **given, "include": ("one", "two"), "flows": ("shop",),
    }  # fmt: skip
    assert not again.json and not again.quiet and again.origins["url"] == "$WBENGINE_URL"


def test_a_pyproject_of_somebody_else_is_left_alone(wbengine: Command, home: Path) -> None:
    (home / "pyproject.toml").write_text("[tool.other]\nwbengine = 1\n")
    assert wbengine("config", "path").out == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timeout = 'soon'", 'timeout is "soon": it must be a number of seconds above 0'),
        ("timeout = 0", "timeout is 0: it must be a number"),
        ("timout = 3", "there is no setting 'timout' (did you mean 'timeout'?)"),
        ("color = 'alway'", "it must be one of auto, always, never (did you mean 'always'?)"),
        ("exchange = 'a b'", 'exchange is "a b": it must be 1 to 120 of A-Z'),
        ("include = 'x'", 'include is "x": it must be a list of texts'),
        ("json = 1", "json is 1: it must be true or false"),
        ("persistence = 3", "persistence is ...: it must be a text"),
        ("flow = 3", "it must be a table of the options of 'wbengine flow'"),
        ("x", "is no TOML"),
    ],
)
def test_what_is_wrong_in_a_file(text: str, words: str, wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text(text)
    told = wbengine("config", "show")
    assert (told.code, told.out) == (78, "")
    assert str(home / "wbengine.toml") in told.error and words in told.error


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TIMEOUT", "soon", '$WBENGINE_TIMEOUT is "soon": it must be a number'),
        ("JSON", "maybe", '$WBENGINE_JSON is "maybe": it must be true or false'),
        ("LOG_LEVEL", "warnin", "(did you mean 'warning'?)"),
        ("TRANSPORT_OPTIONS", "[]", "$WBENGINE_TRANSPORT_OPTIONS is []: it must be a table"),
        ("URL_FILE", "/no/such/file", "$WBENGINE_URL_FILE: '/no/such/file' cannot be read"),
    ],
)
def test_what_is_wrong_in_the_environment(
    name: str, value: str, words: str, wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"WBENGINE_{name}", value)
    told = wbengine("config", "show")
    assert (told.code, told.out) == (78, "")
    assert words in told.error


def test_flags_are_checked_as_they_are_given(wbengine: Command) -> None:
    told = wbengine("config", "show", "--timeout", "0")
    assert told.code == 2 and "--timeout" in told.error
    told = wbengine("config", "show", "--exchange", "a b")
    assert told.code == 2 and "'a b' is not 1 to 120" in told.error
    told = wbengine("config", "show", "--transport-option", "x")
    assert told.code == 2 and "'x' is not of the form KEY=VALUE" in told.error


def test_secrets_may_be_in_files_and_are_never_shown(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "url").write_text("redis://:canary@host/0\n")
    monkeypatch.setenv("WBENGINE_URL_FILE", str(home / "url"))
    monkeypatch.setenv("WBENGINE_LEDGER", "postgresql://me:canary@host/db")
    monkeypatch.setenv("WBENGINE_TRANSPORT_OPTIONS", '{"password": "canary", "n": 1}')
    told = wbengine("config", "show", "--json")
    assert setting(told, "url") == ("redis://:***@host/0", "$WBENGINE_URL_FILE")
    assert setting(told, "transport_options")[0]["n"] == 1
    for answer in (told, wbengine("config", "show")):
        assert answer.code == 0 and "canary" not in answer.out + answer.err


@pytest.mark.parametrize("name", ["url", "persistence"])
def test_the_longer_names_of_urls_mean_the_same(
    name: str, wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"url": "WBENGINE_BROKER_URL", "persistence": "WBENGINE_PERSISTENCE_URL"}[name]
    monkeypatch.setenv(long, "memory://long")
    told = wbengine("config", "show", "--json")
    assert setting(told, name) == ("memory://long", f"${long}")


def test_options_of_a_command_can_be_set(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complaint() -> str:
        told = wbengine("flow", "run", "no_such:flow")
        assert told.code == 78
        return told.error

    (home / "wbengine.toml").write_text("[flow.run]\ndeadline = 'never'\n")
    assert "[flow.run] of the settings: deadline: 'never' is no duration" in complaint()
    (home / "wbengine.toml").write_text("[flow.run]\ndead_line = '3s'\n")
    assert "[flow.run] has no option 'dead_line' (did you mean 'deadline'?)" in complaint()
    (home / "wbengine.toml").unlink()
    monkeypatch.setenv("WBENGINE_FLOW_RUN_DEADLINE", "never")
    assert "$WBENGINE_FLOW_RUN_DEADLINE: 'never' is no duration" in complaint()


def test_modules_are_imported_first(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "noted.py").write_text("import pathlib\npathlib.Path('noted').touch()\n")
    assert wbengine("-I", "noted", "config", "path").code == 0
    assert (home / "noted").exists()
    monkeypatch.setenv("WBENGINE_INCLUDE", "no_such_module")
    told = wbengine("config", "path")
    assert told.code == 78
    assert "$WBENGINE_INCLUDE: 'no_such_module' cannot be imported" in told.error


def test_the_schema_is_one_and_knows_what_is_read(wbengine: Command) -> None:
    schema = wbengine("config", "schema").json
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"timeout": 3, "flow": {"run": {"engine": "parallel"}}}, schema)
    for bad in ({"timout": 3}, {"timeout": "x"}, {"flow": {"run": {"engin": "parallel"}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_what_holds_by_default_is_what_may_be_set() -> None:
    for name, value in settings_schema.DEFAULTS.items():
        jsonschema.validate(value, settings_schema.SCHEMA["properties"][name])


def test_the_log_can_be_json(wbengine: Command, home: Path) -> None:
    (home / "noisy.py").write_text(
        "import logging\nlogging.getLogger('noisy').warning('%s', 'hello', extra={'flow': 'f'})\n"
    )
    told = wbengine.apart("-I", "noisy", "--log-format", "json", "config", "path", "-q")
    assert told.code == 0
    (line,) = [Answer(0, line, "").json for line in told.err.splitlines()]
    assert (line["message"], line["level"], line["flow"]) == ("hello", "WARNING", "f")
    told = wbengine.apart("-I", "noisy", "config", "path", "-q", "--log-level", "error")
    assert told.err == ""


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("threads = true", "threads is true: it must be a text or a number"),
        ("threads = [1]", "threads is [1]: it must be a text or a number"),
        ("threads = 2.5", "threads: '2.5' is not"),
        ("burst = 1", "burst is 1: it must be true or false"),
        ("topic = 'orders'", 'topic is "orders": it must be a list of texts'),
        ("metrics-addr = 9100", "'9100' is not of the form HOST:PORT"),
    ],
)
def test_option_of_another_kind_in_a_table_is_refused(
    wbengine: Command, home: Path, line: str, wanted: str
) -> None:
    (home / "wbengine.toml").write_text(f"[worker]\n{line}\n")
    told = wbengine("worker", "t", "--tasks", "tests.support.worker_tasks")
    assert told.code == 78 and wanted in told.error


def test_old_spelling_of_an_option_is_read_from_a_file(wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text('[flow.run]\nstore = {order_id = 7, card = "x"}\n')
    told = wbengine("flow", "run", "tests.cli.shop:order", "--quiet")
    assert told.json["results"]["order_id"] == 7


def test_slots_that_are_typed_go_before_those_of_a_file(wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text("[worker]\nthreads = 2\npool = 'threads'\n")
    words = ("t", "--tasks", "tests.support.worker_tasks", "--max-idle-time", "0.1")
    broker = ("--url", f"filesystem://{home}/broker")
    told = wbengine("worker", *words, *broker, "--concurrency", "3")
    assert told.code == 0 and "3 " in told.err
