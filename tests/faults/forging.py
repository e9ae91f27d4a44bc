"""Forged lakes: one value of one object is another one, and every hash, digest and name that covers it fits again.

So a forged object passes every check of bytes, and only a check of its values can refuse it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any

from floodmark.chain import wire
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.storage import document
from floodmark.storage.memory import MemoryStore

Content = dict[str, bytes]
"""All objects of a lake, by key."""

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
TEXTS = [
    "",
    "²",
    "٣",
    "-1",
    "1e999",
    "NaN",
    "a/b",
    "../..",
    ".",
    "\0",
    ESCAPE,
    "\udcff",
    "x" * 100_000,
    "null",
    "floodmark",
]
NUMBERS = [0, 1, -1, 2, 7, 1 << 31, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63), 10**30]


def content_of(store: MemoryStore) -> Content:
    return {info.key: store.get(info.key) for info in store.list("")}


def store_of(content: Content) -> MemoryStore:
    store = MemoryStore()
    for key, data in content.items():
        store.put_derived(key, data)
    return store


# Values


def other_json(chance: random.Random, value: Any) -> Any:
    """The value with one part of it replaced, removed or repeated."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        if isinstance(value, dict):
            name = chance.choice(list(value))
            kept = {**value}
            match chance.randrange(8):
                case 0:
                    del kept[name]
                case 1:
                    kept[chance.choice(TEXTS)] = kept.pop(name)
                case _:
                    kept[name] = other_json(chance, value[name])
            return kept
        at = chance.randrange(len(value))
        match chance.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case 2:
                return value[::-1]
            case _:
                return [*value[:at], other_json(chance, value[at]), *value[at + 1 :]]
    return other_scalar(chance, value)


def other_scalar(chance: random.Random, value: Any) -> Any:
    """A value that JSON can hold, most often of the same type, or with another JSON value in a text."""
    if isinstance(value, str) and value[:1] in "{[" and chance.random() < 0.8:
        try:
            return json.dumps(other_json(chance, json.loads(value)))
        except ValueError:
            pass
    match chance.randrange(10):
        case 0:
            return chance.choice([None, True, 1.5, float("nan"), [], {}, [[]], "x", 3])
        case 1:
            return nested(chance.choice([10, 5_000]))
        case 2 if isinstance(value, str):
            return chance.choice(NUMBERS)
        case 3 if isinstance(value, int):
            return chance.choice(TEXTS)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chance.choice([-1, 1]) if chance.random() < 0.3 else chance.choice(NUMBERS)
    if isinstance(value, str):
        return other_text(chance, value)
    return chance.choice([*NUMBERS, *TEXTS, None, [], {}])


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def other_text(chance: random.Random, value: str) -> str:
    match chance.randrange(5):
        case 0 if value:
            at = chance.randrange(len(value))
            return value[:at] + chance.choice("0f²x:/-_ \x1b") + value[at + 1 :]
        case 1 if value:
            return value[: chance.randrange(len(value))]
        case 2 if re.search(r"\d+", value):
            return re.sub(r"\d+", str(chance.choice(NUMBERS)), value, count=1)
        case _:
            return chance.choice(TEXTS)


def other_part(chance: random.Random, value: Any) -> Any:
    """A part of a block, with one value in it replaced."""
    if is_dataclass(value) and not isinstance(value, Multihash | DatasetId | type):
        one = chance.choice(fields(value))
        return replace(value, **{one.name: other_part(chance, getattr(value, one.name))})
    if isinstance(value, tuple) and value:
        at = chance.randrange(len(value))
        match chance.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return (*value, value[at])
            case 2:
                return value[::-1]
            case _:
                return (*value[:at], other_part(chance, value[at]), *value[at + 1 :])
    if isinstance(value, Enum):
        return chance.choice(list(type(value)))
    if isinstance(value, Multihash):
        return Multihash(value.code, chance.randbytes(32))
    if isinstance(value, DatasetId):
        return DatasetId(chance.randbytes(32))
    if isinstance(value, bytes):
        return other_bytes(chance, value)
    if isinstance(value, str):
        found = other_scalar(chance, value)
        return found if isinstance(found, str) else str(found)
    if isinstance(value, int) and not isinstance(value, bool):
        return value + chance.choice([-1, 1]) if chance.random() < 0.3 else chance.choice(NUMBERS)
    return None if chance.random() < 0.5 else chance.choice([*NUMBERS, *TEXTS])


