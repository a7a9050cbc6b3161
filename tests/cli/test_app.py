"""The command: help, subcommands, imports and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.commands import ALL, UNKNOWN
from tests.cli.conftest import Command
from tests.support import fresh
from tests.support import worker_tasks as tasks
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions, task
from wbengine._cli import app, errors
from wbengine.diagnosis import findings
from wbengine.patterns import linear_flow

#: Modules that load slowly and that help does not need.
HEAVY = (
    "alembic", "asyncio", "automaton", "futurist", "jsonschema", "kombu", "multiprocessing",
    "networkx", "rich", "sqlalchemy", "starlette", "wbengine.engines",
    "wbengine.persistence", "wbengine.transports", "wbengine.views",
)  # fmt: skip


def loaded(*words: str) -> set[str]:
    """Return the modules that a call of the command loads."""
    script = (
        "import sys; from wbengine._cli import app; code = app.main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    return set(fresh.run(script, *words, cwd=os.getcwd()).stderr.split())


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("flow", "--help")], ids=" ".join)
def test_help_imports_no_slow_module(words: tuple[str, ...]) -> None:
    assert loaded(*words).isdisjoint(HEAVY)


@pytest.mark.slow
def test_store_with_current_schema_is_used_without_migrations(home: Path) -> None:
    """Migrations are slow, so they are not even imported."""
    words = ("flow", "run", "tests.cli.shop:order", "--persistence", f"sqlite:///{home}/flows.db")
    for _ in range(2):
        assert "alembic" not in loaded(*words)


def test_loaded_modules_are_detected() -> None:
    assert "rich" in loaded("config", "show", "--color", "always")


def test_help_lists_all_commands_and_exit_codes(wbengine: Command) -> None:
    answer = wbengine("--help")
    assert answer.code == 0
    for name in app.COMMANDS:
        assert f"\n  {name} " in answer.out
    for code in (0, 1, 2, 66, 69, 75, 78, 130):
        assert f"\n    {code} " in answer.out


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...], wbengine: Command) -> None:
    answer = wbengine(*path, "--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"Usage: wbengine {' '.join(path)} ")
    command = ALL[path]
    assert command.name == path[-1]
    if not isinstance(command, click.Group):
        assert f"wbengine {' '.join(path)}" in answer.out.partition("\n")[2], "there is no example"
        undocumented = [
            param.name
            for param in command.params
            if isinstance(param, click.Option) and not param.help and not param.hidden
        ]
        assert undocumented == []


def test_call_without_command_prints_help_and_exits_with_2(wbengine: Command) -> None:
    answer = wbengine()
    assert (answer.code, answer.out) == (2, "")
    assert "Usage: wbengine" in answer.err


def test_common_options_are_accepted_first_or_last(wbengine: Command) -> None:
    first, last = wbengine("--json", "config", "path"), wbengine("config", "path", "--json")
    assert first.json == last.json
    assert wbengine("--json", "config", "path", "--no-json").out == ""


def test_version_option_prints_the_version(wbengine: Command) -> None:
    import wbengine as package

    assert wbengine("--version").out == f"wbengine {package.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed_for_each_shell(shell: str, wbengine: Command) -> None:
    answer = wbengine("completion", shell)
    assert answer.code == 0
    assert "_WBENGINE_COMPLETE" in answer.out


def test_completion_lists_matching_subcommands(wbengine: Command) -> None:
    words = {"_WBENGINE_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    answer = wbengine.apart(env={**words, "COMP_WORDS": "wbengine flow re"})
    assert answer.out.split() == ["plain,record", "plain,resume", "plain,revert", "plain,retry"]


def test_completion_offers_flows_workers_and_engines(wbengine: Command, home: Path) -> None:
    flow = wbengine("flow", "run", "tests.cli.shop:order").json["uuid"]

    def offered(words: str) -> str:
        env = {"_WBENGINE_COMPLETE": "bash_complete", "COMP_CWORD": str(words.count(" "))}
        return wbengine.apart(env={**env, "COMP_WORDS": words}).out

    assert offered(f"wbengine flow show {flow[:3]}").split() == [f"plain,{flow}"]
    assert offered("wbengine flow show zzz").split() == []
    assert offered("wbengine flow run m:f --engine ser").split() == ["plain,serial"]
    with worker_in_thread(f"filesystem://{home}/broker", tasks, name="web") as worker:
        words = f"wbengine --url filesystem://{home}/broker workers show we"
        assert offered(words).split() == [f"plain,{worker.identity}"]


def test_commands_of_other_packages_are_loaded(wbengine: Command, home: Path) -> None:
    info = home / "greeting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wbengine.commands]\ngreet = greeting:greet\n")
    (home / "greeting.py").write_text(
        "import click\n\n@click.command('greet')\n@click.argument('who')\n"
        "def greet(who):\n    print('hello', who)\n"
    )
    env = {"PYTHONPATH": f"{home}:{Path(app.__file__).parents[2]}"}
    assert "greet" in wbengine.apart("--help", env=env).out
    assert wbengine.apart("greet", "world", env=env).out == "hello world\n"


def piped(words: str, into: str) -> tuple[str, str]:
    """Return both outputs of a pipeline, with the exit code of the command before the pipe."""
    script = f"{sys.executable} -m wbengine {words} {into}; echo ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    return process.stdout, process.stderr


@pytest.mark.slow
def test_closed_output_pipe_is_no_error(home: Path) -> None:
    assert piped("config schema", "| head -1") == ("{\n0\n", "")


def test_exit_code_of_failed_flow_is_kept_when_the_pipe_closes(home: Path) -> None:
    (home / "broken").touch()
    words = "flow run tests.cli.shop:order --quiet --persistence memory"
    assert piped(words, "| (exec <&-)") == ("1\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--help", "wbengine: error: {}\n"),
        ("config schema", "wbengine config schema: error: {}\n"),
        ("graph tests.cli.shop:order", "wbengine graph: error: {}\n"),
        (
            f"flow run tests.cli.shop:order --flow-id {UNKNOWN}",
            f"wbengine flow run: error: {{}}; for the result: wbengine flow show {UNKNOWN}\n",
        ),
    ],
)
def test_unwritable_standard_output_is_reported(words: str, message: str, home: Path) -> None:
    full = "cannot write to the standard output: No space left on device"
    assert piped(words, "> /dev/full") == ("1\n", message.format(full))


def test_unwritable_standard_error_does_not_stop_the_command(home: Path) -> None:
    assert piped("config path", "2> /dev/full") == ("0\n", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Failed("no", errors.TRY_AGAIN), 75),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.UsageError("no"), 2),
        (TimeoutError("no"), 75),
        (ConnectionError("no"), 69),
        (RuntimeError("no"), 1),
    ],
)
def test_exception_has_its_exit_code(error: BaseException, code: int) -> None:
    assert errors.code_of(error) == code


def test_error_message_is_one_line() -> None:
    assert errors.line_of(ValueError("first\n  second\n")) == "first: second"
    assert errors.line_of(KeyError("name")) == "KeyError: 'name'"
    twice = OSError(
        "x cannot be used: Not a directory\n  NotADirectoryError: [Errno 20] Not a directory: 'x'"
    )
    assert errors.line_of(twice) == "x cannot be used: Not a directory"
    once = OSError("x is lost\n  OSError: [Errno 5] Input/output error: 'y'")
    assert errors.line_of(once) == "x is lost: OSError: [Errno 5] Input/output error: 'y'"
    assert errors.line_of(RuntimeError()) == "RuntimeError"
    cause = exceptions.StorageFailure("the disk is full")
    more = exceptions.StorageFailure("x is lost", cause)
    assert errors.line_of(more) == "x is lost: StorageFailure: the disk is full"
    same = exceptions.StorageFailure("x is lost: the disk is full", cause)
    assert errors.line_of(same) == findings.line(same) == "x is lost: the disk is full"


def test_missing_arguments_are_reported_once() -> None:
    flow = linear_flow.Flow("many")
    for number in range(20):
        flow.add(task.FunctorTask(lambda missing: None, name=f"task-{number}"))
    with pytest.raises(exceptions.MissingDependencies) as caught:
        engines.run(flow)
    line = errors.line_of(caught.value)
    assert "requires 'missing', but nothing provides it" in line and "17 more" in line
    assert line.count("requires") == 1


def test_exception_in_command_sets_exit_code_and_message(
    wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command("bad")
    @click.argument("kind")
    def bad(kind: str) -> None:
        raise {"stop": KeyboardInterrupt(), "key": KeyError("x")}[kind]

    monkeypatch.setitem(app.root.commands, "bad", bad)
    answer = wbengine("bad", "stop")
    assert (answer.code, answer.err) == (130, "\nwbengine: error: interrupted\n")
    answer = wbengine("bad", "key")
    assert (answer.code, answer.error) == (1, "wbengine: error: KeyError: 'x'")


def test_ctrl_c_during_import_exits_with_130(wbengine: Command, home: Path) -> None:
    (home / "before").mkdir()
    (home / "before" / "click.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    )
    path = os.pathsep.join([str(home / "before"), *filter(None, [os.environ.get("PYTHONPATH")])])
    answer = wbengine.apart("flow", "list", env={"PYTHONPATH": path}, real=True)
    assert (answer.code, answer.out, answer.error) == (130, "", "wbengine: error: interrupted")
