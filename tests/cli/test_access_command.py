"""`wbengine access` creates, lists, rotates and revokes keys of the HTTP API."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from tests.cli.conftest import Command
from wbengine.persistence import _access_keys


def test_key_is_printed_once(wbengine: Command) -> None:
    answer = wbengine("access", "new", "ci", "--role", "operator", "--tag", "team=billing")
    text = answer.out.rstrip("\n")
    assert answer.code == 0 and answer.out == f"{text}\n"
    key_id = _access_keys.id_of(text)
    assert key_id is not None and text not in answer.err
    for words in (("list",), ("show", "ci"), ("show", key_id)):
        for options in ((), ("--json",)):
            shown = wbengine("access", *words, *options)
            assert key_id in shown.out and "team" in shown.out and "operator" in shown.out
            assert text.rpartition("_")[2] not in shown.out + shown.err
            assert _access_keys.digest_of(text) not in shown.out


def test_key_has_queues(wbengine: Command) -> None:
    wbengine("access", "new", "ci")
    assert "QUEUES" not in wbengine("access", "list").out
    made = wbengine("access", "new", "nightly", "--queue", "reports", "--queue", "mails", "--json")
    assert made.json["queues"] == ["mails", "reports"]
    assert "QUEUES" in wbengine("access", "list").out
    assert "mails reports" in wbengine("access", "show", "nightly").out


def test_key_in_json_is_not_masked(wbengine: Command) -> None:
    document = wbengine("access", "new", "ci", "--json").json
    assert document["schema"] == "wbengine/access-new/1"
    assert _access_keys.id_of(document["key"]) == document["id"]
    assert (document["role"], document["state"], document["expires"]) == ("viewer", "valid", None)


def test_expiry_is_a_duration(wbengine: Command) -> None:
    document = wbengine("access", "new", "ci", "--expires", "90d", "--json").json
    assert document["expires"] - document["created"] == pytest.approx(90 * 86400)


def test_rotation_keeps_the_earlier_key_for_a_while(wbengine: Command) -> None:
    wbengine("access", "new", "ci", "--role", "operator")
    answer = wbengine("access", "rotate", "ci", "--keep", "1h")
    assert answer.code == 0 and _access_keys.id_of(answer.out.strip())
    assert re.search(r"ci: key \w+ expires at or before 2", answer.err)
    keys = wbengine("access", "list", "--json").json["keys"]
    assert [key["role"] for key in keys] == ["operator"] * 2
    assert keys[0]["expires"] - keys[1]["created"] == pytest.approx(3600)


def test_revoked_key_is_listed_only_on_request(wbengine: Command) -> None:
    text = wbengine("access", "new", "ci").out.strip()
    answer = wbengine("access", "revoke", "ci")
    assert answer.out == f"ci: revoked key {_access_keys.id_of(text)}\n"
    assert "There are no valid keys." in wbengine("access", "list").err
    assert wbengine("access", "list", "--all").out.rstrip().endswith("revoked")
    again = wbengine("access", "revoke", "ci")
    assert again.code == 0 and "was revoked before" in again.err


def test_misspelled_name_prints_nearest_one(wbengine: Command) -> None:
    wbengine("access", "new", "grafana")
    for verb in ("show", "revoke", "rotate"):
        answer = wbengine("access", verb, "garfana")
        assert answer.code == 66 and "'grafana'" in answer.err


def test_second_key_with_a_name_is_refused(wbengine: Command) -> None:
    wbengine("access", "new", "ci")
    answer = wbengine("access", "new", "ci")
    assert answer.code != 0 and "wbengine access rotate ci" in answer.err


@pytest.mark.parametrize("form", ["text", "json"])
def test_dashboard_process_writes_actions_of_keys_into_its_log(
    wbengine: Command, form: str
) -> None:
    """The default level of the log is WARNING."""
    key = wbengine("access", "new", "ci", "--role", "operator").out.strip()
    process = wbengine.begin("--log-format", form, "dashboard", "--port", "0", "--allow-actions")
    assert process.stderr is not None
    address = process.stderr.readline().split()[-1].partition("?")[0]
    request = urllib.request.Request(
        f"{address}api/v1/tasks/pause",
        json.dumps({"pattern": "shop.charge"}).encode(),
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    process.terminate()
    _, log = process.communicate(timeout=60)
    (line,) = [each for each in log.splitlines() if "wbengine.audit" in each]
    assert "tasks pause 'shop.charge', from key:ci, operator, 127.0.0.1" in line and "INFO" in line
    assert "wbengine.dashboard" not in log, "other loggers keep the level"
    assert key.rpartition("_")[2] not in log
