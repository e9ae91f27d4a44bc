"""How a dataset takes in a batch: its merge strategy, its key, and the prefix by which rows are looked up."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from floodmark.chain.events import AttachmentEmbedded, AttachmentsEmbedded, DatasetKind, SetAttachments
from floodmark.chain.sources import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from floodmark.chain.state import ChainState
from floodmark.ledger.errors import BadPrimaryKey

Kind = Literal["append", "ledger", "snapshot", "changelog", "upsert"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_ATTACHMENT = "floodmark.json"


@dataclass(frozen=True)
class Strategy:
    """A merge strategy and its columns; only append has no key."""

    kind: Kind
    key: tuple[str, ...] = ()
    compare: tuple[str, ...] | None = None  # the columns whose change counts (snapshot); None is all of them
    lookup: tuple[str, ...] = ()  # a prefix of the key; the whole key unless declared

    def __str__(self) -> str:
        if not self.key:
            return "merge append"
        compared = f", comparing {', '.join(self.compare)}" if self.compare is not None else ""
        found = f", looked up by {', '.join(self.lookup)}" if self.lookup != self.key else ""
        return f"merge {self.kind} by {', '.join(self.key)}{compared}{found}"

    @property
    def is_keyed(self) -> bool:
        return bool(self.key)

    @property
    def takes_op(self) -> bool:
        """Whether batches may carry a column that says what to do with each row."""
        return self.kind in ("upsert", "changelog")

    def check_compared(self, columns: Sequence[str]) -> None:
        """Refuse to compare columns that the dataset does not have."""
        for name in self.compare or ():
            if name not in columns:
                near = difflib.get_close_matches(name, columns, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"the data has {', '.join(columns)}"
                raise BadPrimaryKey(f"the column {name!r} to compare is not in the data", hint=hint, column=name)


APPEND = Strategy("append")


def declare(
    merge: str | None,
    key: Sequence[str] | str | None,
    compare: Sequence[str] | str | None,
    lookup: Sequence[str] | str | None,
) -> Strategy:
    """The strategy a user asks for; `BadPrimaryKey` when the parts do not go together."""
    columns = () if key is None else _columns("key", key)
    kind = merge if merge is not None else "upsert" if columns else "append"
    if kind not in KINDS:
        raise BadPrimaryKey(f"there is no merge strategy {merge!r}", hint=f"choose one of {', '.join(KINDS)}")
    if kind == "append" and columns:
        raise BadPrimaryKey(
            "an append dataset has no key", hint=f"leave out key=, or choose merge= from {', '.join(KINDS[1:])}"
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
            f"lookup={list(prefix)} is no prefix of the key {list(columns)}", hint="name its first columns"
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
        said = f"{what}={given!r} is neither the name of a column nor a list of them"
        raise BadPrimaryKey(said, hint=f"{what}='id', or {what}=['shop', 'id']") from error


def to_merge(strategy: Strategy) -> MergeStrategy:
    """The strategy as the chain writes it."""
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
    """The note that keeps a declared lookup prefix on the chain; None when there is nothing to keep.

    `notes` are further entries, which `noted` reads.
    """
    lookup = {} if strategy.lookup == strategy.key else {"lookup": list(strategy.lookup)}
    note = {**notes, **lookup}
    return _attached(note) if note else None


def to_derived_attachments(
    strategy: Strategy, notes: Mapping[str, Any] = MappingProxyType({}), present: SetAttachments | None = None
) -> SetAttachments:
    """The note that keeps the key of a derivative on the chain: it has no source that could say it.

    `notes` are further entries, which `noted` reads. Of the attachments that are present, others' are kept.
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
    source = state.push_source or state.polling_source  # ours is pushed to; other tools' may be polled
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
    """The declared prefix; whatever is not one is somebody else's attachment."""
    prefix = _noted(state, "lookup")
    return prefix if prefix and key[: len(prefix)] == prefix else key


def _noted(state: ChainState, what: str) -> tuple[str, ...]:
    """The columns that our attachment names; none where there is no such thing."""
    found = noted(state, what)
    return tuple(found) if isinstance(found, list) else ()


def noted(state: ChainState, what: str) -> Any:
    """An entry of our attachment, as JSON has it; None where there is no such thing."""
    for item in () if state.attachments is None else _embedded(state.attachments):
        if item.path == _ATTACHMENT:
            try:
                note = json.loads(item.content)
            except ValueError:
                return None
            return note.get(what) if isinstance(note, dict) else None
    return None


def _embedded(event: SetAttachments) -> tuple[AttachmentEmbedded, ...]:
    attached = event.attachments
    return tuple(attached.items) if isinstance(attached, AttachmentsEmbedded) else ()
