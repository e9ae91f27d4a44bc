"""Compares stored rows with recomputed rows, by an order-free digest and key by key, and reports the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from floodmark.derive.changed_keys import HashGroups
from floodmark.provenance.tree import Maker, TransactionBlock
from floodmark.rows import row_hash
from floodmark.storage.arrays import I64, Hashes, Mask

MAX_DIFFERENCES = 10
"""How many differences are reported in full. All are counted."""

_WORD = 1 << 64


@dataclass(frozen=True)
class Difference:
    """A key whose stored row differs from the replayed row. None where there is no row."""

    key: Mapping[str, Any]
    stored: Mapping[str, Any] | None
    replayed: Mapping[str, Any] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose values differ."""
        if self.stored is None or self.replayed is None:
            return ()
        replayed = self.replayed
        return tuple(name for name, value in self.stored.items() if not _same(value, replayed[name]))


@dataclass(frozen=True)
class Comparison:
    """The digests of stored and replayed rows, and the differing rows if the digests differ."""

    stored: str
    replayed: str
    rows: int
    differing: int = 0  # keys
    differences: tuple[Difference, ...] = ()


def compare(stored: pa.Table, replayed: pa.Table, key: Sequence[str]) -> Comparison:
    """Compare rows of the same columns and types. A key has at most one row; a second one is a difference."""
    names = stored.column_names
    mine, theirs = row_hash.hash_rows(stored, names), row_hash.hash_rows(replayed, names)
    digests = _digest(mine), _digest(theirs)
    if digests[0] == digests[1] and len(mine) == len(theirs):
        return Comparison(*digests, stored.num_rows)
    stored, replayed = (
        stored.filter(pa.array(_surplus_rows(mine, theirs))),
        replayed.filter(pa.array(_surplus_rows(theirs, mine))),
    )
    keys = row_hash.hash_rows(stored, key), row_hash.hash_rows(replayed, key)
    twice = int(keys[1].among(keys[0]).sum())
    count = stored.num_rows + replayed.num_rows - twice
    return Comparison(*digests, len(mine), count, tuple(_differences(stored, replayed, key, keys)))


def _surplus_rows(mine: Hashes, theirs: Hashes) -> Mask:
    """The rows of `mine` that `theirs` does not have as often."""
    number = HashGroups.of(Hashes.joined([mine, theirs])).number
    there = np.bincount(number[len(mine) :], minlength=int(number.max(initial=0)) + 1)
    own = number[: len(mine)]
    order = np.argsort(own, kind="stable")
    starts = np.searchsorted(own[order], own[order])
    turn = np.empty(len(own), np.int64)
    turn[order] = np.arange(len(own)) - starts  # 0 for the first of equal rows, 1 for the second, …
    more: Mask = turn >= there[own]
    return more


def _differences(
    stored: pa.Table, replayed: pa.Table, key: Sequence[str], keys: tuple[Hashes, Hashes]
) -> list[Difference]:
    """The first differences, in the order of the stored rows."""
    at = {pair: n for n, pair in enumerate(_pairs(keys[1]))}
    found = []
    for n, pair in enumerate(_pairs(keys[0].take(slice(0, MAX_DIFFERENCES)))):
        row, other = _row(stored, n), at.get(pair)
        found.append(Difference({k: row[k] for k in key}, row, None if other is None else _row(replayed, other)))
    alone: I64 = np.flatnonzero(~keys[1].among(keys[0]))
    for n in alone[: MAX_DIFFERENCES - len(found)].tolist():
        row = _row(replayed, n)
        found.append(Difference({k: row[k] for k in key}, None, row))
    return found


def _pairs(hashes: Hashes) -> list[tuple[int, int]]:
    return list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))


def _row(table: pa.Table, at: int) -> dict[str, Any]:
    [row] = table.slice(at, 1).to_pylist()
    return dict(row)


def _digest(hashes: Hashes) -> str:
    """The sum of the rows' hashes, which does not depend on their order."""
    with np.errstate(over="ignore"):
        high, low = int(hashes.high.sum(dtype=np.uint64)), int(hashes.low.sum(dtype=np.uint64))
    return f"{high % _WORD:016x}{low % _WORD:016x}"


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)


# Outcomes of a replay

Outcome = Literal["same", "differs", "not replayable", "code not available"]


class NotReplayable(Exception):
    """Rows cannot be computed again, because something is missing. The message names it."""

    outcome: Outcome = "not replayable"


class CodeNotAvailable(NotReplayable):
    """The code that computed the rows is not in this process. The data may be right."""

    outcome: Outcome = "code not available"


class MetaContradiction(Exception):
    """A block contradicts the step's meta of the same commit. The message names the difference."""


@dataclass(frozen=True)
class ReplayReport:
    """The replay of a transaction of a derived dataset, or of a computed column."""

    dataset: str
    outcome: Outcome
    maker: Maker
    block: TransactionBlock | None  # None for a computed column, which has no block
    column: str | None = None
    keys: int = 0
    why: str | None = None
    """What is missing, or how the computation failed."""
    compared: Comparison | None = None

    def to_json(self) -> dict[str, Any]:
        block, compared = self.block, self.compared
        return {
            "dataset": self.dataset,
            "column": self.column,
            "outcome": self.outcome,
            "block": None if block is None else {"hash": block.hash, "sequence_number": block.sequence_number},
            "transaction": None if block is None else {"start": block.start, "end": block.end},
            "made_by": vars(self.maker),
            "keys": self.keys,
            "why": self.why,
            "digest": None if compared is None else compared.stored,
            "replayed_digest": None if compared is None else compared.replayed,
            "differing": 0 if compared is None else compared.differing,
            "differences": []
            if compared is None
            else [
                {"key": one.key, "columns": one.columns, "stored": one.stored, "replayed": one.replayed}
                for one in compared.differences
            ],
        }
