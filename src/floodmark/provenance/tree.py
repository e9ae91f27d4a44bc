"""The answers of `why` and `forward`: trees of records with their transactions and inputs, as values and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Record:
    """A record of a dataset. `op` is +A for a new row, -R for a deleted row, -C and +C for a changed row."""

    dataset: str
    dataset_id: str
    offset: int
    op: str
    system_time: datetime
    values: Mapping[str, Any]


@dataclass(frozen=True)
class TransactionBlock:
    """The last block of the transaction that wrote a record, and the records [start, end) of that transaction."""

    hash: str
    sequence_number: int
    start: int
    end: int


@dataclass(frozen=True)
class Maker:
    """What made a record: a write from outside, a step, or a view."""

    kind: str
    """write, carried (by a purge), step (BatchTransform), datatable (DatatableTransform), view, or unknown."""
    name: str | None = None
    version: str | None = None
    way: str = ""
    """For a step: map, keyed or cross. For a view: rows, groups, join, changes or whole."""
    run: str | None = None
    source: str | None = None
    """For a write: the name of its source."""
    state: str | None = None
    """For a write: how far its source was read. For a carried row: the offset before which it was written first."""
    file: str | None = None
    """For a write from a file: its name when it was loaded; `a or b` if other files gave rows back in that write."""


@dataclass(frozen=True)
class ComputedValue:
    """A computed column of a record: its value, its function, and its input columns."""

    column: str
    value: Any
    function: str
    version: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class InputRows:
    """The rows of one input that a record was made of, as of the input's record `position`.

    `by` has the columns and values that these rows match. None means that all rows of the input match; it is empty if
    the rows were found by running the query of a view again, over the rows that it read then. `rows` counts
    them all; `records` are the first ones. If the record retracts a row, `gone` has the input rows that were retracted
    since that row was made.
    """

    dataset: str
    dataset_id: str
    position: int
    by: Mapping[str, Any] | None
    rows: int
    records: tuple[Provenance, ...] = ()
    gone: tuple[Provenance, ...] = ()
    missing: str | None = None
    """Why some rows may be missing here; None if none are missing."""


@dataclass(frozen=True)
class Provenance:
    """A record with its transaction, what made it, and the input rows that it was made of."""

    record: Record
    block: TransactionBlock
    maker: Maker
    inputs: tuple[InputRows, ...] = ()
    computed: tuple[ComputedValue, ...] = ()
    ends: int | None = None
    """For a retraction: the offset of the record whose row it takes back."""
    failed: bool = False
    """For a retraction: whether the row was taken back because the function failed for its key."""
    doubts: tuple[str, ...] = ()
    """Why the answer may be incomplete."""

    @property
    def is_complete(self) -> bool:
        """Whether all inputs are known, down to the sources. Rows that are only counted are not checked."""
        return not self.doubts and all(
            given.missing is None and all(one.is_complete for one in (*given.records, *given.gone))
            for given in self.inputs
        )

    def offsets(self) -> dict[str, set[int]]:
        """The offsets of all records in the tree except this one, by dataset."""
        found: dict[str, set[int]] = {}
        for one in self.walk():
            if one is not self:
                found.setdefault(one.record.dataset, set()).add(one.record.offset)
        return found

    def walk(self) -> Iterator[Provenance]:
        """All nodes of the tree, from the top."""
        yield self
        for given in self.inputs:
            for one in (*given.records, *given.gone):
                yield from one.walk()

    def to_json(self) -> dict[str, Any]:
        """The tree as dicts and lists. Values are Python objects."""
        record, block = self.record, self.block
        return {
            "dataset": record.dataset,
            "offset": record.offset,
            "op": record.op,
            "system_time": record.system_time,
            "values": dict(record.values),
            "block": {"hash": block.hash, "sequence_number": block.sequence_number},
            "transaction": {"start": block.start, "end": block.end},
            "made_by": vars(self.maker),
            "ends": self.ends,
            "failed": self.failed,
            "computed": [vars(one) for one in self.computed],
            "inputs": [
                {
                    "dataset": given.dataset,
                    "position": given.position,
                    "by": None if given.by is None else dict(given.by),
                    "rows": given.rows,
                    "records": [one.to_json() for one in given.records],
                    "gone": [one.to_json() for one in given.gone],
                    "missing": given.missing,
                }
                for given in self.inputs
            ],
            "doubts": list(self.doubts),
        }


@dataclass(frozen=True)
class DerivedRecord:
    """A record of a derived dataset that was made from an input record, and the records made from it in turn."""

    record: Record
    block: TransactionBlock
    maker: Maker
    is_current: bool
    derived: tuple[DerivedRecord, ...] = ()

    def to_json(self) -> dict[str, Any]:
        record, block = self.record, self.block
        return {
            "dataset": record.dataset,
            "offset": record.offset,
            "op": record.op,
            "system_time": record.system_time,
            "values": dict(record.values),
            "block": {"hash": block.hash, "sequence_number": block.sequence_number},
            "made_by": vars(self.maker),
            "is_current": self.is_current,
            "derived": [one.to_json() for one in self.derived],
        }


@dataclass(frozen=True)
class WholeDataset:
    """A dataset that is made from all rows of another dataset, so each of its rows may depend on an input record."""

    dataset: str
    of: str
    maker: Maker
    transactions: int
    """The number of its transactions in which the input record was current."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "maker": vars(self.maker)}


