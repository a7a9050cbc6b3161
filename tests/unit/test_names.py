"""Names of objects, similar names and labels."""

from __future__ import annotations

import functools
import json
import os.path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine._introspection import object_names


class Outer:
    class Inner:
        def method(self) -> None: ...

    @classmethod
    def make(cls) -> None: ...

    def __call__(self) -> None: ...


def function() -> None: ...


HERE = __name__


@pytest.mark.parametrize(
    ("obj", "name"),
    [
        (ValueError, "ValueError"),
        (ValueError(), "ValueError"),
        (len, "len"),
        (Outer, f"{HERE}.Outer"),
        (Outer(), f"{HERE}.Outer"),
        (Outer.Inner, f"{HERE}.Outer.Inner"),
        (Outer.Inner.method, f"{HERE}.Outer.Inner.method"),
        (Outer.Inner().method, f"{HERE}.Outer.Inner.method"),
        (Outer.make, f"{HERE}.Outer.make"),
        (function, f"{HERE}.function"),
        (functools.partial(functools.partial(function), 1), f"{HERE}.function"),
        (json.JSONDecoder, "json.decoder.JSONDecoder"),
        (str.upper, "str.upper"),
    ],
)
def test_dotted_returns_full_name_of_object(obj, name):
    assert object_names.dotted(obj) == name


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("json", json),
        ("json:JSONDecoder", json.JSONDecoder),
        ("json.JSONDecoder.decode", json.JSONDecoder.decode),
        ("json:JSONDecoder.decode", json.JSONDecoder.decode),
        ("os.path.join", os.path.join),
        ("collections.abc:Mapping.get", __import__("collections.abc").abc.Mapping.get),
    ],
)
def test_load_returns_object_of_dotted_name(name, found):
    assert object_names.load(name) is found


@pytest.mark.parametrize("name", ["", ".", "json:", ":x", "json..x", "json:a..b"])
def test_load_rejects_malformed_names(name):
    with pytest.raises(ValueError, match="must have the form"):
        object_names.load(name)


def test_load_error_names_missing_part_and_similar_names():
    with pytest.raises(ImportError, match=r"module 'json' has no 'JSONDecodr' \(did you mean"):
        object_names.load("json:JSONDecodr")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        object_names.load("no_such_module.x")


def test_load_raises_import_error_of_broken_module_unchanged(tmp_path, monkeypatch):
    (tmp_path / "wb_broken_inside.py").write_text("import wb_not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("wb_broken_inside:x", "wb_broken_inside.x"):
        with pytest.raises(ModuleNotFoundError, match="wb_not_there_at_all"):
            object_names.load(name)


def test_near_and_hint_suggest_similar_names():
    assert object_names.near("requries", ["provides", "requires", "rebind"])[0] == "requires"
    assert object_names.near("SERIAL", ["serial"]) == ["serial"]
    assert object_names.hint("requries", ["requires"]) == " (did you mean 'requires'?)"
    assert object_names.hint("xyz", ["requires"]) == ""
    assert object_names.hint("xyz", iter(())) == ""


def test_near_prefers_the_case_of_the_word():
    names = ["SESSION", "session", "Session"]
    assert [object_names.near(word, names)[0] for word in ("sesion", "Sesion", "SESION")] == [
        "session", "Session", "SESSION",
    ]  # fmt: skip


def test_renamed_pairs_old_names_with_similar_new_names():
    """Equal last parts are preferred to similar names, and each new name is used once."""
    assert object_names.renamed(["a.X", "send_mail"], ["send_mails", "b.X", "q"]) == {
        "a.X": "b.X",
        "send_mail": "send_mails",
    }
    assert object_names.renamed(["task1", "task2"], ["task3"]) == {"task1": "task3"}
    assert object_names.renamed(["x"], ["charge"]) == {}
    many = [f"name {n}" for n in range(60)]
    assert object_names.renamed([f"{name}!" for name in many], many) == {}


@pytest.mark.parametrize("good", ["a", "A-Z_0.9", "...", "x" * 120])
def test_valid_labels_are_accepted(good):
    assert object_names.check_label("topic", good) == good
    assert object_names.check_pattern("topic", good) == good


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "a/b", "a b", "é", "a\n", "\0", "../x", None, 7, b"a"]
)
@pytest.mark.parametrize("check", [object_names.check_label, object_names.check_pattern])
def test_invalid_labels_are_rejected(check, bad):
    with pytest.raises(ValueError, match=r"queue name must be 1 to 120 characters of .*, got"):
        check("queue name", bad)


def test_star_is_allowed_in_patterns_but_not_in_labels():
    assert object_names.check_pattern("topic", "video.*") == "video.*"
    with pytest.raises(ValueError, match="topic"):
        object_names.check_label("topic", "video.*")


@given(st.text())
def test_label_is_a_safe_file_name(text):
    try:
        object_names.check_label("topic", text)
    except ValueError:
        return
    assert os.path.basename(text) == text and text not in ("", ".", "..")
