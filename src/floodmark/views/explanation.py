"""`Explanation`: a view's query as a tree, how each operator is maintained, and what the last refresh did there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.views.delta_rules import OperatorRule

if TYPE_CHECKING:
    from floodmark.views.analysis import Analysis, RefreshKind
    from floodmark.views.snapshot import ViewNote


@dataclass(frozen=True)
class TableRead:
    """Rows of a table that a refresh read: its changes, the rows with some values in the columns `by`, or all rows.

    `version` is `changes`, `now` for the rows as they are, or `before` for those that the last refresh had seen.
    """

    table: str
    version: str
    rows: int
    by: tuple[str, ...] | None = None

    def __str__(self) -> str:
        rows = _count(self.rows, "row")
        if self.version == "changes":
            return _count(self.rows, "change")
        text = f"all {rows}" if self.by is None else f"{rows} by {', '.join(self.by)}"
        return f"{text} as before" if self.version == "before" else text

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableRead:
        by = document["by"]
        return cls(document["table"], document["version"], document["rows"], None if by is None else tuple(by))


@dataclass(frozen=True)
class KeptState:
    """The state that is kept for an operator."""

    rows: int
    bytes: int

    def __str__(self) -> str:
        return f"{_count(self.rows, 'row')}, {self.bytes:,} bytes"


@dataclass(frozen=True)
class RefreshWork:
    """What a refresh did: why it computed everything, if it did, what it read, and the keys that changed by operator.

    Operators are numbered from the top of the query, each before those below it.
    """

    whole: str | None = None
    reads: tuple[TableRead, ...] = ()
    keys: Mapping[int, int] = field(default_factory=dict)
    states: Mapping[int, KeptState] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form that is stored in the note of the refresh."""
        states = {str(operator): asdict(state) for operator, state in self.states.items()}
        keys = {str(operator): keys for operator, keys in self.keys.items()}
        return {"whole": self.whole, "reads": [asdict(read) for read in self.reads], "keys": keys, "states": states}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RefreshWork:
        """Read what `to_json` wrote."""
        reads = tuple(map(TableRead.from_json, document["reads"]))
        keys = {int(operator): int(keys) for operator, keys in document["keys"].items()}
        states = {int(operator): KeptState(**state) for operator, state in document["states"].items()}
        return cls(document["whole"], reads, keys, states)


@dataclass(frozen=True)
class ExplainedOperator:
    """An operator of a query, how it is maintained, and what the last refresh read and computed there.

    If `why` is not None, changes cannot be carried through it, for this reason. `keys` counts the join keys, groups or
    partitions that had changed.
    """

    operator: str
    detail: str
    rule: str
    why: str | None
    state: KeptState | None = None
    keys: int | None = None
    reads: tuple[TableRead, ...] = ()
    children: tuple[ExplainedOperator, ...] = ()

    @property
    def title(self) -> str:
        """The operator and what it works on."""
        return f"{self.operator} {self.detail}" if self.detail else self.operator

    def lines(self) -> Iterator[str]:
        """The tree as text, with a line for each operator, and one for what the last refresh did there."""
        said = f"whole, because {self.why}" if self.why is not None else self.rule
        yield f"{self.title}: {said}" if said else self.title
        facts = list(self._facts())
        if facts:
            yield f"{'│  ' if self.children else '   '}{'; '.join(facts)}"
        for number, child in enumerate(self.children):
            is_last = number == len(self.children) - 1
            first, *rest = child.lines()
            yield f"{'└─ ' if is_last else '├─ '}{first}"
            yield from (f"{'   ' if is_last else '│  '}{line}" for line in rest)

    def _facts(self) -> Iterator[str]:
        if self.state is not None:
            yield f"keeps {self.state}"
        if self.keys is not None:
            yield f"last refresh: {_count(self.keys, 'key')}"
        if self.reads:
            yield f"last refresh read {', '.join(map(str, self.reads))}"


@dataclass(frozen=True)
class Explanation:
    """How a view is maintained. `print` it, or use its parts.

    `last_whole` is the reason why the last refresh computed everything; None if it did not, or if there was none.
    """

    view: str
    kind: RefreshKind
    why: str | None
    last_whole: str | None
    tree: ExplainedOperator

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The text, line by line."""
        yield from self.tree.lines()
        if self.last_whole is not None:
            yield f"the last refresh computed everything, because {self.last_whole}"

    def to_json(self) -> dict[str, Any]:
        """The tree as dicts and lists."""
        return asdict(self)


def work_of(note: ViewNote | None) -> RefreshWork:
    """What the last refresh did, from its note."""
    return RefreshWork() if note is None or note.work is None else RefreshWork.from_json(note.work)


def explain(view: str, analysis: Analysis, note: ViewNote | None) -> Explanation:
    """Explain a view by its analysis and the note of its last refresh."""
    work = work_of(note)
    rules = analysis.rules or _rules_without_operators(analysis)
    tree, _ = _explained(rules, 0, work, set())
    return Explanation(view, analysis.kind, analysis.why, work.whole, tree)


_UNITS = {
    "rows": "the records that changed",
    "groups": "the groups ({by}) that changed, from all their rows",
    "join": "the join keys ({by}) that changed, from all their rows",
}


def _rules_without_operators(analysis: Analysis) -> OperatorRule:
    """The tree of a query that is run over some rows of its tables, or as a whole."""
    rule = _UNITS.get(analysis.kind, "").format(by=", ".join(analysis.t))
    tables = tuple(OperatorRule("Table", use.alias, "") for use in analysis.sources)
    return OperatorRule("Query", "", rule, analysis.why, tables)


def _explained(rule: OperatorRule, number: int, work: RefreshWork, shown: set[str]) -> tuple[ExplainedOperator, int]:
    """An operator with this number, and the number after those below it. Each table shows its reads once."""
    children = []
    following = number + 1
    for child in rule.children:
        one, following = _explained(child, following, work, shown)
        children.append(one)
    reads: Sequence[TableRead] = ()
    if rule.operator == "Table" and rule.detail not in shown:
        shown.add(rule.detail)
        reads = [read for read in work.reads if read.table == rule.detail]
    return (
        ExplainedOperator(
            rule.operator,
            rule.detail,
            rule.rule,
            rule.why,
            work.states.get(number),
            work.keys.get(number),
            tuple(reads),
            tuple(children),
        ),
        following,
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
