"""The origin of a transaction of a derived dataset: its inputs, their positions, and how their rows match its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.events import DatasetKind, ExecuteTransform, SetAttachments, SetTransform
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.chain.state import ChainState
from floodmark.derive import notes
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import InputShape, KeyShape, cast_with_mask
from floodmark.derive.notes import BadNote
from floodmark.derive.positions import NO_POSITION
from floodmark.derive.row_search import SearchLimits, find_rows
from floodmark.ledger.scan import live_mask
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.ledger.snapshot import CarriedRecords
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.transactions import OpenedDataset, Transaction
from floodmark.rows import row_hash
from floodmark.rows.classify import CORRECT_FROM, RETRACT
from floodmark.storage.arrays import I64
from floodmark.transforms import whole_inputs
from floodmark.transforms.commit import RunProvenance, StepDeclaration
from floodmark.transforms.meta_entries import KIND
from floodmark.transforms.outputs import SecondaryNote
from floodmark.views import snapshot
from floodmark.views.stored_definition import StoredView, read_stored_view

MakerKind = Literal["step", "view", "datatable", "unknown"]

ColumnPairs = tuple[tuple[str, str], ...]
"""Pairs of an output column and the matching input column."""

NO_DECLARATION = "the transform keys of that run were not recorded or are lost: columns are matched by name"
NO_POSITIONS = "the input positions of that run were not recorded or are lost: those on the chain are used"


@dataclass(frozen=True)
class InputLink:
    """An input of a transaction: its position, and the columns that match its rows to output rows.

    If `by` is None, every row of the input matches every row of the output. With `through`, only some of the output
    columns in `by` exist: the others are columns of other inputs, whose matching rows have their values.
    """

    dataset_id: str
    alias: str
    position: int
    by: ColumnPairs | None
    block: str | None = None  # the head that was read, if known
    purged: int = 0  # the first record that was not purged at that time, if recorded
    through: tuple[int, ...] = ()  # the numbers of these other inputs
    joins: ColumnPairs = ()  # names in `by` of inputs that are looked up through this one, and its columns


@dataclass(frozen=True)
class Origin:
    """What made a transaction, and its inputs."""

    kind: MakerKind
    name: str | None
    version: str | None
    way: str
    run: str | None
    links: tuple[InputLink, ...]
    doubts: tuple[str, ...] = ()
    noted_version: str | None = None  # the version of a step including its declaration
    failed: str = ""  # the keys that failed in that run, packed
    primary: str | None = None  # the id of the step's first output, if this is not the first
    code: str = ""  # the source text of the function on the chain, empty if it was not available

    @property
    def is_traced(self) -> bool:
        """Whether columns do not tell which rows of its inputs a row came from: a view with joins, for example."""
        return self.kind == "view" and self.way in ("join", "changes")


def origin_of(output: OpenedDataset, transaction: Transaction) -> Origin:
    """The origin of a transaction that a step or a view made; without inputs for a write of a user."""
    event = transaction.event
    if not isinstance(event, ExecuteTransform):
        return _of_checkpoint(output, transaction, Origin("unknown", None, None, "", None, ()))
    transform = output.in_force(SetTransform, transaction.sequence_number)
    aliases = {} if transform is None else {item.dataset_ref: item.alias or "" for item in transform.inputs}
    links = tuple(
        InputLink(
            str(item.dataset_id),
            aliases.get(str(item.dataset_id), ""),
            NO_POSITION if item.last_offset is None else item.last_offset,
            None,
            None if item.last_block_hash is None else item.last_block_hash.text,
        )
        for item in event.query_inputs
    )
    function = None if transform is None else transform.transform.version
    doubts = ("how its rows match its inputs was not recorded",)
    code = "" if transform is None else transform.transform.query or ""
    unknown = Origin("unknown", None, function, "", None, links, doubts, code=code)
    return _of_checkpoint(output, transaction, unknown)


def _of_checkpoint(output: OpenedDataset, transaction: Transaction, known: Origin) -> Origin:
    checkpoint = transaction.event.new_checkpoint
    if checkpoint is None:
        return known
    objects = output.snapshot.objects
    made = RunProvenance.beside(objects, checkpoint.physical_hash)
    if made is not None:
        return _of_step(output, known, made.step, made.version, made.run, made)
    try:
        facts = notes.load_note(objects, checkpoint.physical_hash)
    except BadNote:
        return replace(known, doubts=(*known.doubts, "the note of that run is lost"))
    if facts.kind == KIND:
        return _of_step(output, known, facts.facts["name"], facts.facts["version"], None, None)
    if (note := facts.read_as(SecondaryNote)) is not None:
        return replace(_of_step(output, known, note.step, note.version, note.asked, note), primary=note.primary)
    if (table := facts.read_as(whole_inputs.DatatableNote)) is not None:
        links = tuple(_as_noted(link, table.positions, table.blocks) for link in known.links)
        return replace(known, kind="datatable", name=table.step, way="whole", run=table.run, links=links, doubts=())
    view = facts.read_as(snapshot.ViewNote)
    return known if view is None else _of_view(output, transaction, known, view)


def _of_step(
    output: OpenedDataset,
    known: Origin,
    step: str,
    version: str,
    run: str | None,
    noted: RunProvenance | SecondaryNote | None,
) -> Origin:
    keys = strategy_of(output.snapshot.state).lookup
    declared = StepDeclaration.named(output.snapshot.objects, version)
    if output.snapshot.state.dataset_kind is DatasetKind.ROOT and noted is not None:
        # A dataset that users write to, too: its blocks do not name inputs, and its chain does not name the function.
        links = tuple(InputLink(dataset_id, "", NO_POSITION, None) for dataset_id in noted.last_offsets or {})
        known = replace(known, links=links, version=version.rpartition("-")[0])
    read = {link.dataset_id: _with_position(link, noted) for link in known.links}
    if declared is None:
        links = tuple(replace(link, by=tuple((name, name) for name in keys)) for link in read.values())
    else:  # a dataset may be several inputs, but is only once on the chain
        links = tuple(_as_declared(read[one["dataset"]], one) for one in declared.inputs)
    way = "" if declared is None else declared.way
    doubts = (*([NO_DECLARATION] if declared is None else []), *([NO_POSITIONS] if noted is None else []))
    failed = "" if noted is None else noted.failed
    known = replace(known, kind="step", name=step, way=way, run=run, links=links, doubts=doubts)
    return replace(known, noted_version=version, failed=failed)


def _with_position(link: InputLink, noted: RunProvenance | SecondaryNote | None) -> InputLink:
    """The input at the position that the run recorded; if it recorded none, at the position on the chain."""
    at = link.dataset_id
    if isinstance(noted, RunProvenance):
        return replace(link, position=noted.last_offsets[at], block=noted.blocks[at], purged=noted.purged[at])
    if noted is not None and noted.last_offsets is not None:
        return _as_noted(link, noted.last_offsets, noted.blocks)
    return link


def _as_noted(link: InputLink, positions: Mapping[str, int], blocks: Mapping[str, str]) -> InputLink:
    """The input at a recorded position. The chain's positions name whole blocks, and they never move back."""
    position = positions.get(link.dataset_id, link.position)
    return replace(link, position=position, block=_block_text(blocks.get(link.dataset_id)))


