"""Which files the census finds, and how it groups them."""

from __future__ import annotations

import os
import sys
import sysconfig

import pytest

from wbengine.examples.census import sources


def write(root, *paths, size=10):
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"#" * size)


def files(tree):
    return {name: [file.path for file in found] for name, found in tree.modules.items()}


def test_top_level_files_and_folders_are_modules_sorted_by_name(tmp_path):
    write(tmp_path, "b.py", "a/__init__.py", "a/z/y.py", "a/data.txt", "c/deep/er/x.py")
    write(tmp_path, "b/more.py")

    tree = sources.folder(tmp_path)

    assert files(tree) == {
        "a": ["a/__init__.py", "a/z/y.py"],
        "b": ["b.py", "b/more.py"],
        "c": ["c/deep/er/x.py"],
    }
    assert list(tree.modules) == ["a", "b", "c"]


def test_what_is_no_source_is_left_out(tmp_path):
    write(tmp_path, "keep.py", "site-packages/x.py", "keep/__pycache__/x.py", ".git/x.py")
    write(tmp_path, "environment/pyvenv.cfg", "environment/lib/x.py", "empty/readme.txt")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "again").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()

    assert files(sources.folder(tmp_path)) == {"keep": ["keep.py"]}


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_names_that_are_no_text_are_printable(tmp_path):
    write(tmp_path, "a/good.py")
    (tmp_path / "a" / os.fsdecode(b"bad\xff.py")).write_bytes(b"")

    assert files(sources.folder(tmp_path)) == {"a": ["a/bad\\xff.py", "a/good.py"]}


def test_the_standard_library_is_complete():
    tree = sources.standard_library()
    root = sysconfig.get_path("stdlib")
    expected = {
        name
        for name in sys.stdlib_module_names
        if os.path.isfile(os.path.join(root, f"{name}.py"))
        or os.path.isfile(os.path.join(root, name, "__init__.py"))
    }

    assert expected <= set(tree.modules)
    assert {"email", "json", "os"} <= set(tree.modules)
    assert not {"site-packages", "dist-packages"} & set(tree.modules)
    assert all((tree.root / file.path).is_file() for file in tree.modules["email"])


def test_groups_are_small_balanced_and_complete(tmp_path):
    for number in range(120):
        write(tmp_path, f"big/m{number}.py", size=10 + 7 * number)
    write(tmp_path, "one.py")
    tree = sources.folder(tmp_path)

    found = sources.groups(tree)

    assert [group.name for group in found] == ["big.1", "big.2", "big.3", "one"]
    assert all(len(group.files) <= sources.GROUP_LIMIT for group in found)
    measured = sorted(path for group in found for path in group.files)
    assert measured == sorted(file.path for kept in tree.modules.values() for file in kept)
    sizes = [group.size for group in found[:3]]
    assert max(sizes) < 1.1 * min(sizes)
    assert found == sources.groups(tree)


def test_group_names_are_unique_as_file_names(tmp_path):
    names = ["Same", "same", "x" * 200, "x" * 201, "a:b", "a_b"]
    kept = (sources.SourceFile("m.py", 1),)
    tree = sources.Tree("t", tmp_path, dict.fromkeys(names, kept))

    found = [group.name for group in sources.groups(tree)]

    assert len({name.casefold() for name in found}) == len(names)
    assert all("/" not in name and ":" not in name and len(name) < 120 for name in found)
