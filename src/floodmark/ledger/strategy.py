"""The merge strategy of a dataset: kind, key, compared columns and lookup prefix, and the notes on the chain."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import pyarrow as pa

from floodmark.chain.events import AttachmentEmbedded, AttachmentsEmbedded, DatasetKind, SetAttachments
from floodmark.chain.source_steps import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from floodmark.chain.state import ChainState
from floodmark.errors import BadMeta, BadPrimaryKey, close_matches
from floodmark.storage.facts import parse_json

MergeKind = Literal["append", "ledger", "snapshot", "changelog", "upsert"]
MERGE_KINDS: tuple[MergeKind, ...] = get_args(MergeKind)

_ATTACHMENT = "floodmark.json"
VIEW_NOTE = "view"
"""The entry of our attachment that contains the definition of a view."""


@dataclass(frozen=True)
class Strategy:
    """A merge strategy and its columns; only append has no key."""

    kind: MergeKind
    key: tuple[str, ...] = ()
    compare: tuple[str, ...] | None = None  # the columns that a snapshot compares; None is all of them
    lookup: tuple[str, ...] = ()  # a prefix of the key; by default the whole key

    def __str__(self) -> str:
        if not self.key:
            return "merge append"
        compared = f", comparing {', '.join(self.compare)}" if self.compare is not None else ""
        lookup = f", looked up by {', '.join(self.lookup)}" if self.lookup != self.key else ""
        return f"merge {self.kind} by {', '.join(self.key)}{compared}{lookup}"

    @property
    def is_keyed(self) -> bool:
        return bool(self.key)

    @property
    def takes_op(self) -> bool:
        """Whether batches have a column with the operation of each row."""
        return self.kind == "changelog"

    def check_compared(self, columns: Sequence[str]) -> None:
        """Refuse to compare columns that the dataset does not have."""
        for name in self.compare or ():
            if name not in columns:
                near = close_matches(name, columns)
                hint = f"did you mean {near[0]!r}?" if near else f"the data has {', '.join(columns)}"
                raise BadPrimaryKey(f"the column {name!r} to compare is not in the data", hint=hint, column=name)


APPEND = Strategy("append")


def declare(
    merge: str | None,
    key: Sequence[str] | str | None,
    compare: Sequence[str] | str | None,
    lookup: Sequence[str] | str | None,
) -> Strategy:
    """The strategy for a user's options. Raises `BadPrimaryKey` if the options do not fit together."""
    columns = () if key is None else _columns("key", key)
    kind = merge if merge is not None else "upsert" if columns else "append"
    if kind not in MERGE_KINDS:
        raise BadPrimaryKey(f"there is no merge strategy {merge!r}", hint=f"choose one of {', '.join(MERGE_KINDS)}")
    if kind == "append" and columns:
        raise BadPrimaryKey(
            "an append dataset has no key", hint=f"leave out key=, or choose merge= from {', '.join(MERGE_KINDS[1:])}"
        )
    if kind != "append" and not columns:
        raise BadPrimaryKey(f"merge={kind!r} needs a key", hint="name the columns that identify a row: key=['id']")
    if len(set(columns)) < len(columns) or not all(isinstance(c, str) and c for c in columns):
        raise BadPrimaryKey(f"the key {list(columns)} names a column twice or not at all", hint="name each column once")
    if compare is not None and kind != "snapshot":
        raise BadPrimaryKey(f"merge={kind!r} takes no compare=", hint="only snapshots compare chosen columns")
    prefix = columns if lookup is None else _columns("lookup", lookup)
    if columns and (not prefix or columns[: len(prefix)] != prefix):
        raise BadPrimaryKey(
            f"lookup={list(prefix)} is not a prefix of the key {list(columns)}", hint="name its first columns"
        )
    if not columns and lookup is not None:
        raise BadPrimaryKey("an append dataset has no lookup key", hint="leave out lookup=")
    return Strategy(kind, columns, None if compare is None else _columns("compare", compare), prefix)


def _columns(what: str, given: Sequence[str] | str) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    try:
        return tuple(given)
    except TypeError as error:
        message = f"{what}={given!r} is neither a column name nor a list of column names"
        raise BadPrimaryKey(message, hint=f"give {what}='id' or {what}=['shop', 'id']") from error


def to_merge(strategy: Strategy) -> MergeStrategy:
    """The strategy in the form of the chain."""
    key = strategy.key
    match strategy.kind:
        case "append":
            return MergeStrategyAppend()
        case "ledger":
            return MergeStrategyLedger(key)
        case "snapshot":
            return MergeStrategySnapshot(key, strategy.compare)
        case "changelog":
            return MergeStrategyChangelogStream(key)
        case "upsert":
            return MergeStrategyUpsertStream(key)


