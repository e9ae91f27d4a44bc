"""Digests of nested content, some of it known only later: functions that call each other in a circle."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Ref:
    """A place for the digest of a definition (a function or a class), by its number."""

    definition: int


@dataclass(frozen=True)
class Branch:
    """Parts of which some still have a place to be filled."""

    tag: str
    parts: tuple[Form, ...]
    sorts: bool
    """Whether the order of the parts means nothing."""


Form: TypeAlias = bytes | Ref | Branch


def leaf(tag: str, *data: str | bytes) -> bytes:
    """The digest of some text or bytes. The tag keeps what is not the same apart: 1, "1" and True."""
    digest = hashlib.sha256()
    for item in (tag, *data):
        content = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item
        digest.update(len(content).to_bytes(8))
        digest.update(content)
    return digest.digest()


def ordered(tag: str, parts: Iterable[Form]) -> Form:
    """Parts whose order counts."""
    return _branch(Branch(tag, tuple(parts), sorts=False))


def unordered(tag: str, parts: Iterable[Form]) -> Form:
    """Parts whose order means nothing."""
    return _branch(Branch(tag, tuple(parts), sorts=True))


def settle(form: Form, digests: Sequence[bytes]) -> bytes:
    """The digest of a form, given those of all definitions."""
    if isinstance(form, bytes):
        return form
    if isinstance(form, Ref):
        return digests[form.definition]
    parts = [settle(part, digests) for part in form.parts]
    return leaf(form.tag, *(sorted(parts) if form.sorts else parts))


def settle_all(contents: Sequence[Form]) -> list[bytes]:
    """The digests of definitions, given what each consists of; circles are no trouble.

    Each round takes in what is one step further away, until definitions that differ at all have different digests.
    """
    digests = [b""] * len(contents)
    different = 0
    while True:
        digests = [settle(content, digests) for content in contents]
        found = len(set(digests))
        if found == different:
            return digests
        different = found


def _branch(branch: Branch) -> Form:
    return settle(branch, ()) if all(isinstance(part, bytes) for part in branch.parts) else branch