def _block_text(digest: str | None) -> str | None:
    """A block as text, from the form in which positions store it."""
    return None if digest is None else Multihash(SHA3_256, bytes.fromhex(digest)).text


def _as_declared(link: InputLink, declared: Mapping[str, Any]) -> InputLink:
    joins, through = tuple(declared["joins"].items()), tuple(declared["through"])
    return replace(link, by=_pairs(declared["keys"]), joins=joins, through=through)


def _pairs(keys: Mapping[str, str]) -> ColumnPairs | None:
    """The pairs of transform keys and columns; None if an input has none, so that all its rows match."""
    return tuple(keys.items()) or None


def _of_view(output: OpenedDataset, transaction: Transaction, known: Origin, note: snapshot.ViewNote) -> Origin:
    view = view_at(output, transaction)
    if view is None:
        return replace(known, kind="view", doubts=("the view's definition of that time is not on its chain",))
    uses = {use.dataset_id: use for use in view.analysis.sources}
    links = tuple(
        replace(
            link,
            alias=uses[link.dataset_id].alias,
            position=note.positions[link.dataset_id],
            block=_block_text(note.blocks.get(link.dataset_id)),
            by=uses[link.dataset_id].keys or None,
            purged=note.purged.get(link.dataset_id, 0),
        )
        for link in known.links
    )
    return replace(known, kind="view", name=output.name, way=view.analysis.kind, run=note.run, links=links, doubts=())


