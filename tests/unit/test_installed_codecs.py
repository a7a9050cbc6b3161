"""Codecs of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fresh
from wbengine import exceptions
from wbengine.types import codec

#: The package, and its values in a second module: the codec imports it only when it is used.
SHAPES = """
class Circle:
    def __init__(self, radius, data=b""):
        self.radius, self.data = radius, data
    def __eq__(self, other):
        return vars(self) == vars(other)

class Ring(Circle):
    pass

class Unnamed:
    pass

class Named(Circle):
    pass

class Ball(Circle):
    pass
"""
CODECS = """
from shapes import Ball, Circle
from wbengine.types.codec import Codec, Encoded

def encode(value):
    if value.radius < 0:
        raise ValueError("has a negative radius")
    if value.radius == 999:
        raise RuntimeError("is too large")
    return Encoded([value.data], [value.radius], [".radius"], f"radius {value.radius!r}")

def decode(encoded, version):
    radius = encoded.values[0] * (10 if version == 1 else 1)
    if radius == 13:
        return str(radius)
    return Circle(radius, bytes(encoded.buffers[0]))

CODEC = Codec("shapes.Circle", encode, decode, version=2)
UNNAMED = Codec("shapes.Other", encode, decode)
NAMED = Codec("shapes.Named", lambda value: Encoded(summary=value.radius), decode)
BALL = Codec(
    "shapes.Ball",
    lambda value: Encoded([], [value.radius]),
    lambda encoded, version: Ball(*encoded.values),
)
NO_CODEC = decode
"""
ENTRY_POINTS = """
[wbengine.codecs]
shapes.Circle = shape_codecs:CODEC
shapes.Unnamed = shape_codecs:UNNAMED
shapes.Named = shape_codecs:NAMED
shapes.Ball = shape_codecs:BALL
shapes.NoCodec = shape_codecs:NO_CODEC
shapes.Broken = no_such_module:CODEC
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shapes.py").write_text(SHAPES)
    (tmp_path / "shape_codecs.py").write_text(CODECS)
    info = tmp_path / "shapes-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


@pytest.fixture
def shapes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(folder)
    import shapes  # type: ignore[import-not-found]

    yield shapes
    for name in ("shapes", "shape_codecs"):
        sys.modules.pop(name, None)


def test_values_with_an_installed_codec_are_kept(shapes: Any) -> None:
    circle = shapes.Circle(2, b"data")
    tree = codec.pack([circle])
    assert tree == [
        {
            "$wbe": "codec", "c": "shapes.Circle", "n": 2, "t": "radius 2, 4 bytes",
            "v": [2], "b": ["ZGF0YQ=="],
        }
    ]  # fmt: skip
    assert codec.unpack(tree) == [circle]


def test_large_buffers_of_a_codec_are_kept_outside(shapes: Any) -> None:
    circle = shapes.Circle(2, b"data" * 1000)
    tree, buffers = codec.pack_with_buffers(circle)
    assert tree["b"] == [0]
    assert buffers[0] is circle.data
    assert codec.unpack_with_buffers(tree, buffers) == circle


def test_codec_is_imported_when_it_is_used(folder: Path) -> None:
    data = '{"$wbe": "codec", "c": "shapes.Circle", "n": 2, "t": "x", "v": [2], "b": ["QQ=="]}'
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(folder)!r})\n"
        "from wbengine.types import codec\n"
        "codec.dumps({'a': (1, b'2')})\n"
        "print('shapes' in sys.modules)\n"
        f"print(codec.loads({data!r}).radius)\n"
        "print('shapes' in sys.modules)\n"
    )
    assert fresh.run(script).stdout == "False\n2\nTrue\n"


def test_message_imports_nothing_that_is_not_installed(folder: Path) -> None:
    (folder / "trap.py").write_text("raise SystemExit('imported')")
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(folder)!r})\n"
        "from wbengine import exceptions\n"
        "from wbengine.types import codec\n"
        "for name in ('trap', 'trap.X', 'trap:X', 'wbengine.types._codecs.arrays:ARRAY', ''):\n"
        "    try:\n"
        "        codec.unpack({'$wbe': 'codec', 'c': name, 'n': 1, 'v': []})\n"
        "    except exceptions.InvalidFormat as error:\n"
        "        print('no codec for' in str(error))\n"
        "print('numpy' in sys.modules)\n"
    )
    assert fresh.run(script).stdout == "True\n" * 5 + "False\n"


