"""Arrow schemas as bytes in the form of older writers: the FlatBuffers table alone, without a message around it."""

from __future__ import annotations

import struct

import pyarrow as pa
from flatbuffers import encode, number_types
from flatbuffers.table import Table

_ALIGNMENT = 8


def raw_schema(schema: pa.Schema) -> bytes:
    """The bytes of `raw_arrow_schema`.

    Arrow's own encoder makes the table; only the reference to the root is ours. Tables refer to each other by relative
    positions, so they can be moved.
    """
    message = schema.serialize().to_pybytes()[8:]  # after the continuation marker and the length
    root = encode.Get(number_types.UOffsetTFlags.packer_type, message, 0)
    table = Table(message, root)
    header = 4 + 2 * 2  # the third field of a Message
    position = table.Indirect(root + table.Offset(header))
    return struct.pack("<I4x", _ALIGNMENT + position) + message