@dataclass(frozen=True)
class ForwardProvenance:
    """A record, and what was made from it."""

    record: Record
    block: TransactionBlock
    derived: tuple[DerivedRecord, ...] = ()
    wholes: tuple[WholeDataset, ...] = ()
    waiting: tuple[str, ...] = ()
    """Datasets that are made from this dataset and have not read the record yet."""
    computed: tuple[ComputedValue, ...] = ()
    """The computed columns of the record."""
    doubts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        record, block = self.record, self.block
        return {
            "dataset": record.dataset,
            "offset": record.offset,
            "op": record.op,
            "system_time": record.system_time,
            "values": dict(record.values),
            "block": {"hash": block.hash, "sequence_number": block.sequence_number},
            "derived": [one.to_json() for one in self.derived],
            "wholes": [one.to_json() for one in self.wholes],
            "waiting": list(self.waiting),
            "computed": [vars(one) for one in self.computed],
            "doubts": list(self.doubts),
        }


# As text

_VALUES = 8  # columns of a record that are shown
_WIDEST = 40
_HASH = 8  # the last digits of a block's hash, as the log shows them
_VERSION = 12
_NARROWEST = 20
_BRANCHES = "│├└─ "
_GOES_ON = str.maketrans("├└─", "│  ")


@dataclass(frozen=True)
class TextNode:
    """A node of a tree: its first line, its further lines, and its children."""

    text: str
    more: tuple[str, ...] = ()
    below: tuple[TextNode, ...] = field(default=())


def render_lines(tree: TextNode) -> Iterator[str]:
    """The tree, line by line."""
    yield tree.text
    yield from _below(tree, "")


def _below(tree: TextNode, indent: str) -> Iterator[str]:
    bar = "│ " if tree.below else "  "
    for line in tree.more:
        yield f"{indent}{bar}{line}"
    for number, node in enumerate(tree.below):
        is_last = number == len(tree.below) - 1
        yield f"{indent}{'└─ ' if is_last else '├─ '}{node.text}"
        yield from _below(node, indent + ("   " if is_last else "│  "))


def wrap_line(line: str, width: int) -> list[str]:
    """A line of a tree, wrapped to lines of at most this width. Nothing is cut off."""
    text = line.lstrip(_BRANCHES)
    branch = line[: len(line) - len(text)]
    below = branch.translate(_GOES_ON) + "  "
    text_width = max(width, len(below) + _NARROWEST)  # deep lines may be wider, to stay readable
    shaped = textwrap.TextWrapper(
        text_width, initial_indent=branch, subsequent_indent=below, break_on_hyphens=False, replace_whitespace=False
    )
    return shaped.wrap(text) or [line]