def view_at(output: OpenedDataset, transaction: Transaction) -> StoredView | None:
    """The definition of a view that was in force at a transaction, with its analysis."""
    attachments = output.in_force(SetAttachments, transaction.sequence_number)
    return read_stored_view(ChainState(attachments=attachments, dataset_id=output.snapshot.state.dataset_id))


def list_column_pairs(output: OpenedDataset, dataset_id: str) -> set[ColumnPairs | None]:
    """All column pairs that ever matched rows of an input to an output; None means all to all. Reads no data."""
    if output.snapshot.state.dataset_kind is not DatasetKind.DERIVATIVE:
        every = [one for version in StepDeclaration.all_of(output.snapshot.objects) for one in version.inputs]
        return {_pairs(one["keys"]) for one in every if one["dataset"] == dataset_id}
    transforms = [e for e in output.definitions if isinstance(e, SetTransform)]
    if not any(item.dataset_ref == dataset_id for event in transforms for item in event.inputs):
        return set()
    views = [read_stored_view(ChainState(attachments=e)) for e in output.definitions if isinstance(e, SetAttachments)]
    uses = [use for view in views if view is not None for use in view.analysis.sources]
    if uses:
        return {use.keys or None for use in uses if use.dataset_id == dataset_id}
    declared = StepDeclaration.all_of(output.snapshot.objects)
    if declared:
        every = [one for version in declared for one in version.inputs]
        return {_pairs(one["keys"]) for one in every if one["dataset"] == dataset_id and not one["through"]}
    by_name: ColumnPairs = tuple((name, name) for name in strategy_of(output.snapshot.state).lookup)
    return {by_name, None}


def list_linked_inputs(output: OpenedDataset, dataset_id: str) -> Iterator[tuple[ColumnPairs, str, ColumnPairs]]:
    """How rows of an input matched an output through rows of other inputs.

    Each time: the pairs of a column of the other input and of this one, the other input's id, and its column pairs with
    the output.
    """
    for declared in StepDeclaration.all_of(output.snapshot.objects):
        for one in declared.inputs:
            for source in (declared.inputs[n] for n in one["through"] if one["dataset"] == dataset_id):
                known = {**source["keys"], **source["joins"]}
                pairs = tuple((known[name], column) for name, column in one["keys"].items())
                yield pairs, source["dataset"], tuple(source["keys"].items())


# Matching rows

_ANY = SearchLimits(1 << 62)


@dataclass(frozen=True)
class MatchingRows:
    """The rows of an input that match an output row: their number and their offsets."""

    rows: int
    offsets: I64  # empty if all rows of the input match
    missing: str | None = None  # why some rows may be missing


def find_matching_rows(given: OpenedDataset, link: InputLink, values: pa.Table) -> MatchingRows:
    """The rows of an input, as of the link's position, that match output rows with these values. Each row once."""
    input_snapshot = given.as_of(link.position)
    missing = explain_missing(given, link)
    carried = [c for c in given.snapshot.carried if c.before <= link.position + 1 <= c.start]
    if (input_snapshot.end <= input_snapshot.purged_before and not carried) or input_snapshot.layout is None:
        return MatchingRows(0, NO_OFFSETS, missing)
    if link.by is None:
        return MatchingRows(input_snapshot.live_rows, NO_OFFSETS, missing)
    if link.by and {column for _, column in link.by} == {input_snapshot.layout.vocab.offset}:
        offsets = _by_offset(input_snapshot, values.column(link.by[0][0]))
    else:
        names = [name for name, _ in link.by]
        keys = values.select(names)
        keys = keys.take(pa.array(row_hash.hash_rows(keys, names).first_positions()))
        offsets = find_rows(
            input_snapshot, lookup_shape(input_snapshot, link.by, keys.schema), 0, keys, [], _ANY
        ).offsets
        if carried:
            offsets = np.union1d(offsets, _among_carried(given, carried, link.by, keys))
    is_one = missing is not None and len(offsets) == values.num_rows and _is_key(input_snapshot, link.by)
    return MatchingRows(len(offsets), offsets, None if is_one else missing)