def test_earlier_version_is_decoded_and_later_one_is_rejected(shapes: Any) -> None:
    tree = codec.pack(shapes.Circle(2))
    assert codec.unpack({**tree, "n": 1}).radius == 20
    with pytest.raises(exceptions.UndecodableValue, match=r"version 3 .* version 2 is installed"):
        codec.unpack({**tree, "n": 3})
    with pytest.raises(exceptions.UndecodableValue, match=r"no codec for 'shapes\.New'"):
        codec.unpack({**tree, "c": "shapes.New"})
    for version in (0, -1, 1.0, "1", None, True):
        with pytest.raises(exceptions.InvalidFormat):
            codec.unpack({**tree, "n": version})


def test_reasons_of_a_codec_are_in_errors(shapes: Any) -> None:
    with pytest.raises(exceptions.NotEncodable, match=r"^value\[0\]: shapes.Circle has a negative"):
        codec.pack([shapes.Circle(-1)], "value")
    with pytest.raises(exceptions.NotEncodable, match="RuntimeError: is too large"):
        codec.pack(shapes.Circle(999))


def test_summary_is_valid_text(shapes: Any) -> None:
    tree = codec.pack(shapes.Circle(True))
    assert tree["t"] == "radius True"
    text = codec.pack(shapes.Named("\udc80" * 300))["t"]
    assert text == "?" * 200


def test_nested_values_that_are_encoded_can_be_decoded(shapes: Any) -> None:
    value: Any = shapes.Circle(2)
    for depth in range(codec.MAX_DEPTH + 1):
        try:
            data = codec.dumps(value)
        except exceptions.NotEncodable:
            break
        assert codec.loads(data) == value
        value = [value] if depth % 2 else shapes.Ball(value)
    assert depth > 40


def test_value_of_another_class_is_rejected(shapes: Any) -> None:
    tree = {**codec.pack(shapes.Circle(2)), "v": [13]}
    with pytest.raises(exceptions.InvalidFormat, match="its codec returned a str"):
        codec.unpack(tree)


def test_subclass_without_a_codec_is_rejected(shapes: Any) -> None:
    with pytest.raises(exceptions.NotEncodable, match=r"send a shapes\.Circle"):
        codec.pack(shapes.Ring(1))


def test_class_with_the_name_of_another_one_is_rejected(shapes: Any) -> None:
    forged = type("Circle", (), {"__module__": "shapes", "radius": 1})
    with pytest.raises(exceptions.NotEncodable):
        codec.pack(forged())


def test_codecs_that_cannot_be_used_are_rejected(shapes: Any) -> None:
    with pytest.raises(
        exceptions.NotEncodable, match=r"not installed under its name shapes\.Other"
    ):
        codec.pack(shapes.Unnamed())
    for name, reason in (
        ("NoCodec", "must be a Codec, got function"),
        ("Broken", "no_such_module"),
    ):
        with pytest.raises(exceptions.InvalidFormat, match=reason):
            codec.unpack({"$wbe": "codec", "c": f"shapes.{name}", "n": 1, "v": []})


def test_values_are_shown_unless_codecs_are_wanted(shapes: Any) -> None:
    tree = codec.pack(shapes.Circle(2))
    unknown = {**tree, "c": "shapes.Unknown"}
    with codec.unknown_classes_as_text():
        assert codec.unpack(tree) == "shapes.Circle radius 2"
    with codec.unknown_classes_as_text(with_codecs=True):
        assert codec.unpack([tree, unknown]) == [shapes.Circle(2), "shapes.Unknown radius 2"]


def test_missing_library_is_named_with_its_extra() -> None:
    script = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "from wbengine import exceptions\n"
        "from wbengine.types import codec\n"
        "try:\n"
        "    codec.unpack({'$wbe': 'codec', 'c': 'numpy.ndarray', 'n': 1, 'b': []})\n"
        "except exceptions.InvalidFormat as error:\n"
        "    print(error)\n"
    )
    message = fresh.run(script).stdout
    assert message.startswith("numpy.ndarray needs numpy: ")
    assert "[numpy]" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"b": "text"}, {"b": [5]}, {"b": [None]}, {"v": 1}, {"t": 1}, {"t": "x" * 201},
        {"c": 1}, {"c": None}, {"x": 1}, {"b": ["no base64"]}, {"b": []}, {"v": []},
    ],
)  # fmt: skip
def test_malformed_tags_are_rejected(shapes: Any, changes: dict[str, Any]) -> None:
    tree = codec.pack(shapes.Circle(2, b"data"))
    codec.unpack(tree)
    with pytest.raises(exceptions.InvalidFormat):
        codec.unpack({**tree, **changes})
