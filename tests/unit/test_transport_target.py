"""URLs, folders and retry options of transports."""

from __future__ import annotations

import dataclasses
import os
import ssl
import stat
import threading

import kombu
import pytest

from tests.seams.transports import Folder
from wbengine import exceptions
from wbengine.engines.worker_based._connections import connecting
from wbengine.transports import RetryOptions, _reasons, resolve


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("WBENGINE_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)


def test_filesystem_url_sets_both_folders(tmp_path):
    target = resolve(f"filesystem://{tmp_path}/x")
    assert target.is_native
    assert target.transport == "filesystem"
    assert target.place == (f"{tmp_path}/x", f"{tmp_path}/x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["a b", "a;b", "a%b", "ä", "a+b", "a?b#c"])
def test_folder_name_with_special_characters_round_trips(tmp_path, name):
    options = {"data_folder_in": str(tmp_path / name)}
    target = resolve(None, "filesystem", options)
    with target.open() as broker:
        broker.declare_queue("q")
    assert Folder(tmp_path / name).queues == ["q"]
    assert resolve(target.url).place == target.place


def test_folders_for_input_and_output_can_differ(tmp_path):
    options = {"data_folder_in": tmp_path / "a", "data_folder_out": tmp_path / "b"}
    target = resolve(None, "filesystem", {k: str(v) for k, v in options.items()})
    assert target.place == (str(tmp_path / "a"), str(tmp_path / "b"))


def test_memory_url_names_a_broker():
    assert resolve("memory://x").url == "memory://x"
    assert resolve("memory://x").place == "x"
    assert resolve(None, "memory").place == "default"
    assert resolve("memory://").place == "default"
    assert resolve("memory://", "memory").transport == "memory"
    with pytest.raises(ValueError, match="memory broker"):
        resolve("memory://a/b/../c")


def test_other_urls_are_passed_to_kombu():
    target = resolve("amqp://guest@localhost//", None, {"confirm_publish": True})
    assert (target.url, target.transport, target.is_native) == (
        "amqp://guest@localhost//",
        None,
        False,
    )
    assert target.options == {"confirm_publish": True}
    assert target.place is None
    assert resolve("sqlalchemy+sqlite:///x").transport is None
    assert resolve(None, "pyamqp").transport == "pyamqp"
    assert isinstance(target.connect(), kombu.Connection)


@pytest.mark.parametrize(
    ("scheme", "near"),
    [
        ("redis+sentinel", "sentinel"),
        ("sentinel+x", "sentinel"),
        ("redos", "redis"),
        ("unix", "redis"),
        ("valkey", "redis"),
        ("rabbitmq", "amqp"),
        ("dir", "filesystem"),
        ("sqlite", "filesystem"),
    ],
)
def test_unknown_scheme_is_refused_with_nearest_one(scheme, near):
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        resolve(f"{scheme}://h/x").check()


def test_case_of_a_scheme_is_ignored():
    assert resolve("REDIS://h").place == resolve("redis://h").place
    assert resolve("Memory://a").place == "a"
    assert resolve("AMQPS://h").connect().ssl == resolve("amqps://h").connect().ssl


def test_url_is_read_from_the_environment_by_default(monkeypatch, tmp_path):
    monkeypatch.setenv("WBENGINE_URL", "memory://env")
    assert resolve().place == "env"
    monkeypatch.setenv("WBENGINE_URL", f"filesystem://{tmp_path}/env")
    assert resolve().place == (f"{tmp_path}/env",) * 2
    # Explicit folders take precedence.
    assert resolve(None, None, {"data_folder_in": "/x"}).place == ("/x", "/x")


def test_default_folder_is_private(monkeypatch, tmp_path):
    expected = str(tmp_path / "run" / "wbengine")
    assert resolve().place == (expected, expected)
    assert stat.S_IMODE(os.stat(expected).st_mode) == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for target in (resolve(), resolve("filesystem://"), resolve(None, "filesystem")):
        assert target.place[0] == str(tmp_path / f"wbengine-{os.getuid()}")


def test_unsafe_default_folder_is_rejected(tmp_path):
    folder = tmp_path / "run" / "wbengine"
    folder.mkdir(mode=0o700)
    folder.chmod(0o750)
    with pytest.raises(exceptions.TransportFailure, match="chmod 700"):
        resolve()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(exceptions.TransportFailure, match="symlink"):
        resolve()
    folder.unlink()
    folder.write_text("")
    with pytest.raises(exceptions.TransportFailure, match="not a folder"):
        resolve()


def test_folder_of_another_user_is_rejected(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(exceptions.TransportFailure, match="belongs to user id"):
        resolve(f"filesystem://{tmp_path}").open()


def test_waits_between_attempts_grow_and_have_jitter():
    retry = RetryOptions.read({"interval_start": 1, "interval_step": 2, "interval_max": 4})
    assert [retry.wait(attempt, 0.0) for attempt in (1, 2, 3, 9)] == [1, 3, 4, 4]
    assert [retry.wait(attempt, 1.0) for attempt in (1, 2, 3, 9)] == [0.5, 1.5, 2, 2]


@pytest.mark.parametrize(("most", "attempts"), [(0, 1), (2, 3)])
def test_start_fails_after_max_retries(most, attempts):
    retry = RetryOptions(0.01, 0.0, 0.01, most)
    target = dataclasses.replace(resolve("amqp://127.0.0.1:1//"), retry=retry)
    told = []
    with pytest.raises(exceptions.TransportFailure, match="cannot be reached"):
        connecting.reach(target, threading.Event(), within=60, on_failure=told.append)
    assert len(told) == attempts - 1


@pytest.mark.parametrize("interval", [0, -1, "fast", True, float("inf"), float("nan")])
def test_invalid_polling_interval_is_rejected(interval, tmp_path):
    with pytest.raises(ValueError, match="polling_interval"):
        resolve(f"filesystem://{tmp_path}", None, {"polling_interval": interval})


@pytest.mark.parametrize(
    ("option", "value"),
    [("inotify", "maybe"), ("data_folder_in", 3), ("data_folder_out", {})],
)
def test_folder_option_of_wrong_type_is_rejected(option, value, tmp_path):
    with pytest.raises(ValueError, match=option):
        resolve(f"filesystem://{tmp_path}", None, {option: value})


@pytest.mark.parametrize("word", ["false", "No", "0"])
def test_inotify_accepts_words(word, tmp_path):
    assert resolve(f"filesystem://{tmp_path}", None, {"inotify": word}).options == {
        "inotify": False
    }


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    info = tmp_path / "installed" / "odd-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[wbengine.transports]\n"
        "missing = wbengine_missing_module:KIND\n"
        "class = wbengine.transports._redis.redis_kind:RedisKind\n"
        "script = script_of_plugin:KIND\n"
    )
    (info.parent / "script_of_plugin.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(info.parent))


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "plug-in of transport 'missing' cannot be loaded.*wbengine_missing_module"),
        ("script", "plug-in of transport 'script' cannot be loaded: SystemExit: 3"),
        ("class", "entry point 'class' of wbengine.transports must name a TransportKind"),
    ],
)
def test_plugin_that_is_not_a_kind_is_rejected(name, reason):
    for url, transport in ((f"{name}://h", None), (None, name)):
        with pytest.raises(ValueError, match=reason):
            resolve(url, transport)


@pytest.mark.parametrize("value", ["TLSv1_3", ssl.TLSVersion.TLSv1_3, 0x304])
def test_lowest_version_of_tls_is_read_from_its_name_or_number(value):
    target = resolve("rediss://h", None, {"ssl_min_version": value})
    assert target.place.settings["ssl_min_version"] is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("option", "value"),
    [("ssl_min_version", "TLSv1_4"), ("ssl_min_version", 7), ("ssl_ciphers", 3)],
)
def test_tls_option_of_wrong_type_is_rejected(option, value):
    with pytest.raises(ValueError, match=option):
        resolve("rediss://h", None, {option: value})


def test_error_of_tls_settings_is_explained():
    with pytest.raises(ssl.SSLError) as caught:
        ssl.create_default_context().set_ciphers("nope")
    assert _reasons.explain(caught.value).startswith("the TLS connection failed (")