def to_attachments(strategy: Strategy, notes: Mapping[str, Any] = MappingProxyType({})) -> SetAttachments | None:
    """The attachment that stores a declared lookup prefix on the chain; None if there is nothing to store.

    `notes` are further entries, which `read_note` reads.
    """
    lookup = {} if strategy.lookup == strategy.key else {"lookup": list(strategy.lookup)}
    note = {**notes, **lookup}
    return _attached(note) if note else None


def to_derived_attachments(
    strategy: Strategy, notes: Mapping[str, Any] = MappingProxyType({}), present: SetAttachments | None = None
) -> SetAttachments:
    """The attachment that stores the key of a derivative on the chain, because a derivative has no source event.

    `notes` are further entries, which `read_note` reads. Attachments of other tools in `present` are kept.
    """
    return _attached({**notes, "key": list(strategy.key), "lookup": list(strategy.lookup)}, present)


def _attached(note: Mapping[str, Any], present: SetAttachments | None = None) -> SetAttachments:
    own = AttachmentEmbedded(_ATTACHMENT, json.dumps(note))
    others = () if present is None else (item for item in _embedded(present) if item.path != _ATTACHMENT)
    return SetAttachments(AttachmentsEmbedded((*others, own)))


def strategy_of(state: ChainState) -> Strategy:
    """The strategy of the dataset with this chain."""
    if state.dataset_kind is DatasetKind.DERIVATIVE:
        key = _noted(state, "key")
        return Strategy("upsert", key, None, _lookup(state, key)) if key else APPEND
    source = state.push_source or state.polling_source  # our datasets have a push source; other tools also poll
    merge = source.merge if source is not None else MergeStrategyAppend()
    match merge:
        case MergeStrategyLedger(key):
            return Strategy("ledger", key, None, _lookup(state, key))
        case MergeStrategySnapshot(key, compare):
            return Strategy("snapshot", key, compare, _lookup(state, key))
        case MergeStrategyChangelogStream(key):
            return Strategy("changelog", key, None, _lookup(state, key))
        case MergeStrategyUpsertStream(key):
            return Strategy("upsert", key, None, _lookup(state, key))
        case _:
            return APPEND


def _lookup(state: ChainState, key: tuple[str, ...]) -> tuple[str, ...]:
    """The declared prefix; the key if there is none. Another tool may have stored anything, so it is checked."""
    prefix = _noted(state, "lookup")
    return prefix if prefix and key[: len(prefix)] == prefix else key


def _noted(state: ChainState, what: str) -> tuple[str, ...]:
    """The columns in an entry of our attachment; empty without that entry."""
    columns = read_note(state, what)
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        return ()
    return tuple(columns)


def read_note(state: ChainState, what: str) -> Any:
    """An entry of our attachment as parsed JSON; None without that entry."""
    for item in () if state.attachments is None else _embedded(state.attachments):
        if item.path == _ATTACHMENT:
            try:
                note = parse_json(item.content)
            except ValueError:
                return None
            return note.get(what) if isinstance(note, dict) else None
    return None


def view_note(state: ChainState) -> Any:
    """The chain's note about a view, as parsed JSON; None for a dataset that is not a view."""
    return read_note(state, VIEW_NOTE)


def is_view(state: ChainState) -> bool:
    """Whether the dataset with this chain is a view."""
    return view_note(state) is not None


def view_columns(state: ChainState) -> pa.Schema | None:
    """The columns of a view that users see, from its definition; None for a dataset that is not a view."""
    note = view_note(state)
    if note is None:
        return None
    try:
        return schema_from_text(note["analysis"]["columns"])
    except (KeyError, TypeError, ValueError, OSError) as error:  # Arrow raises OSError for a damaged schema
        raise unreadable_view(state, error) from error


def unreadable_view(state: ChainState, error: Exception) -> BadMeta:
    """The error for a chain whose note about a view cannot be read."""
    return BadMeta(
        f"the definition of the view on chain {state.dataset_id} cannot be read: {error!r}",
        hint="upgrade floodmark (another release may have written it), or drop the view and declare it again",
        file=str(state.head_hash),
        dataset=str(state.dataset_id),
    )


def schema_to_text(schema: pa.Schema) -> str:
    """A schema as text for JSON."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """The schema that `schema_to_text` encoded."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def _embedded(event: SetAttachments) -> tuple[AttachmentEmbedded, ...]:
    attached = event.attachments
    return tuple(attached.items) if isinstance(attached, AttachmentsEmbedded) else ()
