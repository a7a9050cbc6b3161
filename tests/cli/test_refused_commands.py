"""Command lines that are refused: unknown and missing words, invalid values and combinations."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import ORDER, Command
from wbengine.persistence import backends, models

FLOW = "aaaabbbb-0000-4000-8000-000000000001"
CHECKOUT = "tests.support.typed_orders:checkout"
WRONG_INPUTS = """--inputs '{"order": {"number": 7, "lines": [{"amount": "abc"}]}}'"""
BILLING = "tests.support.typed_orders:billing"
WRONG_ARGUMENTS = """--arguments '{"order": {"number": "7", "lines": []}}'"""
NO_INT = "arguments['order'].number: expected int, got '7'"
FAULT = "inputs['order'].lines[0].amount: expected Decimal, got 'abc'"
LONG_REASON = f"--reason {'x' * 501}"
MANY_TAGS = " ".join(f"--set k{number}=v" for number in range(40))
SELECT = "select flows by IDs, by filters (--state, --name,"
TWICE = "must contain each key once, got 'a' twice"
RUN = f"flow run {ORDER}"
SUBMIT = f"flow submit {ORDER}"
ADD = "schedule add s"
FIVE = f"{ADD} {ORDER} --every 5m"
NOT_KEPT = "the store must outlive this process, got memory"

#: Command lines with the exit code 2, and parts of their messages.
WRONG = [
    ("flwo ls", "unknown command 'flwo' (did you mean 'flow'?)"),
    ("flow wacht", "'watch'"),
    ("limits lst", "unknown command 'lst' (did you mean 'list'?)"),
    ("db ls", "unknown command 'ls'"),
    ("config show --jsn", "config show: error: unknown option '--jsn' (did you mean '--json'?)"),
    ("flow list --stat", "unknown option '--stat' (did you mean '--state'?)"),
    ("config show --timeout 0", "--timeout"),
    ("config show --exchange 'a b'", "--exchange must be 1 to 120 characters"),
    ("config show --transport-option x", "--transport-option must have the form"),
    # flow run, submit and schema
    ("flow run no_such:flow", "no module 'no_such' found"),
    ("flow run tests.cli.shop", "tests.cli.shop:priced"),
    ("flow run tests.cli.shop:ordr", "did you mean 'order'?"),
    ("flow run tests.cli.shop:STEPS", "must be a flow or a function"),
    (f"{RUN} --engine paralel", "did you mean 'parallel'?"),
    (f"{RUN} --engine parallel://?max_worker=2", "max_worker"),
    (f"{RUN} --inputs 3", "--inputs must be a JSON object, got int"),
    (f"{RUN} --inputs {{", "--inputs must be JSON"),
    (f"{RUN} --inputs @none.json", "cannot read 'none.json'"),
    (f"{RUN} --tag a=1 --tag a=2", TWICE),
    (f"{RUN} --tag x", "--tag must be a tag such as team=billing or amount:=120, got 'x'"),
    (f"{RUN} --tag 'amount>100'", "must be a tag such as team=billing"),
    (f"{RUN} --tag 'a b=c'", "must be up to 64 letters"),
    (f"{RUN} --name {'x' * 256}", "name of a flow must have at most 255 characters, got 256"),
    (f"{RUN} --flow-id x", "--flow-id must be a uuid such as "),
    (f"{RUN} --deadline soon", "--deadline must be a duration such as 30, 1.5h or 30d, got 'soon'"),
    (f"{RUN} --report /no/such/folder/x.html", "/no/such/folder/x.html"),
    (f"{RUN} --detach --persistence memory", "the store must outlive this process"),
    (f"flow run {CHECKOUT} {WRONG_INPUTS}", FAULT),
    ("flow run tests.support.workflows:checkout", "requires 'total'"),
    (f"flow submit {CHECKOUT} {WRONG_INPUTS}", FAULT),
    ("flow submit tests.cli.shop:odrer", "did you mean 'order'"),
    ("flow submit tests.cli.shop:priced", "requires 'amount', 'api_key'"),
    (f"{SUBMIT} --persistence memory", NOT_KEPT),
    (f"{SUBMIT} --debounce a", "debounce and debounce_for must be given together"),
    (f"{SUBMIT} --debounce-for 5m", "debounce and debounce_for must be given together"),
    (f"{SUBMIT} --debounce a --debounce-for 5m --unique b", "does not allow unique="),
    (f"{SUBMIT} --debounce-max 5m", "debounce_max= requires debounce="),
    (f"flow run {BILLING} {WRONG_ARGUMENTS}", NO_INT),
    (
        f"flow submit {BILLING} {WRONG_ARGUMENTS}",
        "arguments['order'].number: expected int, got '7'",
    ),
    (
        """flow run tests.support.typed_orders:totals --arguments '{"a": 1}'""",
        "keyword argument 'a'",
    ),
    ("flow schema tests.support.typed_orders:chekout", "did you mean 'checkout'"),
    # flow list, tag and operations
    ("flow list --state DONE", "must be one of PENDING, "),
    ("flow list --since yesterday", "--since must be a time such as"),
    ("flow list --limit 0", "0 is not in the range"),
    ("flow list --sort size", "must be one of newest, oldest, got 'size'"),
    ("flow list --engine paralel", "Unknown engine kind 'paralel' (did you mean 'parallel'?)"),
    ("flow list --engine workers://?topics=a", "--engine must be a kind without options"),
    ("flow list --tag 'amount>x'", "a number or a time"),
    ("flow list --tag 'a b=1'", "the key of a tag"),
    ("flow list --tag x", "team=billing"),
    (f"flow tag {FLOW}", "flow tag requires at least one of set, remove"),
    (f"flow tag {FLOW} --set shop", "must be a tag such as team=billing"),
    (f"flow tag {FLOW} --set 'a b=c'", "the key of a tag must be"),
    (f"flow tag {FLOW} --set 'a=\x1b[31m'", "printable characters"),
    (f"flow tag {FLOW} --set a=\udcff", "printable characters"),
    (f"flow tag {FLOW} --set a=1 --set a=2", TWICE),
    (f"flow tag {FLOW} {MANY_TAGS}", "at most"),
    (f"flow tag {FLOW} --set amount:=much", "a number or a time"),
    (f"flow tag {FLOW} --set 'a b:=1'", "the key of a tag"),
    (f"flow tag {FLOW} --set :=1", "the key"),
    (f"flow tag {FLOW} --set amount:=9007199254740993", "a whole number of at most 2**53"),
    (f"flow tag {FLOW} --set amount:=1e400", "a finite number"),
    (f"flow tag {FLOW} --set amount:=1_000", "a number or a time"),
    (f"flow tag {FLOW} --set amount:=007", "a number or a time"),
    (f"flow cancel {FLOW} {LONG_REASON}", "reason"),
    (f"flow cancel {FLOW} --reason \udcff", "reason"),
    (f"flow cancel {FLOW} --rate 5/s", "--rate requires filters or several IDs"),
    (f"flow cancel {FLOW} --background", "--background requires filters or several IDs"),
    ("flow cancel --all --rate 20", "must be a number per s, m, h or d, such as 20/s"),
    ("flow cancel", SELECT),
    ("flow cancel --yes", SELECT),
    ("flow cancel --all --name x", SELECT),
    (f"flow cancel {FLOW} --all", SELECT),
    (f"flow cancel {FLOW} --name x", SELECT),
    *(
        (f"flow {verb} {FLOW} {words} --yes", SELECT)
        for verb in ("resume", "retry", "revert")
        for words in ("--all", "--state REVERTED")
    ),
    # graph
    ("graph", "exactly one of MODULE:FACTORY and --flow-id is required"),
    (f"graph {ORDER} --flow-id 12345678", "exactly one of MODULE:FACTORY and --flow-id"),
    ("graph tests.cli.shop:ordr", "did you mean 'order'?"),
    (f"graph {ORDER} -f gif", "must be one of text, mermaid, dot, svg, png, json, got 'gif'"),
    (f"graph {ORDER} -o /no/such/x.svg", "must be a path in an existing folder, got '/no/such"),
    # workers, queues and services
    ("workers drain", "--all"),
    ("workers drain w --all", "--all"),
    ("queues retry", "exactly one of REQUEST and --all is required"),
    ("queues list --dead --requests", "at most one of --requests and --dead can be used"),
    ("queues list q --dead", "--dead cannot be used with NAME"),
    ("queues list q --requests", "--requests cannot be used with NAME"),
    ("queues list --state open", "--state can be used only with --requests"),
    ("queues list --dead --worker w", "--worker can be used only with --requests"),
    ("queues list --requests --flow f", "--flow can be used only with --dead"),
    (
        "queues list --older-than 5m",
        "--task and --older-than can be used only with --requests or --dead",
    ),
    ("queues purge", "exactly one of NAME and --all is required"),
    ("queues purge q --all", "exactly one of NAME and --all is required"),
    ("worker t", "missing: --tasks"),
    ("worker t --tasks no_such_module", "no_such_module"),
    ("worker --pool thread", "--pool"),
    ("worker t --taks m", "--taks"),
    ("worker t --tasks json --celery-accept yaml", "only with --celery-queue"),
    ("dev no_such_module --no-dashboard", "no_such_module"),
    ("dev json --no-dashboard", "json"),
    ("dev --no-dashboard", "MODULE"),
    ("dev tests.cli.shop --postgresql mysql://db/flows", "--postgresql"),
    ("dev tests.cli.shop --postgresql redis://q/0", "must be the URL of a PostgreSQL database"),
    (
        "dev tests.cli.shop --folder x --postgresql postgresql:///flows",
        "at most one of --folder and --postgresql",
    ),
    (
        "dashboard --token x --token-file y",
        "at most one of --no-auth, --token, --token-file and --users can be used",
    ),
    ("dashboard --users users", "users: line 1: must have a name, a role and a token, got 2 words"),
    ("dashboard --token x --no-auth", "at most one of --no-auth, --token"),
    ("dashboard --token-file nothing", "cannot read nothing"),
    ("dashboard --host 0.0.0.0 --no-auth", "0.0.0.0"),
    ("dashboard --port 70000", "--port"),
    ("serve --persistence memory", NOT_KEPT),
    ("serve --board nonsense://x", "Unknown kind of job board 'nonsense'"),
    ("serve --board sqlite:///flows.db", "must be in Redis, ZooKeeper or etcd"),
    ("serve --app shop", "code_version"),
    ("serve --code-version-policy exact", "code_version"),
    ("serve --code-version 'a b'", "code_version"),
    ("serve --retention success=7x", "success must be a duration above 0"),
    ("serve --retention pending=7d", "pending"),
    # limits, tasks, jobs, access and stores
    ("limits --redis amqp://x", "must be the URL of a Redis"),
    ("limits set shop.call 5", "rate must be a number from 1 per s, m, h or d, such as '100/m'"),
    ("limits set shop.call 0/s", "got '0/s'"),
    ("limits set shop.call", "requires at least one of rate, concurrency"),
    ("limits set shop.call --concurrency 0", "0 is not in the range"),
    ("limits set '' 5/s", "name must not be empty"),
    ("limits set 'a\nb' 5/s", "must be a printable text"),
    (f"limits set {'x' * 201} 5/s", "name must have at most 200 characters"),
    ("tasks pause", "missing argument 'NAME'"),
    ("tasks pause ''", "pattern must be "),
    ("tasks pause 'two words'", "got 'two words'"),
    ("tasks pause shop.* --for soon", "--for must be a duration such as "),
    ("tasks pause shop.* --for 0", "--for must be a duration above 0, got '0'"),
    (f"tasks pause shop.* {LONG_REASON}", "reason must have at most 500 characters, got 501"),
    ("tasks pause shop.* --reason \udcff", "reason"),
    ("tasks pause shop.charge --persistence memory://", "memory"),
    ("jobs keys 'a b'", "queue must be"),
    ("access new 'two words'", "name must have 1 to 64 characters"),
    ("access new x --queue *", "queue must be"),
    ("access new x --expires 0", "--expires"),
    ("access new x --persistence memory://", "memory"),
    ("db sweep", "--payloads"),
    ("db move dirr:///old dir:///new", "did you mean 'dir'?"),
    # schedule
    (f"{ADD} {ORDER}", "must have either cron or every"),
    (f"{ADD} {ORDER} --every 1.5", "every must be a whole number"),
    (f"{ADD} {ORDER} --cron '99 * * * *'", "the minute must be 0 to 59, got '99'"),
    (
        f"{FIVE} --catch-up skip --overlap queue",
        "catch_up must be 'one' or 'all' with overlap='queue'",
    ),
    (f"{FIVE} --time-zone Europe/Berlin", "time_zone can be used only with cron"),
    (f"{FIVE} --jitter 6m", "jitter must be at most 300 seconds"),
    (f"{ADD} tests.cli.shop:nothing --every 5m", "tests.cli.shop:nothing"),
    (f"{ADD} tests.cli.shop:halves --every 5m", "numbers"),
    (f"{ADD} tests.cli.shop --every 5m", "'tests.cli.shop' is a module: name a flow or a function"),
    (f"{ADD} tests.cli.shop:leaves --every 5m", "tests.cli.shop:leaves: the code ends the process"),
    (f"{ADD} {CHECKOUT} --every 1d {WRONG_INPUTS}", FAULT),
    ("schedule list --persistence memory", "the store must outlive this process"),
]
#: Command lines with the exit code 66, and parts of their messages.
MISSING = [
    ("graph --flow-id 12345678", "Unknown flow '12345678'"),
    ("graph --flow-id 1", "at least its first 4 characters"),
    ("queues retry x", "unknown dead letter 'x'"),
    ("queues list nothing", "unknown queue 'nothing'"),
    ("queues purge nothing", "unknown queue 'nothing'"),
    ("tasks resume ''", "No task type is paused with pattern ''"),
]
REFUSED = [
    pytest.param(line, code, message, id=line[:60])
    for code, rows in ((2, WRONG), (66, MISSING))
    for line, message in rows
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a store with one flow."""
    url = f"sqlite:///{tmp_path_factory.mktemp('refused')}/flows.db"
    book = models.LogBook("b")
    book.add(models.FlowDetail("order", uuid=FLOW))
    with backends.backend(url) as backend, backend.get_connection() as connection:
        connection.save_logbook(book)
    return url


@pytest.mark.parametrize(("line", "code", "message"), REFUSED)
def test_wrong_command_is_refused_and_changes_nothing(
    line: str, code: int, message: str, wbengine: Command, store: str
) -> None:
    wbengine.setenv("WBENGINE_PERSISTENCE", store)
    wbengine.setenv("WBENGINE_URL", f"filesystem://{wbengine.folder}/broker")
    wbengine.setenv("WBENGINE_QUIET", "true")
    Path("users").write_text("ann admin\n")
    answer = wbengine(*shlex.split(line))
    assert (answer.code, answer.out) == (code, ""), answer
    assert answer.error.startswith("wbengine") and message in answer.error
    with backends.backend(store) as backend, backend.get_connection() as connection:
        (flow,) = connection.list_flows().flows
        assert (flow.uuid, flow.tags, connection.pauses()) == (FLOW, {}, [])
        assert connection.commands([FLOW]) == {}
