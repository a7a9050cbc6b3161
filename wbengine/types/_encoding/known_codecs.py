"""Names of the classes for which wbengine contains codecs. No library is imported to find them."""

from __future__ import annotations

from typing import Final

from wbengine._imports import installing

_NUMPY_SCALARS: Final = (
    "generic bool bytes_ clongdouble complex128 complex64 datetime64 float16 float32 float64 int16"
    " int32 int64 int8 longdouble longlong str_ timedelta64 uint16 uint32 uint64 uint8 ulonglong"
    " void"
)

#: The place of each codec, by the dotted names of its classes.
REFERENCES: Final[dict[str, str]] = {
    "numpy.ndarray": "wbengine.types._codecs.arrays:ARRAY",
    **{f"numpy.{name}": "wbengine.types._codecs.arrays:SCALAR" for name in _NUMPY_SCALARS.split()},
}

_EXTRAS: Final[dict[str, installing.Extra]] = {"numpy": "numpy"}


def advice(name: str, error: Exception) -> str:
    """Return why the codec of the class with this name cannot be loaded, and what to do."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in _EXTRAS:
        return installing.needs(name, missing, _EXTRAS[missing])
    return f"the codec of {name} cannot be loaded: {type(error).__name__}: {error}"
