"""Blocks as bytes and back, exactly as other implementations of the format write them."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

from floodmark.chain.errors import CorruptBlock, UnencodableBlock, UnsupportedBlockVersion
from floodmark.chain.events import MetadataBlock
from floodmark.chain.flat import Reader, Writer
from floodmark.chain.slots import Table
from floodmark.chain.tables import BLOCK, BYTES, I32, I64

VERSION = 3
BLOCK_KIND = 0x400000

_CACHED_BYTES = 1 << 13  # larger blocks are not kept decoded

# Version 2 differs in one thing: its timestamps are not aligned.
_TIMESTAMP_ALIGN = {2: 1, 3: 4}


@dataclass(frozen=True)
class _Manifest:
    """The outer layer of every block: says what is inside and in which version."""

    kind: int
    version: int
    content: bytes


_MANIFEST = Table(_Manifest)
_MANIFEST.declare(I64, I32, BYTES)


def encode(block: MetadataBlock, version: int = VERSION) -> bytes:
    """The block's bytes; equal blocks have equal bytes, whose SHA3-256 is the block's hash."""
    if version not in _TIMESTAMP_ALIGN:
        raise _unsupported(version)
    try:
        content = _written(BLOCK, block, version)
    except UnencodableBlock as error:
        raise UnencodableBlock(f"Block {block.sequence_number}: {error.message}", **error.facts) from error
    return _written(_MANIFEST, _Manifest(BLOCK_KIND, version, content), version)


def decode(data: bytes) -> MetadataBlock:
    """The block that these bytes hold; `CorruptBlock` or `UnsupportedBlockVersion` when they hold none."""
    return _decode_once(bytes(data)) if len(data) <= _CACHED_BYTES else _decode(bytes(data))


def _decode(data: bytes) -> MetadataBlock:
    manifest = _read(_MANIFEST, data)
    assert isinstance(manifest, _Manifest)
    if manifest.kind != BLOCK_KIND:
        raise CorruptBlock(f"These bytes are of kind 0x{manifest.kind:x}, not a metadata block.")
    if manifest.version not in _TIMESTAMP_ALIGN:
        raise _unsupported(manifest.version)
    block = _read(BLOCK, manifest.content)
    assert isinstance(block, MetadataBlock)
    return block


_decode_once = functools.lru_cache(maxsize=512)(_decode)
"""Blocks are immutable, and each call of a dataset reads the same few: schema, key, newest data."""


def _written(table: Table, value: object, version: int) -> bytes:
    writer = Writer(_TIMESTAMP_ALIGN[version])
    return writer.finished(table.place(writer, value))


def _read(table: Table, data: bytes) -> object:
    reader = Reader(data)
    try:
        return table.read_at(reader, reader.root())
    except struct.error as error:
        raise CorruptBlock(f"These {len(data)} bytes end before the block does.") from error


def _unsupported(version: int) -> UnsupportedBlockVersion:
    return UnsupportedBlockVersion(
        f"Block version {version} is not one of {', '.join(map(str, _TIMESTAMP_ALIGN))}.",
        hint="The dataset was written by a newer or much older tool; a newer release may read it.",
        version=version,
    )
