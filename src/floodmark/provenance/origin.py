"""What a transaction of a derived dataset was made of: which inputs, as of which records, and how rows go together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from floodmark.chain.events import DatasetKind, ExecuteTransform, SetAttachments, SetTransform
from floodmark.chain.state import ChainState
from floodmark.derive import notes
from floodmark.derive.notes import BadNote
from floodmark.derive.positions import NOTHING
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.opened import Opened, Transaction
from floodmark.transform.made import Declared, Made
from floodmark.transform.meta.manifest import KIND
from floodmark.transform.output import Follows
from floodmark.transform.refresh import whole
from floodmark.transform.views import note as views
from floodmark.transform.views.defined.stored import Stored, stored

Kind = Literal["step", "view", "datatable", "unknown"]

Pairs = tuple[tuple[str, str], ...]
"""Columns of the output, and which column of the input each is."""

NOT_DECLARED = "which columns are the transform keys was not noted, or that note is gone: they go by name"
NOT_PINNED = "what the run had seen of its inputs was not noted, or that note is gone: as far as the chain says"


@dataclass(frozen=True)
class Link:
    """An input: as of which record it was read, and by which columns its rows belong to those of the output.

    Without columns every row of the input belongs to every row of the output.
    """

    dataset_id: str
    alias: str
    position: int
    by: Pairs | None
    block: str | None = None  # the head that was read, where that is known
    purged: int = 0  # the first record that was not purged by then, as far as that was noted


@dataclass(frozen=True)
class Origin:
    """Who made a transaction, and of what."""

    kind: Kind
    name: str | None
    version: str | None
    way: str
    run: str | None
    links: tuple[Link, ...]
    doubts: tuple[str, ...] = ()
    noted_version: str | None = None  # that of a step with all that is declared of it
    failed: str = ""  # the keys that failed then, packed
    primary: str | None = None  # the id of the step's first output, if this is another


def origin_of(output: Opened, transaction: Transaction) -> Origin:
    """What a transaction of a derived dataset was made of."""
    event = transaction.event
    assert isinstance(event, ExecuteTransform)
    transform = output.in_force(SetTransform, transaction.sequence_number)
    aliases = {} if transform is None else {item.dataset_ref: item.alias or "" for item in transform.inputs}
    links = tuple(
        Link(
            str(item.dataset_id),
            aliases.get(str(item.dataset_id), ""),
            NOTHING if item.last_offset is None else item.last_offset,
            None,
            None if item.last_block_hash is None else item.last_block_hash.text,
        )
        for item in event.query_inputs
    )
    function = None if transform is None else transform.transform.version
    unknown = Origin("unknown", None, function, "", None, links, ("nobody noted how its rows go with its inputs",))
    return _of_checkpoint(output, transaction, unknown)


def _of_checkpoint(output: Opened, transaction: Transaction, known: Origin) -> Origin:
    checkpoint = transaction.event.new_checkpoint
    if checkpoint is None:
        return known
    objects = output.snapshot.objects
    made = Made.beside(objects, checkpoint.physical_hash)
    if made is not None:
        return _of_step(output, known, made.step, made.version, made.run, made)
    try:
        facts = notes.read(objects, checkpoint.physical_hash)
    except BadNote:
        return replace(known, doubts=(*known.doubts, "what was noted of that run is gone"))
    if facts.kind == KIND:
        return _of_step(output, known, facts.facts["name"], facts.facts["version"], None, None)
    if (note := facts.read_as(Follows)) is not None:
        return replace(_of_step(output, known, note.step, note.version, note.asked, note), primary=note.primary)
    if (table := facts.read_as(whole.Note)) is not None:
        return replace(known, kind="datatable", name=table.step, way="whole", run=table.run, doubts=())
    view = facts.read_as(views.Note)
    return known if view is None else _of_view(output, transaction, known, view)


def _of_step(
    output: Opened, known: Origin, step: str, version: str, run: str | None, noted: Made | Follows | None
) -> Origin:
    keys = strategy_of(output.snapshot.state).lookup
    declared = Declared.named(output.snapshot.objects, version)
    links = tuple(
        replace(_pinned(link, noted), by=_pairs(declared, number, keys)) for number, link in enumerate(known.links)
    )
    way = "" if declared is None else declared.way
    doubts = (*([NOT_DECLARED] if declared is None else []), *([NOT_PINNED] if noted is None else []))
    failed = "" if noted is None else noted.failed
    known = replace(known, kind="step", name=step, way=way, run=run, links=links, doubts=doubts)
    return replace(known, noted_version=version, failed=failed)


def _pinned(link: Link, noted: Made | Follows | None) -> Link:
    """The input as of what the run could see of it; where nothing is noted, that is what the chain says."""
    at = link.dataset_id
    if isinstance(noted, Made):
        return replace(link, position=noted.pinned[at], block=noted.blocks[at], purged=noted.purged[at])
    if noted is not None and noted.pinned is not None:
        return replace(link, position=noted.pinned[at], block=None)
    return link


def _pairs(declared: Declared | None, number: int, keys: tuple[str, ...]) -> Pairs:
    if declared is None:
        return tuple((name, name) for name in keys)
    return tuple(declared.inputs[number]["keys"].items())


def _of_view(output: Opened, transaction: Transaction, known: Origin, note: views.Note) -> Origin:
    view = view_at(output, transaction)
    if view is None:
        return replace(known, kind="view", doubts=("its definition of that time is not on its chain",))
    uses = {use.dataset_id: use for use in view.analysis.sources}
    links = tuple(
        replace(
            link,
            alias=uses[link.dataset_id].alias,
            position=note.positions[link.dataset_id],
            by=uses[link.dataset_id].keys or None,
            purged=note.purged.get(link.dataset_id, 0),
        )
        for link in known.links
    )
    return replace(known, kind="view", name=output.name, way=view.analysis.kind, run=note.run, links=links, doubts=())


def view_at(output: Opened, transaction: Transaction) -> Stored | None:
    """The definition of a view that was in force at a transaction, and what it came to."""
    attachments = output.in_force(SetAttachments, transaction.sequence_number)
    return stored(ChainState(attachments=attachments, dataset_id=output.snapshot.state.dataset_id))


def ways_of(output: Opened, dataset_id: str) -> set[Pairs | None]:
    """By which columns rows of an input have ever belonged to those of an output; None: all to all. Reads no data."""
    if output.snapshot.state.dataset_kind is not DatasetKind.DERIVATIVE:
        return set()
    transforms = [e for e in output.definitions if isinstance(e, SetTransform)]
    if not any(item.dataset_ref == dataset_id for event in transforms for item in event.inputs):
        return set()
    views = [stored(ChainState(attachments=e)) for e in output.definitions if isinstance(e, SetAttachments)]
    uses = [use for view in views if view is not None for use in view.analysis.sources]
    if uses:
        return {use.keys or None for use in uses if use.dataset_id == dataset_id}
    declared = Declared.all_of(output.snapshot.objects)
    if declared:
        every = [one for version in declared for one in version.inputs]
        return {tuple(one["keys"].items()) for one in every if one["dataset"] == dataset_id}
    by_name: Pairs = tuple((name, name) for name in strategy_of(output.snapshot.state).lookup)
    return {by_name, None}
