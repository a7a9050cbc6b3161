"""Copies of damaged files, so that nothing that comes later can destroy what is left of them."""

from __future__ import annotations

import logging
import os
import time
import zlib

from wbengine import exceptions
from wbengine.persistence.backends.directory import files

__all__ = ["put_aside"]

LOG = logging.getLogger(__name__)


def put_aside(root: str, error: exceptions.CorruptRecord) -> None:
    """Copy the file that `error` is about to `aside`, once; the file itself stays where it is.

    So it keeps being refused, until somebody replaces it.
    """
    folder = os.path.join(root, "aside")
    owner = os.path.basename(os.path.dirname(error.path))
    try:
        data = files.read(error.path)
        name = f"{owner}.{os.path.basename(error.path)}"
        end = f"{zlib.crc32(data):08x}"
        there = files.names_in(folder)
        if any(other.startswith(name) and other.endswith(end) for other in there):
            return
        files.make_folders(folder)
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        files.write_new(os.path.join(folder, f"{name}.{moment}.{end}"), [data])
    except FileNotFoundError:
        return
    except exceptions.StorageFailure as problem:
        LOG.warning("No copy of the damaged %s could be put aside: %s", error.path, problem)