def other_bytes(chance: random.Random, value: bytes) -> bytes:
    if not value or chance.random() < 0.2:
        return chance.randbytes(chance.randrange(64))
    at = chance.randrange(len(value))
    if len(value) >= 8 and chance.random() < 0.6:
        at -= at % 8
        number = chance.choice(NUMBERS) & (1 << 64) - 1
        return (value[:at] + number.to_bytes(8, "little") + value[at + 8 :])[: len(value)]
    return value[:at] + chance.randbytes(1) + value[at + 1 :]


# Objects


def is_block(key: str) -> bool:
    return "/blocks/" in key


def is_document(data: bytes) -> bool:
    return data[:4] == document.MAGIC


def _opened(data: bytes) -> tuple[str, int, Any, dict[str, bytes], int]:
    kind, version, _, _, align = json.loads(document._checked_header(memoryview(data), ""))
    found = document.decode(data, kind, "", version)
    return kind, version, found.facts, {name: bytes(found.section(name)) for name in found.sections}, align


def other_document(chance: random.Random, data: bytes) -> bytes:
    kind, version, facts, sections, align = _opened(data)
    if sections and chance.random() < 0.3:
        name = chance.choice(list(sections))
        sections[name] = other_bytes(chance, sections[name])
    else:
        facts = other_json(chance, facts)
    return document.encode(kind, version, facts, sections, align)


def other_object(chance: random.Random, key: str, data: bytes) -> bytes | None:
    """Another object that could be at this key; None if the change cannot be encoded."""
    try:
        if is_block(key):
            return wire.encode(other_part(chance, wire.decode(data)))
        if is_document(data):
            return other_document(chance, data)
        return json.dumps(other_json(chance, json.loads(data))).encode()
    except Exception:  # a value that the format cannot hold
        return None


def can_be_forged(key: str, data: bytes) -> bool:
    if is_block(key) or is_document(data):
        return True
    try:
        return isinstance(json.loads(data), dict | list)
    except ValueError:
        return False


@dataclass(frozen=True)
class Identity:
    """What names an object and changes with its bytes."""

    raw: bytes

    @property
    def text(self) -> bytes:
        return self.raw.hex().encode()


def _identity(key: str, data: bytes) -> Identity | None:
    """The digest in the name of an object, which other objects name; None if its name does not depend on its bytes."""
    if is_document(data):
        digest = bytes.fromhex(document.header_digest(data))
        return Identity(digest) if digest.hex() in key else None
    digest = Multihash.sha3_256(data).digest
    return Identity(digest) if digest.hex() in key else None


def sealed(content: Content, key: str, data: bytes) -> Content:
    """The content with other bytes of one object, renamed, and every object that names it changed accordingly."""
    content = {**content}
    waiting = [(key, data)]
    while waiting:
        key, data = waiting.pop(0)
        old = content.get(key)
        if old is None or old == data:
            continue
        before = _identity(key, old)
        del content[key]
        if before is None:
            content[key] = data
            continue
        raw = bytes.fromhex(document.header_digest(data)) if is_document(data) else Multihash.sha3_256(data).digest
        after = Identity(raw)
        content[key.replace(before.raw.hex(), raw.hex())] = data
        for other in sorted(content):
            named = other.replace(before.raw.hex(), raw.hex())
            changed = _renamed(content[other], before, after)
            if named != other:
                content[named] = content.pop(other)
            if changed != content[named]:
                waiting.append((named, changed))
    return content


def _renamed(data: bytes, before: Identity, after: Identity) -> bytes:
    if before.raw not in data and before.text not in data:
        return data
    if data[:4] == b"PAR1":
        return data
    if not is_document(data):
        return data.replace(before.raw, after.raw).replace(before.text, after.text)
    kind, version, facts, sections, align = _opened(data)
    facts = json.loads(json.dumps(facts).replace(before.raw.hex(), after.raw.hex()))
    sections = {
        name: part.replace(before.raw, after.raw).replace(before.text, after.text) for name, part in sections.items()
    }
    return document.encode(kind, version, facts, sections, align)


def reencoded(
    data: bytes,
    change: Callable[[dict[str, Any]], Any] = lambda facts: facts,
    sections: Mapping[str, Callable[[bytes], bytes]] | None = None,
) -> bytes:
    """A document with other facts or sections."""
    kind, version, facts, parts, align = _opened(data)
    changed = {name: (sections or {}).get(name, bytes)(part) for name, part in parts.items()}
    return document.encode(kind, version, change(facts), changed, align)