def _among_carried(given: OpenedDataset, carried: Sequence[CarriedRecords], by: ColumnPairs, keys: pa.Table) -> I64:
    """The offsets of current rows with these keys that purges carried."""
    now = given.as_of(given.snapshot.next_offset - 1)
    offsets = find_rows(now, lookup_shape(now, by, keys.schema), 0, keys, [], _ANY).offsets
    return offsets[np.any([(offsets >= c.start) & (offsets < c.end) for c in carried], axis=0)]


def find_retractions(given: OpenedDataset, link: InputLink, values: pa.Table, since: int) -> I64:
    """The offsets of retractions of matching rows after the record `since`, up to and including the link's position."""
    input_snapshot = given.as_of(link.position)
    if not link.by or input_snapshot.layout is None or input_snapshot.end <= since + 1:
        return NO_OFFSETS
    vocab = input_snapshot.layout.vocab
    columns = [column for _, column in link.by]
    if vocab.offset in columns:
        return NO_OFFSETS
    scan = input_snapshot.task_input.scan(
        input_snapshot.records(since + 1), list(dict.fromkeys([vocab.offset, vocab.op, *columns]))
    )
    records = scan.to_reader(pc.field(vocab.op).isin([RETRACT, CORRECT_FROM])).read_all()
    wanted, fits = cast_with_mask(
        [values.column(name) for name, _ in link.by], [input_snapshot.layout.data.field(column) for column in columns]
    )
    keys = pa.table(wanted, names=columns).filter(pa.array(fits))
    there = row_hash.hash_rows(records, columns).among(row_hash.hash_rows(keys, columns))
    offsets: I64 = np.sort(records.column(vocab.offset).to_numpy()[there])
    return offsets


def lookup_shape(input_snapshot: InputSnapshot, by: ColumnPairs, keys: pa.Schema) -> KeyShape:
    """The key shape for finding rows by these columns."""
    assert input_snapshot.layout is not None
    strategy = input_snapshot.strategy
    plain = pa.schema([pa.field(f.name, f.type) for f in keys])
    given = InputShape(
        input_snapshot.name,
        input_snapshot.dataset_id,
        dict(by),
        strategy.key,
        strategy.lookup,
        input_snapshot.layout.data,
        False,
        True,
    )
    return KeyShape(plain, (given,), "keyed")


def _by_offset(input_snapshot: InputSnapshot, column: pa.ChunkedArray) -> I64:
    offsets = np.unique(column.drop_null().to_numpy())
    offsets = offsets[(offsets >= input_snapshot.purged_before) & (offsets < input_snapshot.end)]
    kept = live_mask(offsets, input_snapshot.dead)
    return offsets if kept is None else offsets[kept]


def _is_key(input_snapshot: InputSnapshot, by: ColumnPairs) -> bool:
    return bool(input_snapshot.strategy.key) and {column for _, column in by} >= set(input_snapshot.strategy.key)


def explain_missing(given: OpenedDataset, link: InputLink) -> str | None:
    """Why rows of an input that existed then may be missing now; None when all are still readable."""
    input_snapshot = given.as_of(link.position)
    if was_replaced(given, link):
        return f"it was replaced by another copy of it, without the records up to {link.position} that were read"
    if link.position >= given.snapshot.next_offset:
        return f"it does not have record {link.position}: it is not the dataset that was read"
    if input_snapshot.purged_before > link.purged and link.position >= 0:
        return f"its records before offset {input_snapshot.purged_before} are purged: their rows can no longer be read"
    if given.snapshot.erasures and _were_erased(given, link):
        return f"some of its records up to offset {link.position} were erased"
    return None


def was_replaced(given: OpenedDataset, link: InputLink) -> bool:
    """Whether an input no longer has all records that were read."""
    return link.block is not None and not given.has_records_of(link.block)


def _were_erased(given: OpenedDataset, link: InputLink) -> bool:
    """Whether records up to the link's position were erased after they were read."""
    erased = given.snapshot.erased_records
    numbers = erased.filter(pc.less_equal(erased.column("offset"), link.position)).column("sequence_number")
    if len(numbers) == 0:
        return False
    return link.block is None or given.sequence_number_of(link.block) < pc.max(numbers).as_py()
