"""Keyed datasets the naive way: one list of records, replayed from the start for every question."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from floodmark.errors import BadPrimaryKey, DuplicateKeys

ADD, RETRACT, OLD, NEW = 0, 1, 2, 3

Row = dict[str, Any]
Key = tuple[Any, ...]
Record = tuple[int, Row]  # an operation and the values


@dataclass(frozen=True)
class Counts:
    """What a commit says of the rows it was given."""

    new: int = 0
    changed: int = 0
    retracted: int = 0
    unchanged: int = 0
    duplicates: int = 0
    unknown: int = 0

    @staticmethod
    def of(commit: Any) -> Counts:
        return Counts(*(getattr(commit, name) for name in Counts.__dataclass_fields__))


@dataclass(frozen=True)
class Outcome:
    """The records that a batch becomes, in their order, and its counts."""

    records: list[Record]
    counts: Counts


class Refused(Exception):
    """The batch contradicts itself or the dataset: nothing of it may be written."""

    def __init__(self, error: type[Exception], key: Key) -> None:
        super().__init__(f"{error.__name__} for {key}")
        self.error, self.key = error, key


@dataclass
class Naive:
    """A dataset under one merge strategy."""

    kind: str
    key: tuple[str, ...] = ()
    compare: tuple[str, ...] | None = None
    event_time: str | None = None
    records: list[Record] = field(default_factory=list)

    # What it holds

    def key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key)

    def current(self, end: int | None = None) -> list[tuple[int, Row]]:
        """The rows that are current after the first `end` records, with their offsets."""
        there: dict[Key, tuple[int, Row]] = {}
        for offset, (op, row) in enumerate(self.records[:end]):
            key = self.key_of(row) if self.key else (offset,)
            there.pop(key, None)
            if op in (ADD, NEW):
                there[key] = (offset, row)
        return sorted(there.values(), key=lambda found: found[0])

    def by_key(self) -> dict[Key, Row]:
        return {self.key_of(row): row for _, row in self.current()}

    def history(self, *keys: Key) -> list[tuple[int, int, Row]]:
        """(offset, op, row) of every record of these keys."""
        return [(offset, op, row) for offset, (op, row) in enumerate(self.records) if self.key_of(row) in keys]

    # What happens to it

    def write(self, rows: Sequence[Row]) -> Outcome:
        """Take in a batch; a row may carry its operation under `op`."""
        return self._keep(getattr(self, f"_{self.kind}")(rows))

    def delete(self, keys: Iterable[Key]) -> Outcome:
        there, records, unknown = self.by_key(), [], 0
        for key in sorted(set(keys)):
            if key in there:
                records.append((RETRACT, there[key]))
            else:
                unknown += 1
        return self._keep(Outcome(records, Counts(retracted=len(records), unknown=unknown)))

    def store_chunk(self, rows: Sequence[Row], processed: Sequence[Row] = ()) -> Outcome:
        """Upsert, and retract what `processed` (some columns of the key) covers and the rows lack."""
        given = {self.key_of(row) for row in rows}
        gone = [
            row
            for key, row in self.by_key().items()
            if key not in given and any(all(same(row[name], part[name]) for name in part) for part in processed)
        ]
        return self._keep(self._upsert([*rows, *({**row, "op": RETRACT} for row in gone)]))

    def _keep(self, outcome: Outcome) -> Outcome:
        self.records += outcome.records
        return outcome

    # The strategies

    def _append(self, rows: Sequence[Row]) -> Outcome:
        return Outcome([(ADD, row) for row in self._by_event_time(rows)], Counts(new=len(rows)))

    def _ledger(self, rows: Sequence[Row]) -> Outcome:
        self._refuse_duplicates(rows)
        seen = {self.key_of(row) for _, row in self.records}
        unseen = [row for row in rows if self.key_of(row) not in seen]
        records = [(ADD, row) for row in self._by_event_time(unseen)]
        return Outcome(records, Counts(new=len(records), unchanged=len(rows) - len(records)))

    def _snapshot(self, rows: Sequence[Row]) -> Outcome:
        self._refuse_duplicates(rows)
        there, batch = self.by_key(), {self.key_of(row): row for row in rows}
        return self._changes({key: (there.get(key), batch.get(key)) for key in there.keys() | batch.keys()})

    def _upsert(self, rows: Sequence[Row]) -> Outcome:
        there = self.by_key()
        heard = [row for row in rows if row.get("op", ADD) != OLD]
        last = {self.key_of(row): row for row in heard}
        wanted = {key: None if row.get("op", ADD) == RETRACT else plain(row) for key, row in last.items()}
        unknown = sum(new is None and key not in there for key, new in wanted.items())
        return self._changes(
            {key: (there.get(key), new) for key, new in wanted.items()},
            duplicates=len(heard) - len(last),
            unknown=unknown,
        )

    def _changes(self, pairs: dict[Key, tuple[Row | None, Row | None]], **counts: int) -> Outcome:
        """What turns old rows into new ones, ordered by key and operation."""
        records: list[Record] = []
        new = changed = retracted = unchanged = 0
        for _, (old, wanted) in sorted(pairs.items(), key=lambda pair: pair[0]):
            if old is None and wanted is not None:
                records.append((ADD, wanted))
                new += 1
            elif old is not None and wanted is None:
                records.append((RETRACT, old))
                retracted += 1
            elif old is not None and wanted is not None:
                if all(same(old.get(n), wanted.get(n)) for n in self.compare or {**old, **wanted}):
                    unchanged += 1
                else:
                    records += [(OLD, old), (NEW, wanted)]
                    changed += 1
        return Outcome(records, Counts(new, changed, retracted, unchanged, **counts))

    def _changelog(self, rows: Sequence[Row]) -> Outcome:
        there: dict[Key, Row | None] = dict(self.by_key())
        corrected: set[Key] = set()  # keys whose old row was withdrawn and whose new one must come next
        records: list[tuple[Key, Record]] = []
        for given in rows:
            key, op, row = self.key_of(given), given["op"], plain(given)
            old = there.get(key)
            if (op == NEW) != (key in corrected):
                raise Refused(BadPrimaryKey, key)
            if op == ADD and old is not None:
                raise Refused(BadPrimaryKey, key)
            if op in (RETRACT, OLD) and (old is None or not same(old, row)):
                raise Refused(BadPrimaryKey, key)
            corrected = corrected | {key} if op == OLD else corrected - {key}
            there[key] = row if op in (ADD, NEW) else None
            records.append((key, (op, row)))
        if corrected:
            raise Refused(BadPrimaryKey, min(corrected))
        ops = [op for _, (op, _) in records]
        counts = Counts(new=ops.count(ADD), changed=ops.count(NEW), retracted=ops.count(RETRACT))
        return Outcome([record for _, record in sorted(records, key=lambda pair: pair[0])], counts)

    def _by_event_time(self, rows: Sequence[Row]) -> list[Row]:
        return list(rows) if self.event_time is None else sorted(rows, key=lambda row: row[self.event_time])

    def _refuse_duplicates(self, rows: Sequence[Row]) -> None:
        keys = [self.key_of(row) for row in rows]
        for key in keys:
            if keys.count(key) > 1:
                raise Refused(DuplicateKeys, key)


def plain(row: Row) -> Row:
    """A row without its operation."""
    return {name: value for name, value in row.items() if name != "op"}


def same(one: Any, other: Any) -> bool:
    """Whether two values are no change: zero has no sign, one NaN is as good as another, null is only null."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(name), other.get(name)) for name in {**one, **other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return type(one) is type(other) and bool(one == other)


def exact(value: Any) -> Any:
    """A form in which two values are equal only if they read the same, sign of zero and all."""
    if isinstance(value, dict):
        return tuple((name, exact(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(map(exact, value))
    return repr(value) if isinstance(value, float) else value