def build_why_tree(found: Provenance) -> TextNode:
    """The answer of `why` as a tree of lines."""
    more = [_maker_text(found.maker, found.block)]
    if found.ends is not None:
        why = ": the function failed for its key" if found.failed else ""
        more.append(f"takes back record {found.ends}{why}")
    more += _computed(found.computed)
    more += [f"not sure: {doubt}" for doubt in found.doubts]
    return TextNode(_record_text(found.record), tuple(more), tuple(_input(given) for given in found.inputs))


def _computed(columns: Sequence[ComputedValue]) -> list[str]:
    return [
        f"{one.column} = {_value(one.value)}: computed by {one.function} {_version(one.version)} "
        f"from {', '.join(one.inputs)}"
        for one in columns
    ]


def _input(given: InputRows) -> TextNode:
    if given.by is None:
        text = f"all {_rows(given.rows)} of {given.dataset}" if given.rows else f"all rows of {given.dataset}"
    else:
        count = "rows" if given.missing is not None and not given.rows else _rows(given.rows)
        text = f"{count} of {given.dataset}{f' with {_pairs(given.by)}' if given.by else ''}"
    text += f", as of record {given.position}" if given.position >= 0 else ", which had no records"
    more = [] if given.missing is None else [f"not all is known: {given.missing}"]
    below = [build_why_tree(one) for one in given.records]
    below += [build_why_tree(one) for one in given.gone]
    if given.by is not None and (left := given.rows - len(given.records)) > 0:
        below.append(TextNode(f"… {left:,} more"))
    return TextNode(text, tuple(more), tuple(below))


def build_forward_tree(found: ForwardProvenance) -> TextNode:
    """The answer of `forward` as a tree of lines."""
    more = [f"block {_block(found.block)}", *_computed(found.computed)]
    more += [f"{one.dataset} is made from all rows of {one.of}: {_whole(one.transactions)}" for one in found.wholes]
    more += [f"{name} has not read it yet" for name in found.waiting]
    more += [f"not sure: {doubt}" for doubt in found.doubts]
    if not (found.derived or found.wholes or found.waiting or found.computed):
        more.append("nothing was made from it")
    return TextNode(_record_text(found.record), tuple(more), tuple(_derived(one) for one in found.derived))


def _derived(one: DerivedRecord) -> TextNode:
    now = "" if one.is_current or one.record.op in ("-R", "-C") else ", no longer current"
    return TextNode(
        _record_text(one.record), (_maker_text(one.maker, one.block) + now,), tuple(_derived(d) for d in one.derived)
    )


def _whole(transactions: int) -> str:
    if not transactions:
        return "the record was current in none of its refreshes"
    return f"the record was current in {transactions} of its refreshes"


def _maker_text(maker: Maker, block: TransactionBlock) -> str:
    match maker.kind:
        case "write":
            who = "written"
            if maker.source is not None:
                who += f" from {maker.file or f'{maker.source}, {_shorten(maker.state or str())}'}"
        case "carried":
            who = f"carried by a purge of the records before offset {maker.state}"
        case "view":
            who = f"view ({maker.way}) {_version(maker.version)}"
        case "step" | "datatable":
            way = "whole datasets" if maker.kind == "datatable" else maker.way
            who = f"step {maker.name}{f' ({way})' if way else ''} {_version(maker.version)}"
        case _:
            who = "origin unknown"
    return f"{who.rstrip()}, block {_block(block)}"


def _block(block: TransactionBlock) -> str:
    return f"{block.sequence_number} ({block.hash[-_HASH:]})"


def _version(version: str | None) -> str:
    return "" if version is None else f"version {version[:_VERSION]}"


def _record_text(record: Record) -> str:
    shown = list(record.values.items())[:_VALUES]
    more = " …" if len(record.values) > _VALUES else ""
    return f"{record.dataset} {record.offset} {record.op}  {_pairs(dict(shown))}{more}".rstrip()


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    return "null" if value is None else _shorten(str(value))


def _shorten(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _rows(count: int) -> str:
    return "no row" if not count else "1 row" if count == 1 else f"{count:,} rows"
