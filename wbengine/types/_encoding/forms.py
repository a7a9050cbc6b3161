"""Forms: how the values of one class are encoded and decoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from wbengine._introspection import object_names
from wbengine.types._encoding import walk
from wbengine.types._encoding.walk import Parts


class Form:
    """How the values of one class are encoded and decoded."""

    #: The name of the tag.
    tag: ClassVar[str]
    #: Attributes of instances that are not part of the value.
    ignored: frozenset[str] = frozenset()

    def __init__(self, cls: type) -> None:
        self.cls: Any = cls
        self.name = object_names.dotted(cls)

    def write(self, value: Any, depth_left: int) -> Parts:
        """Return the content of the tag, as `walk.Tag.write`."""
        raise NotImplementedError

    def read(self, parts: Parts, depth_left: int) -> Any:
        """Return the value, as `walk.Tag.read`."""
        raise NotImplementedError

    def contents(self, value: Any) -> dict[str, Any]:
        """Return the named values of which `value` consists."""
        return {}


class Enumeration(Form):
    """Members of an enumeration."""

    tag = "enum"

    def write(self, value: Any, depth_left: int) -> Parts:
        if value.name in self.cls.__members__:
            return {"c": self.name, "v": value.name}
        # A combination of flags has a value but no name.
        return {"c": self.name, "n": walk.pack(value.value, depth_left, True)}

    def read(self, parts: Parts, depth_left: int) -> Any:
        if "v" in parts:
            return self.cls.__members__[parts["v"]]
        return self.cls(walk.unpack(parts["n"], depth_left, True))


class Fields(Form):
    """Instances that consist of named fields. Decoding sets them without calling the class."""

    tag = "data"

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        super().__init__(cls)
        self.names: Final = tuple(names)
        self._name_set: Final = frozenset(self.names)

    def write(self, value: Any, depth_left: int) -> Parts:
        return {"c": self.name, "v": walk.pack_attributes(self.split(value), depth_left)}

    def read(self, parts: Parts, depth_left: int) -> Any:
        return self.create(self.values_in(parts, depth_left))

    def values_in(self, parts: Parts, depth_left: int) -> dict[str, Any]:
        """Return the decoded values of the fields.

        :raises ValueError: if the class has other fields.
        """
        values = parts["v"]
        if type(values) is not dict or values.keys() != self._name_set or len(parts) != 2:
            raise ValueError(f"the fields of {self.name} are {', '.join(sorted(self.names))}")
        return walk.unpack_attributes(values, depth_left)

    def contents(self, value: Any) -> dict[str, Any]:
        return {name: getattr(value, name, None) for name in self.names}

    def split(self, value: Any) -> dict[str, Any]:
        """Return the values of the fields.

        :raises ValueError: if a field has no value, or the instance has other attributes.
        """
        for name in self.names:
            if not hasattr(value, name):
                raise ValueError(f"lacks its field {name!r}")
        for name in getattr(value, "__dict__", ()):
            if name not in self._name_set and name not in self.ignored:
                raise ValueError(f"has the attribute {name!r}, which is not a field")
        return {name: getattr(value, name) for name in self.names}

    def create(self, values: dict[str, Any]) -> Any:
        """Return an instance with these values."""
        instance = object.__new__(self.cls)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance


class NamedTuples(Fields):
    """Instances of a `NamedTuple`, whose items are its fields."""

    def split(self, value: Any) -> dict[str, Any]:
        if len(value) != len(self.names):
            raise ValueError(f"has {len(value)} items, but {len(self.names)} fields")
        for name in getattr(value, "__dict__", ()):
            raise ValueError(f"has the attribute {name!r}, which is not a field")
        return dict(zip(self.names, value, strict=True))

    def create(self, values: dict[str, Any]) -> Any:
        return tuple.__new__(self.cls, [values[name] for name in self.names])
