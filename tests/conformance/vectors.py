"""The vectors of block-vectors.json as blocks: inputs with the bytes an independent implementation gives."""

import json
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from floodmark.chain import events, schema, source_steps
from floodmark.chain.events import MetadataBlock
from floodmark.chain.ids import DatasetId, Multihash


@dataclass(frozen=True)
class Vector:
    case: int | str
    version: int
    block: MetadataBlock
    data: bytes
    sha3_256: str


def load() -> list[Vector]:
    cases = json.loads((Path(__file__).parent / "block-vectors.json").read_text())
    return [
        Vector(
            case["case"],
            version,
            _built(MetadataBlock, case["block"]),
            bytes.fromhex(case[key]["hex"]),
            case[key]["sha3_256"],
        )
        for case in cases
        for version, key in ((2, "v2"), (3, "v3"))
        if key in case
    ]


def _built(cls, values):
    hints = typing.get_type_hints(cls)
    assert set(values) <= {field.name for field in fields(cls)}
    return cls(**{name: _value(hints[name], value) for name, value in values.items()})


def _value(hint, value):
    match value:
        case {"$union": name, "value": members}:
            module = next(m for m in (events, schema, source_steps) if hasattr(m, name))
            return _built(getattr(module, name), members)
        case {"$hex": digits}:
            return (DatasetId if DatasetId in _alternatives(hint) else Multihash).from_bytes(bytes.fromhex(digits))
    for cls in _alternatives(hint):
        if isinstance(value, dict) and is_dataclass(cls):
            return _built(cls, value)
        if isinstance(value, list) and typing.get_origin(cls) is tuple:
            return tuple(_value(typing.get_args(cls)[0], item) for item in value)
        if isinstance(value, str) and cls is int:  # nanoseconds
            return int(datetime.fromisoformat(value).timestamp()) * 1_000_000_000
        if isinstance(value, str) and isinstance(cls, type) and issubclass(cls, Enum):
            return next(member for member in cls if member.name.replace("_", "").lower() == value.lower())
    return value


def _alternatives(hint):
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
