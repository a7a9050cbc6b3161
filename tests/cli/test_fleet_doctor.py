"""`wbengine doctor`: each problem is reported, and its fix works."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Answer, Command
from tests.support import brokers, key_files, python, servers, tcp_proxy
from tests.support import worker_tasks as tasks
from tests.support.later_layout import later_release
from tests.support.workers import until, worker_in_thread
from wbengine import transports
from wbengine._security import keys
from wbengine._text import data_formats
from wbengine.diagnosis import _examining, findings
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.persistence.backends._sql import schema_revisions

Find = dict[str, Any]


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A working broker and a store."""
    url = f"filesystem://{home}/broker"
    monkeypatch.setenv("WBENGINE_URL", url)
    monkeypatch.setenv("WBENGINE_PERSISTENCE", f"sqlite:///{home}/flows.db")
    return url


@pytest.fixture
def served(folder: str) -> Iterator[str]:
    """The same with a worker."""
    with worker_in_thread(folder, tasks):
        yield folder


@pytest.fixture
def rowless(folder: str, rowless_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same with a broker that permits any ledger."""
    monkeypatch.setenv("WBENGINE_URL", rowless_url)
    return rowless_url


@pytest.fixture(scope="module")
def forgetful() -> Iterator[brokers.Redis]:
    """A Redis with the configuration of a cache."""
    with brokers.redis(appendonly="no", **{"maxmemory-policy": "allkeys-lru"}) as server:
        yield server


def wrong(answer: Answer) -> list[Find]:
    """Return the failed findings; the exit code must match."""
    report = answer.json
    assert report["schema"] == "wbengine/doctor/1"
    failed = [one for one in report["findings"] if one["good"] is False]
    assert report["good"] == (not failed) == (answer.code == 0)
    assert answer.code in (0, 1)
    for one in failed:
        assert one["fix"], one
    return failed


def one(answer: Answer, check: str, *, text: str = "", fix: str = "") -> Find:
    """Return the only failed finding, which must be of this check and contain these parts."""
    (failed,) = wrong(answer)
    assert (failed["check"], text in failed["text"], fix in failed["fix"]) == (check, True, True)
    return failed


def test_doctor_reports_no_problem_in_a_working_setup(wbengine: Command, served: str) -> None:
    wbengine("db", "upgrade")
    answer = wbengine("doctor", "--json")
    assert wrong(answer) == []
    checks = {finding["check"] for finding in answer.json["findings"] if finding["good"]}
    assert checks >= {"settings", "extras", "plugins", "broker", "broker settings", "broker clock"}
    assert checks >= {"ledger", "round trip", "workers", "ledgers", "worker clock", "store"}
    text = wbengine("doctor")
    assert text.code == 0 and text.err == "no problems found\n"
    assert all(line[0] in "✔-" for line in text.out.splitlines())
    queues = wbengine("queues", "list", "--json").json["queues"]
    assert sorted(finding["kind"] for finding in queues) == ["requests", "worker"]  # no new queue


def test_unreachable_broker_is_reported(wbengine: Command, redis_server: Any) -> None:
    with redis_server.place() as url:
        redis_server.kill()
        try:
            answer = wbengine("doctor", "--url", url, "--timeout", "1", "--json")
        finally:
            redis_server.start()
        finding = one(answer, "broker", fix="start the broker")
        assert redis_server.password not in str(finding)
        assert wrong(wbengine("doctor", "--url", url, "--json")) == []


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_wrong_password_is_reported(
    wbengine: Command, kind: str, request: pytest.FixtureRequest, home: Path
) -> None:
    server: Any = request.getfixturevalue(f"{kind}_server")
    url = str(request.getfixturevalue(f"{kind}_url"))
    bad = url.replace(server.password, "wrong-secret")
    answer = wbengine("doctor", "--url", bad, "--json")
    one(answer, "broker", fix="correct user and password")
    assert "wrong-secret" not in answer.out
    assert wrong(wbengine("doctor", "--url", url, "--json")) == []


def test_redis_with_eviction_and_without_persistence_is_reported(
    wbengine: Command, forgetful: brokers.Redis
) -> None:
    with forgetful.place() as url, worker_in_thread(str(url), tasks):
        failed = wrong(wbengine("doctor", "--url", url, "--json"))
        assert [one["check"] for one in failed] == ["broker settings"] * 2
        assert "allkeys-lru" in failed[0]["text"] and "append-only" in failed[1]["text"]
        with forgetful.client() as client:
            for each in failed:
                words = re.match(r"run: redis-cli (CONFIG SET \S+ \w+)", each["fix"])
                assert words is not None
                client.execute_command(*words[1].split())
            until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        assert wrong(wbengine("doctor", "--url", url, "--json")) == []


@pytest.mark.slow
def test_missing_rabbitmq_permission_is_reported(
    wbengine: Command, rabbitmq_server: Any, rabbitmq_url: Any, tmp_path: Path
) -> None:
    vhost = rabbitmq_url.rpartition("/")[2]
    server = rabbitmq_server
    server.ask("PUT", "users", "small", body={"password": "pw", "tags": ""})
    url = rabbitmq_url.replace(f"{servers.USER}:{server.password}", "small:pw")
    ledger = f"dir://{tmp_path}/ledger"
    doctor = "doctor", "--url", url, "--ledger", ledger, "--json"
    try:
        for right in ("configure", "write", "read"):
            rights = dict.fromkeys(("configure", "write", "read"), ".*") | {right: "^nothing$"}
            server.ask("PUT", "permissions", vhost, "small", body=rights)
            words = shlex.split(one(wbengine(*doctor), "permissions", text=right)["fix"])
            assert words[:5] == ["rabbitmqctl", "set_permissions", "-p", vhost, "small"]
        # The suggested permissions are sufficient for workers and engines, and minimal.
        rights = dict(zip(("configure", "write", "read"), words[5:], strict=True))
        server.ask("PUT", "permissions", vhost, "small", body=rights)
        assert ".*" not in words
        with worker_in_thread(url, tasks, ledger=ledger):
            assert wrong(wbengine(*doctor)) == []
    finally:
        server.ask("DELETE", "users", "small")
    left = rabbitmq_url.left()
    assert left == [], left


def test_round_trip_leaves_no_queue_of_any_format(
    wbengine: Command, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_formats, "MESSAGE", data_formats.Format("message", 1, (1, 2)))
    findings = wbengine("doctor", "--json").json["findings"]
    assert "round trip" in {each["check"] for each in findings}
    with contextlib.closing(transports.resolve(folder).open()) as broker:
        assert broker.bindings() == []


def test_missing_store_is_reported_and_not_created(
    wbengine: Command, served: str, home: Path
) -> None:
    data = wbengine("doctor", "--json", "--persistence", f"sqlite:///{home}/none.db").json
    (finding,) = [each for each in data["findings"] if each["check"] == "store"]
    assert "the store does not exist yet" in finding["text"]
    assert not (home / "none.db").exists()


def test_access_key_that_expires_soon_is_reported(wbengine: Command, served: str) -> None:
    for name, expires in (("soon", "13d"), ("late", "15d"), ("rotated", "1h"), ("gone", "1d")):
        assert wbengine("access", "new", name, "--expires", expires).code == 0
    assert wbengine("access", "new", "forever").code == 0
    assert wbengine("access", "rotate", "rotated").code == 0
    assert wbengine("access", "revoke", "gone").code == 0
    findings = wbengine("doctor", "--json").json["findings"]
    (finding,) = [each for each in findings if each["check"] == "access keys"]
    assert finding["text"].startswith("the key of soon expires at 2") and finding["good"] is None
    assert wbengine(*finding["fix"].split()[2:]).code == 0
    findings = wbengine("doctor", "--json").json["findings"]
    assert "access keys" not in {each["check"] for each in findings}


def test_store_of_an_older_version_is_reported(
    wbengine: Command, served: str, tmp_path: Path
) -> None:
    wbengine("db", "upgrade")
    current = schema_revisions.HEAD
    with later_release(tmp_path):
        finding = one(wbengine("doctor", "--json"), "store", text=f"got {current}")
        assert finding["fix"] == "run: wbengine db upgrade"
        assert wbengine(*finding["fix"].split()[2:]).code == 0
        assert wrong(wbengine("doctor", "--json")) == []


def test_store_of_a_newer_version_is_reported_unless_compatible(
    wbengine: Command, served: str, home: Path
) -> None:
    wbengine("db", "upgrade")
    with contextlib.closing(sqlite3.connect(home / "flows.db")) as database, database:
        database.execute("UPDATE wbe_alembic_version SET version_num = '9999'")
    answer = wbengine("doctor", "--json")
    assert wrong(answer) == []
    texts = [finding["text"] for finding in answer.json["findings"]]
    assert "the layout is newer and usable (revision 9999)" in texts
    with contextlib.closing(sqlite3.connect(home / "flows.db")) as database, database:
        database.execute("UPDATE wbe_alembic_version SET oldest = '9999'")
    one(wbengine("doctor", "--json"), "store", fix="use the newer version here too")


@pytest.mark.usefixtures("rowless")
def test_ledger_of_a_newer_version_is_reported(wbengine: Command, home: Path) -> None:
    url = f"sqlite:///{home}/ledger.db"
    with contextlib.closing(ledgers.open_ledger(url)) as ledger:
        ledger.open("a", 1)
    with contextlib.closing(sqlite3.connect(home / "ledger.db")) as database, database:
        database.execute("UPDATE wbe_ledger_about SET format = 99")
    failed = wrong(wbengine("doctor", "--json", "--ledger", url))
    (finding,) = [each for each in failed if each["check"] == "ledger"]
    assert "has ledger format 99" in finding["text"]
    assert finding["fix"].startswith("another version of wbengine created the ledger; ")


def test_broker_folder_of_another_user_is_reported(wbengine: Command, served: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    mine = wbengine.folder / "given"
    mine.mkdir()
    os.chown(mine, 12345, 12345)
    url = f"filesystem://{mine}"
    finding = one(wbengine("doctor", "--url", url, "--json"), "broker", text="user id 12345")
    words = re.search(r"chown -R \d+ \S+?(?=;)", finding["fix"])
    assert words is not None
    subprocess.run(shlex.split(words[0]), check=True)
    assert wrong(wbengine("doctor", "--url", url, "--json")) == []


def test_broker_folder_that_is_a_file_is_reported(wbengine: Command, home: Path) -> None:
    (home / "file").write_text("")
    doctor = ("doctor", "--url", f"filesystem://{home}/file", "--json")
    one(wbengine(*doctor), "broker", fix=f"remove the file {home}/file")
    (home / "file").unlink()
    assert wrong(wbengine(*doctor)) == []


def test_worker_on_another_exchange_is_reported(wbengine: Command, folder: str) -> None:
    with worker_in_thread(folder, tasks, exchange="orders"):
        finding = one(wbengine("doctor", "--json"), "workers", text="'default'")
        words = re.search(r"--exchange \w+", finding["fix"])
        assert words is not None
        assert wrong(wbengine("doctor", *words[0].split(), "--json")) == []


@pytest.mark.slow
def test_missing_workers_are_reported(wbengine: Command, folder: str, home: Path) -> None:
    (home / "wares.py").write_text(
        "from wbengine import task\nclass Price(task.Task):\n    def execute(self): return 1\n"
    )
    answer = wbengine("doctor", "--json")
    assert wrong(answer) == []
    (noted,) = [finding for finding in answer.json["findings"] if finding["check"] == "workers"]
    finding = one(wbengine("doctor", "--min-workers", "1", "--json"), "workers")
    assert noted == {**finding, "good": None}
    answer = finding["fix"].partition(": ")[2].replace("TOPIC", "t").replace("MODULE", "wares")
    process = wbengine.begin(*shlex.split(answer)[1:])
    assert wbengine("status", "--min-workers", "1").code == 0
    assert wrong(wbengine("doctor", "--min-workers", "1", "--json")) == []
    answer = wbengine("doctor", "--min-workers", "2", "--json")
    one(answer, "workers", text="; at least 2 must answer")
    process.terminate()
    process.communicate(timeout=60)


def test_worker_with_other_keys_is_reported(wbengine: Command, folder: str, home: Path) -> None:
    """A doctor with the keys of the worker reports no problem; a doctor without them does."""
    for name in ("ours", "others"):
        key_files.shared(home / name)
    with worker_in_thread(folder, tasks, keys=home / "ours") as worker:
        doctor = ("doctor", "--json", "--keys")
        assert wrong(wbengine(*doctor, str(home / "ours"))) == []
        assert "untrusted" not in worker.counts
        for given in (str(home / "others"), keys.NONE):
            one(wbengine(*doctor, given), "keys", text=worker.identity, fix="--keys")


def test_killed_worker_is_not_reported_as_refusing_messages(
    wbengine: Command, redis_url: Any, home: Path
) -> None:
    """The query waits in the worker's queue."""
    (home / "wares.py").write_text(
        "from wbengine import task\nclass Price(task.Task):\n    def execute(self): return 1\n"
    )
    at = ("--url", redis_url)
    process = wbengine.begin("worker", "t", "--tasks", "wares", *at)
    assert wbengine("status", "--min-workers", "1", *at).code == 0
    process.kill()
    process.communicate(timeout=60)
    assert wrong(wbengine("doctor", "--json", *at)) == []


def test_worker_with_another_ledger_is_reported(
    wbengine: Command, rowless: str, home: Path
) -> None:
    with worker_in_thread(rowless, tasks, ledger=f"dir://{home}/theirs") as worker:
        answer = wbengine("doctor", "--ledger", f"dir://{home}/ours", "--json")
        one(answer, "ledgers", text=worker.identity, fix="the same --ledger")
        assert wrong(wbengine("doctor", "--ledger", f"dir://{home}/theirs", "--json")) == []


_SKEWED = """
import sys, time
real = time.time
time.time = lambda: real() + 300
from wbengine import worker
sys.exit(worker.main())
"""


def test_worker_with_a_wrong_clock_is_reported(wbengine: Command, folder: str, home: Path) -> None:
    """The difference is 300 s."""
    words = ["-c", _SKEWED, "--topic", "t", "--tasks", "tests.support.worker_tasks"]
    root = str(Path(tasks.__file__).parents[2])
    process = python.start(
        [*words, "--url", folder], env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert wbengine("status", "--min-workers", "1").code == 0
        finding = one(wbengine("doctor", "--json"), "worker clock", fix="timedatectl set-ntp true")
        ahead = re.search(r"(\d+) s ahead", finding["text"])
        # The response takes some time.
        assert ahead is not None and abs(int(ahead[1]) - 300) < 20
    finally:
        process.terminate()
        assert process.wait(60) == 0
    with worker_in_thread(folder, tasks):  # with a correct clock
        assert wrong(wbengine("doctor", "--json")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exchnge = 'x'", "'exchange'"),
        ("exchange = 'a b'", "exchange"),
        ("exchange = ", "must contain TOML"),
    ],
)
def test_invalid_settings_are_reported(
    wbengine: Command, served: str, home: Path, text: str, message: str
) -> None:
    (home / "wbengine.toml").write_text(text)
    finding = one(wbengine("doctor", "--json"), "settings", text=message)
    assert "wbengine.toml" in finding["text"]
    assert "✘ settings" in wbengine("doctor").out
    (home / "wbengine.toml").write_text("exchange = 'default'")
    assert wrong(wbengine("doctor", "--json")) == []


@pytest.mark.parametrize("source", [None, "raise SystemExit(0)"], ids=["missing", "exits"])
def test_broken_plugin_is_reported(
    source: str | None, wbengine: Command, served: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = home / "plugs" / "odd_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wbengine.commands]\nodd = odd_plugin:command\n")
    if source is not None:
        (info.parent / "odd_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(str(info.parent))
    answer = wbengine("doctor", "--json")
    one(answer, "plugins", text="odd-plugin", fix="pip uninstall odd-plugin")
    for path in info.iterdir():
        path.unlink()
    info.rmdir()
    assert wrong(wbengine("doctor", "--json")) == []


def test_graphviz_is_reported_as_present_or_missing(wbengine: Command) -> None:
    def told() -> tuple[bool | None, str]:
        findings = wbengine("doctor", "--json", "--timeout", "2").json["findings"]
        (finding,) = (each for each in findings if each["check"] == "graphviz")
        return finding["good"], finding["text"]

    assert told() == (True, "the program dot is available")
    wbengine.setenv("PATH", str(wbengine.folder))
    good, text = told()
    assert good is None and "apt-get install graphviz" in text


@pytest.mark.slow
def test_missing_extra_is_reported(wbengine: Command, redis_url: Any, home: Path) -> None:
    """The process cannot import the client, as if it were not installed."""
    hidden = home / "hidden"
    hidden.mkdir()
    (hidden / "redis.py").write_text("raise ModuleNotFoundError(\"No module named 'redis'\")\n")
    path = os.pathsep.join([str(hidden), os.environ["PYTHONPATH"]])
    doctor = "doctor", "--url", redis_url, "--json"
    with worker_in_thread(str(redis_url), tasks):
        failed = wrong(wbengine.apart(*doctor, env={"PYTHONPATH": path}, real=True))
        assert failed[0]["check"] == "extras"
        assert re.search(r"pip install .*\[redis\]'$", failed[0]["fix"])
        assert wrong(wbengine(*doctor)) == []


def test_unreachable_ledger_is_reported(wbengine: Command, rowless: str) -> None:
    ledger = "redis://:secret@127.0.0.1:1/0"
    with worker_in_thread(rowless, tasks):
        answer = wbengine("doctor", "--ledger", ledger, "--json")
    one(answer, "ledger", fix="--ledger")
    assert "secret" not in answer.out


def test_ledger_that_the_broker_does_not_use_is_reported(wbengine: Command, served: str) -> None:
    answer = wbengine("doctor", "--ledger", "redis://:secret@127.0.0.1:1/0", "--json")
    text = "uses only its own ledger, got 'redis://127.0.0.1:1/0'"
    one(answer, "ledger", text=text, fix="--ledger")
    assert wrong(wbengine("doctor", "--json")) == []


def test_loss_of_the_ledger_is_noted_and_workers_stay_usable(
    wbengine: Command, rowless: str, redis_url: Any, redis_server: Any
) -> None:
    doctor = "doctor", "--ledger", str(redis_url), "--json"
    with worker_in_thread(rowless, tasks, ledger=str(redis_url)):
        with redis_server.client(redis_url.rpartition("/")[2]) as client:
            client.flushdb()
        answer = wbengine(*doctor)
        again = wbengine(*doctor)
    assert wrong(answer) == wrong(again) == []
    texts = [finding["text"] for finding in again.json["findings"] if finding["check"] == "ledgers"]
    assert "lost its data" in texts[0] and texts[1:] == ["the workers use the same ledger"]


def test_unreachable_store_is_reported(wbengine: Command, served: str) -> None:
    place = "postgresql://u:secret@127.0.0.1:1/flows"
    answer = wbengine("doctor", "--persistence", place, "--json")
    one(answer, "store", fix="start the server")
    assert "secret" not in answer.out


def examined(seconds: float, **place: Any) -> list[findings.Finding]:
    """Return the findings of all checks with `seconds` left."""
    began = time.monotonic() - 7 + seconds
    return list(_examining.examine(findings.Place(**place), began=began))


@pytest.fixture(scope="module")
def imported() -> None:
    """Import slow modules once."""
    for kind in ("redis", "amqp"):
        store = "mysql://u:secret@127.0.0.1:1/flows"
        examined_findings = examined(
            60, url=f"{kind}://127.0.0.1:1", persistence=store, timeout=1.0
        )
        assert {one.check for one in examined_findings if one.good is False} == {"broker", "store"}


@pytest.mark.usefixtures("imported")
def test_checks_beyond_the_time_limit_are_reported(
    redis_server: Any, redis_url: Any, home: Path
) -> None:
    with (
        tcp_proxy.threaded(redis_server.port) as proxy,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        url = redis_url.replace(f":{redis_server.port}", f":{proxy.port}")
        proxy.slow(500)  # bytes per second: connecting succeeds, reading settings is slow
        store = f"mysql://u:secret@127.0.0.1:{silent.getsockname()[1]}/flows"
        examined_findings = examined(5, url=url, persistence=store)
        by_check = {one.check: (one.good, one.text) for one in examined_findings}
        proxy.resume()
    assert by_check["broker"][0] is True
    for check in ("broker settings", "store"):
        assert by_check[check][0] is False and by_check[check][1].startswith("no answer within ")
    words = "skipped: the previous checks used all the time"
    assert by_check["ledger"] == by_check["workers"] == (None, words)
    assert "round trip" not in by_check


@pytest.mark.usefixtures("imported")
def test_silent_broker_and_silent_store_are_checked_in_parallel(home: Path) -> None:
    """Both checks run at the same time and take no longer than the slower one."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        futures.ThreadPoolExecutor(2) as threads,
    ):
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        store = f"mysql://u@{host}/x"

        def look(kind: str) -> list[findings.Finding]:
            return examined(5, url=f"{kind}://{host}", persistence=store, timeout=1.0)

        for examined_findings in threads.map(look, ("redis", "amqp")):
            by_check = {one.check: one.good for one in examined_findings}
            assert (by_check["broker"], by_check["round trip"], by_check["store"]) == (
                False,
                None,
                False,
            )
            assert "ledger" not in by_check


def test_doctor_ends_within_its_time_limit(home: Path, wbengine: Command) -> None:
    """The limit is the timeout plus 2 s, counted from the start of the command."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        words = ("--persistence", f"mysql{url[5:]}/x", "--timeout", "6")
        answer = wbengine.apart("doctor", "--url", url, *words)
    assert answer.code == 1 and answer.err.endswith(" found\n") and "✘ broker: " in answer.out
    match = re.search(r"✘ store: (?:no answer within (\d+) s|skipped)", answer.out)
    assert match is not None and int(match[1] or 0) <= 8


@pytest.mark.slow
def test_output_without_unicode_uses_ascii_signs(wbengine: Command, served: str) -> None:
    wbengine("db", "upgrade")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    answer = wbengine.apart("doctor", "--quiet", "--min-workers", "2", env=plain)
    signs = {line[0] for line in answer.out.splitlines() if not line.startswith(" ")}
    assert answer.code == 1 and signs == {"+", "x"}
