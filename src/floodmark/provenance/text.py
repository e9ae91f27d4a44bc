"""Where a record came from, and what came of one, as trees of lines for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from floodmark.provenance.tree import Block, Computed, Derived, Forward, Input, Maker, Provenance, Record

_VALUES = 8  # columns of a record that are shown
_WIDEST = 40
_HASH = 8  # the last digits of a block's hash, as the log shows them
_VERSION = 12
_NARROWEST = 20
_BRANCHES = "│├└─ "
_GOES_ON = str.maketrans("├└─", "│  ")


@dataclass(frozen=True)
class Node:
    """A node of a tree: its first line, lines that say more of it, and what hangs below."""

    head: str
    more: tuple[str, ...] = ()
    below: tuple[Node, ...] = field(default=())


def lines(tree: Node) -> Iterator[str]:
    """The tree, line by line."""
    yield tree.head
    yield from _below(tree, "")


def _below(tree: Node, indent: str) -> Iterator[str]:
    bar = "│ " if tree.below else "  "
    for line in tree.more:
        yield f"{indent}{bar}{line}"
    for number, node in enumerate(tree.below):
        is_last = number == len(tree.below) - 1
        yield f"{indent}{'└─ ' if is_last else '├─ '}{node.head}"
        yield from _below(node, indent + ("   " if is_last else "│  "))


def wrapped(line: str, width: int) -> list[str]:
    """A line of a tree as lines of at most that width: what does not fit goes on below it, and nothing is cut off."""
    text = line.lstrip(_BRANCHES)
    branch = line[: len(line) - len(text)]
    below = branch.translate(_GOES_ON) + "  "
    room = max(width, len(below) + _NARROWEST)  # however deep in the tree it is
    shaped = textwrap.TextWrapper(
        room, initial_indent=branch, subsequent_indent=below, break_on_hyphens=False, replace_whitespace=False
    )
    return shaped.wrap(text) or [line]


def why_tree(found: Provenance) -> Node:
    """Where a record came from."""
    more = [_made(found.maker, found.block)]
    if found.ends is not None:
        why = ": the function failed for its key" if found.failed else ""
        more.append(f"takes back record {found.ends}{why}")
    more += _computed(found.computed)
    more += [f"not sure: {doubt}" for doubt in found.doubts]
    return Node(_said(found.record), tuple(more), tuple(_input(given) for given in found.inputs))


def _computed(columns: Sequence[Computed]) -> list[str]:
    return [
        f"{one.column} = {_value(one.value)}: computed by {one.function} {_version(one.version)} "
        f"from {', '.join(one.inputs)}"
        for one in columns
    ]


def _input(given: Input) -> Node:
    if given.by is None:
        head = f"all {_rows(given.rows)} of {given.dataset}" if given.rows else f"all rows of {given.dataset}"
    else:
        count = "rows" if given.missing is not None and not given.rows else _rows(given.rows)
        head = f"{count} of {given.dataset} with {_pairs(given.by)}"
    head += f", as of record {given.position}" if given.position >= 0 else ", which had no records"
    more = [] if given.missing is None else [f"not all is known: {given.missing}"]
    below = [why_tree(one) for one in given.records]
    below += [why_tree(one) for one in given.gone]
    if given.by is not None and (left := given.rows - len(given.records)) > 0:
        below.append(Node(f"… {left:,} more"))
    return Node(head, tuple(more), tuple(below))


def forward_tree(found: Forward) -> Node:
    """What came of a record."""
    more = [f"block {_block(found.block)}", *_computed(found.computed)]
    more += [f"{one.dataset} is made of all rows of {one.of}: {_whole(one.transactions)}" for one in found.wholes]
    more += [f"{name} has not read it yet" for name in found.waiting]
    more += [f"not sure: {doubt}" for doubt in found.doubts]
    if not (found.derived or found.wholes or found.waiting or found.computed):
        more.append("nothing was made of it")
    return Node(_said(found.record), tuple(more), tuple(_derived(one) for one in found.derived))


def _derived(one: Derived) -> Node:
    now = "" if one.is_current or one.record.op in ("-R", "-C") else ", not current any more"
    return Node(_said(one.record), (_made(one.maker, one.block) + now,), tuple(_derived(d) for d in one.derived))


def _whole(transactions: int) -> str:
    if not transactions:
        return "it was never current when that was refreshed"
    return f"it was there in {transactions} of its refreshes"


def _made(maker: Maker, block: Block) -> str:
    match maker.kind:
        case "write":
            who = "written"
            if maker.source is not None:
                who += f" from {maker.file or f'{maker.source}, {_cut(maker.state or str())}'}"
        case "view":
            who = f"view ({maker.way}) {_version(maker.version)}"
        case "step" | "datatable":
            way = "whole datasets" if maker.kind == "datatable" else maker.way
            who = f"step {maker.name}{f' ({way})' if way else ''} {_version(maker.version)}"
        case _:
            who = "made by nobody knows whom"
    return f"{who.rstrip()}, block {_block(block)}"


def _block(block: Block) -> str:
    return f"{block.sequence_number} ({block.hash[-_HASH:]})"


def _version(version: str | None) -> str:
    return "" if version is None else f"version {version[:_VERSION]}"


def _said(record: Record) -> str:
    shown = list(record.values.items())[:_VALUES]
    more = " …" if len(record.values) > _VALUES else ""
    return f"{record.dataset} {record.offset} {record.op}  {_pairs(dict(shown))}{more}".rstrip()


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    return "null" if value is None else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _rows(count: int) -> str:
    return "no row" if not count else "1 row" if count == 1 else f"{count:,} rows"
