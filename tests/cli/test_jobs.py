"""`wbengine jobs` lists and pauses queues of flows; commands tell which no conductor serves."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command
from tests.support import brokers
from wbengine.conductors import _code_versions
from wbengine.jobs import _queue_access, _queues
from wbengine.persistence import base

FACTORY = "tests.cli.shop:order"


pytestmark = pytest.mark.usefixtures("store_url")


def submit(wbengine: Command, *words: str) -> str:
    answer = wbengine("flow", "submit", FACTORY, *words)
    assert answer.code == 0, answer.err
    return str(answer.err)


def serve(store: base.Backend, *queues: str) -> None:
    """Report a conductor that serves these queues, as `wbengine serve` does."""
    _code_versions.CodeVersions(store, None).register()
    _queues.JobQueues(store).report(queues)


def test_queues_and_keys_are_listed(wbengine: Command) -> None:
    for key in ("ann", "ann", "bob"):
        submit(wbengine, "--fair-key", key)
    submit(wbengine, "--queue", "reports", "--fair-weight", "2")
    answer = wbengine("jobs")
    _, default, reports = answer.out.splitlines()
    assert default.split()[:5] == ["default", "3", "0", "0", "2"]
    assert reports.split()[:5] == ["reports", "1", "0", "0", "1"]
    document = wbengine("jobs", "list", "--json").json
    assert [queue["name"] for queue in document["queues"]] == ["default", "reports"]
    keys = wbengine("jobs", "keys", "default").out.splitlines()
    assert [line.split()[:2] for line in keys[1:]] == [["ann", "2"], ["bob", "1"]]


def test_flow_shows_its_queue_and_key(wbengine: Command) -> None:
    submit(wbengine, "--queue", "reports", "--fair-key", "ann token=secret-17")
    (flow,) = wbengine("flow", "list", "--json").json["flows"]
    shown = wbengine("flow", "show", flow["uuid"])
    lines = [line.split(None, 1) for line in shown.out.splitlines()]
    assert ["queue", "reports"] in lines and ["fair", "key  ann token=***"] in lines
    document = wbengine("flow", "show", flow["uuid"], "--json").json
    assert (document["queue"], document["fair_key"]) == ("reports", "ann token=***")


def test_secrets_in_keys_and_reasons_are_masked(wbengine: Command) -> None:
    submit(wbengine, "--fair-key", "password=secret-17")
    wbengine("jobs", "pause", "default", "--reason", "token=secret-18")
    for words in (("keys", "default"), ("list",)):
        for options in ((), ("--json",)):
            shown = wbengine("jobs", *words, *options)
            assert shown.code == 0 and "secret-1" not in shown.out
    assert "password=***" in wbengine("jobs", "keys", "default").out


def test_key_of_a_secret_argument_is_a_digest(wbengine: Command) -> None:
    inputs = ("--inputs", '{"api_key": "Rosebud-1"}')
    answer = wbengine("flow", "submit", "tests.cli.shop:keyed", *inputs)
    assert answer.code == 0, answer.err
    (key,) = wbengine("jobs", "keys", "default", "--json").json["keys"]
    assert key["key"].startswith("#") and "Rosebud" not in key["key"]


def test_debounced_submission_replaces_the_flow(wbengine: Command) -> None:
    words = ("flow", "submit", FACTORY, "--debounce", "doc-7")
    first = wbengine(*words, "--debounce-for", "1m", "--debounce-max", "5m")
    again = wbengine(*words, "--debounce-for", "60", "--queue", "reports")
    assert first.code == again.code == 0 and first.out == again.out
    (flow,) = wbengine("flow", "list", "--json").json["flows"]
    assert flow["queue"] == "reports"


def test_pauses_of_queues_are_listed_with_their_reason(wbengine: Command) -> None:
    submit(wbengine)
    paused = wbengine("jobs", "pause", "*", "--reason", "wrong prices")
    assert paused.out == "*: paused\n"
    assert "wrong prices" in wbengine("jobs").out
    assert wbengine("jobs", "resume", "*").out == "*: resumed\n"
    assert "wrong prices" not in wbengine("jobs").out
    again = wbengine("jobs", "resume", "*")
    assert again.code == 66 and "'*' is not paused" in again.err
    misspelled = wbengine("jobs", "pause", "defult")
    assert misspelled.out == "defult: paused\n"
    text = "no flow is in queue 'defult', and no conductor serves it (did you mean 'default'?)"
    assert text in misspelled.err


def test_commands_tell_that_no_conductor_serves_a_queue(
    wbengine: Command, store: base.Backend
) -> None:
    assert "no conductor (wbengine serve) runs now" in submit(wbengine, "--queue", "mails")
    serve(store, "default")
    told = submit(wbengine, "--queue", "mails")
    assert "no conductor serves queue 'mails' now: start wbengine serve --queue mails" in told
    answer = wbengine("doctor")
    assert "2 flows in queue 'mails', which no conductor serves" in answer.out
    serve(store, "*")
    assert "no conductor" not in submit(wbengine, "--queue", "mails")
    wbengine("jobs", "pause", "mails")
    answer = wbengine("doctor")
    assert "3 flows in queue 'mails', which is paused since" in answer.out


def test_pause_is_the_reason_of_a_flow_that_it_holds_back(
    wbengine: Command, store: base.Backend
) -> None:
    submit(wbengine, "--queue", "mails")
    serve(store, "*")
    (flow,) = wbengine("flow", "list", "--json").json["flows"]
    show = ("flow", "show", flow["uuid"])
    for name, subject in (("*", "All queues are paused"), ("mails", "Its queue 'mails' is paused")):
        wbengine("jobs", "pause", name, "--reason", "token=secret-19")
        shown = wbengine(*show).out
        assert subject in shown and "token=***" in shown and "secret-19" not in shown
        advice = f"to resume it: wbengine jobs resume '{name}'"
        assert advice in wbengine("doctor").out
    for name in ("mails", "*"):
        assert wbengine("jobs", "resume", name).code == 0
    assert "paused" not in wbengine(*show).out


@pytest.mark.slow
def test_commands_use_the_queues_of_a_board_in_redis(
    wbengine: Command, store: base.Backend, broker_servers: brokers.Brokers
) -> None:
    with broker_servers["redis"].place() as board:
        options = ("--board", str(board))
        serve(store, "default")
        words = ("--queue", "mails", "--fair-key", "ann", "--board", str(board))
        assert "no conductor serves queue 'mails' now" in submit(wbengine, *words)
        found = wbengine("doctor", *options).out
        assert "1 flow in queue 'mails', which no conductor serves" in found
        with _queue_access.opened(store, str(board)) as queues:
            queues.report(["mails"])
        assert "mails" not in [queue.name for queue in _queues.JobQueues(store).all()]
        paused = wbengine("jobs", "pause", "mails", "--reason", "why", *options)
        assert paused.out == "mails: paused\n"
        default, mails = wbengine("jobs", "list", *options, "--json").json["queues"]
        assert (default["name"], default["waiting"], default["is_served"]) == ("default", 0, False)
        assert (mails["name"], mails["waiting"], mails["is_served"]) == ("mails", 1, True)
        assert mails["reason"] == "why" and mails["paused_at"] is not None
        assert "which is paused since" in wbengine("doctor", *options).out
        keys = wbengine("jobs", "keys", "mails", *options).out.splitlines()
        assert [line.split()[:2] for line in keys[1:]] == [["ann", "1"]]
        assert wbengine("jobs", "resume", "mails", *options).out == "mails: resumed\n"
        assert "'mails' is not paused" in wbengine("jobs", "resume", "mails", *options).err
    unreachable = wbengine("doctor", "--board", "redis://localhost:1/0").out
    assert "start the server of the job board, or correct --board" in unreachable


def test_board_without_queues_is_rejected(wbengine: Command) -> None:
    submit(wbengine)
    answer = wbengine("jobs", "--board", "etcd://localhost:1/x")
    assert "require a job board in a database or in Redis" in answer.err
