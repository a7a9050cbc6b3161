"""Mutated trees and buffers of encoded values, decoded in a process with limited memory."""

from __future__ import annotations

import collections
import copy
import importlib
import json
import os
import random
import resource
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from wbengine import exceptions
from wbengine.types import codec

#: Memory that all decoded mutations of small values may require.
MAX_GROWTH_BYTES = 400 << 20
NUMBERS = (-1, 0, 1, 2, 7, 255, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 70)
TEXTS = ("", "os.system", "subprocess.Popen", "pandas.read_pickle", "|O", "M8[ns]", "\x00", "QQ==")


def decode_mutations(module: str, count: int) -> dict[str, int]:
    """Decode `count` mutations of the values in `module.VALUES`.

    Return how many were rejected and accepted, and the names of modules that were imported
    meanwhile.
    """
    values = importlib.import_module(module).VALUES
    packed = [codec.pack_with_buffers(value) for value in values]
    for tree, buffers in packed:
        repr(codec.unpack_with_buffers(tree, buffers))  # Imports what valid values need.
    modules = set(sys.modules)
    # A backtrace of polars reads debug information, which needs more memory than the limit.
    os.environ["RUST_BACKTRACE"] = "0"
    resource.setrlimit(resource.RLIMIT_AS, (_size() + MAX_GROWTH_BYTES,) * 2)
    results: collections.Counter[str] = collections.Counter()
    for seed in range(count):
        rng = random.Random(seed)
        tree, buffers = packed[seed % len(packed)]
        mutated_tree = json.loads(json.dumps(tree))
        mutated_buffers = [bytearray(buffer) for buffer in buffers]
        for _ in range(rng.choice((1, 1, 2, 4))):
            if mutated_buffers and rng.random() < 0.5:
                _mutate_bytes(rng, rng.choice(mutated_buffers))
            else:
                mutated_tree = _mutate_tree(rng, mutated_tree)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _show(codec.unpack_with_buffers(mutated_tree, mutated_buffers))
        except exceptions.InvalidFormat:
            results["rejected"] += 1
        else:
            results["accepted"] += 1
    results.update(dict.fromkeys(set(sys.modules) - modules, 1))
    return dict(results)


def _show(value: Any) -> None:
    """Show a value. Libraries refuse to show some frames that a user can create."""
    try:
        repr(value)
    except MemoryError:
        raise
    except Exception:
        pass


def _size() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _mutate_bytes(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        del data[start:]
    elif kind == 1:
        data[start:start] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 2:
        number = rng.choice(NUMBERS) % (1 << 64)
        data[start : start + 8] = number.to_bytes(8, "little")
    elif start < len(data):
        data[start] ^= 1 << rng.randrange(8)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, item in items:
        yield tree, key
        if isinstance(item, dict | list):
            yield from _places(item)


def _mutate_tree(rng: random.Random, tree: Any) -> Any:
    places = list(_places(tree))
    container, key = rng.choice(places)
    item = container[key]
    kind = rng.randrange(5)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(item, str) and len(item) > 8:
        # A header or another text; base64 mostly stays valid.
        start = rng.randrange(len(item))
        container[key] = item[:start] + rng.choice("A9(-{0' ") + item[start + 1 :]
    elif kind == 2:
        other, other_key = rng.choice(places)
        container[key] = copy.deepcopy(other[other_key])
    elif kind == 3:
        container[key] = rng.choice(TEXTS)
    else:
        container[key] = rng.choice((None, True, 1.5, [], {}, *NUMBERS))
    return tree
