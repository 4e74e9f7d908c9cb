# SPDX-License-Identifier: Apache-2.0
"""safetensors: the header, checked by the format's own package; the numbers are read by offset.

    8 bytes: length of the header, little-endian   header: JSON   tensors, one after the other

The package maps the file while it checks the header, and lets go of it before anything else is read.
"""

import math
import struct

from gpt2cy.weights.checkpoint import Stored
from gpt2cy.weights.files import File, parse_json, short
from gpt2cy.weights.readers import Contents

PREFIX = 8
MOST_HEADER = 100_000_000  # the package's own limit


def header_length(file: File) -> int | None:
    """Return the length of the header, or None where the first bytes cannot be of such a file."""
    if file.size < PREFIX + 2:
        return None
    (length,) = struct.unpack("<Q", file.read(0, PREFIX, "the header's length"))
    if not 2 <= length <= min(file.size - PREFIX, MOST_HEADER):
        return None
    return length if file.read(PREFIX, 1, "the header") == b"{" else None


def read(file: File) -> Contents:
    """Return the contents of a safetensors file, or raise ValueError saying what is wrong with it."""
    import safetensors

    length = header_length(file)
    if length is None:
        raise ValueError(f"{file}: expected a safetensors file, found another header")
    try:
        with safetensors.safe_open(str(file.path), framework="numpy") as checked:
            names = set(checked.keys())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file}: not a valid safetensors file: {short(str(error), 200)}") from None
    header = parse_json(file.read(PREFIX, length, "the header"), f"{file}: header")
    if not isinstance(header, dict) or set(header) - {"__metadata__"} != names:
        raise ValueError(f"{file}: the file was replaced while it was being read")
    header.pop("__metadata__", None)
    data = PREFIX + length
    return Contents("safetensors", {name: _stored(file, data, name, entry) for name, entry in header.items()})


def _stored(file, data, name, entry):
    begin, end = entry["data_offsets"]
    stored = Stored.of(file, data + begin, entry["dtype"], entry["shape"])
    file.check(data + begin, end - begin, short(name))
    if stored.format is not None and math.prod(stored.shape) * stored.format.nbytes != end - begin:
        raise ValueError(f"{file}: {short(name)}: its shape and type do not fit its {end - begin:,} bytes")
    return stored
