"""`wbengine notify`, and the table [notify] in the settings of commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support import notified, receivers
from wbengine.persistence import backends


@pytest.fixture
def site() -> Iterator[receivers.Receiver]:
    with receivers.receiver() as opened:
        yield opened


@pytest.fixture
def settings(home: Path, site: receivers.Receiver) -> Path:
    (home / "key").write_text(notified.KEY)
    (home / "url").write_text("http://127.0.0.1:1/canary")
    path = home / "wbengine.toml"
    path.write_text(f"""persistence = "sqlite:///flows.db"
[notify]
dashboard_url = "https://flows.example.com"
[notify.to.ops]
type = "webhook"
url = "{site.url}"
key_file = "key"
[notify.to.chat]
type = "slack"
url_file = "url"
""")
    return path


def test_test_message_is_sent_to_each_destination(
    wbengine: Command, settings: Path, site: receivers.Receiver
) -> None:
    answer = wbengine("notify", "test", "--json")
    assert answer.code == 69 and answer.json["schema"] == "wbengine/notify-test/1"
    ops, chat = answer.json["destinations"]
    assert ops == {"name": "ops", "place": f"http://127.0.0.1:{site.port}/***", "error": None}
    assert chat["name"] == "chat" and "Connection refused" in chat["error"]
    assert "canary" not in answer.out + answer.err
    (request,) = site.requests
    (group,) = request.json["groups"]
    assert group["kind"] == "test" and request.json["dashboard"] == "https://flows.example.com"
    answer = wbengine("notify", "test", "--to", "ops")
    assert answer.code == 0 and "sent" in answer.out and len(site.requests) == 2


def test_unknown_destination_and_missing_settings_are_refused(
    wbengine: Command, settings: Path, site: receivers.Receiver
) -> None:
    answer = wbengine("notify", "test", "--to", "opps")
    assert answer.code == 66 and "did you mean 'ops'?" in answer.error and not site.requests
    settings.write_text("")
    wbengine.fails(78, "must contain a destination", "notify", "test")


def test_variable_contains_the_settings(wbengine: Command, site: receivers.Receiver) -> None:
    wbengine.setenv("ALERTS", site.url)
    table = {"to": {"chat": {"type": "slack", "url_variable": "ALERTS"}}}
    wbengine.setenv("WBENGINE_NOTIFY", json.dumps(table))
    assert wbengine("notify", "test").code == 0 and len(site.requests) == 1
    assert "canary" not in wbengine("config", "show").out


def test_schema_of_files_describes_destinations(wbengine: Command) -> None:
    schema = wbengine("config", "schema").json["properties"]["notify"]
    destination = schema["properties"]["to"]["additionalProperties"]
    assert destination["properties"]["type"]["enum"] == ["webhook", "slack", "email", "apprise"]
    assert "flow_blocked" in schema["properties"]["events"]["items"]["enum"]


@pytest.mark.slow
def test_doctor_reports_destinations_that_receive_nothing(
    wbengine: Command, settings: Path, site: receivers.Receiver
) -> None:
    wbengine("db", "upgrade")
    findings = wbengine("doctor", "--json").json["findings"]
    assert {each["good"] for each in findings if each["check"] == "notifications"} == {None}
    with backends.backend("sqlite:///flows.db") as store:
        service = notified.begun(store, notified.webhook(site, settings.parent))
        notified.failed(store)
        site.statuses = [500]
        notified.run(service)
        findings = wbengine("doctor", "--json").json["findings"]
        (finding,) = (each for each in findings if each["text"].startswith("ops"))
        assert finding["good"] is False and "HTTP status 500" in finding["text"]
        assert "wbengine notify test --to ops" in finding["fix"]
        notified.change(store, retry_at=0.0)
        notified.run(service)
        findings = wbengine("doctor", "--json").json["findings"]
        (finding,) = (each for each in findings if each["text"].startswith("ops"))
        assert finding["good"] is True
