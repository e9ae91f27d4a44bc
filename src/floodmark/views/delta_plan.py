"""The changes of a query as plans: built once per definition, run at each refresh over the tables of that moment.

The changes of an operator are a list of terms. Each term starts from the changes of one table, or from the keys that a
stage has found, and reads other tables as they are now or as they were before. A table is read only for the rows that a
term needs, where columns show which these are: its `Read` names columns, and the read whose values they must have. Such
a read may return more rows than needed; the joins of the plan are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from floodmark.views.catalyst import Catalyst, OptimizedQuery, items
from floodmark.views.delta_rules import PASSED_OPERATORS
from floodmark.views.operator_columns import (
    KEPT,
    Equality,
    conjuncts,
    equality,
    expression_id,
    has_row_frame,
    is_restrictable,
    join_kind,
    limit_of,
    output_of,
    plain_column,
    table_columns,
    table_of,
    totals_of,
)
from floodmark.views.operator_state import COLUMN, KEY
from floodmark.views.plan_terms import (
    DeltaPlan,
    Limit,
    OperatorState,
    Read,
    Rows,
    Stage,
    StateStage,
    Term,
    Values,
    Version,
    find_best_limit,
    join_sources,
    key_column,
    key_limits,
    limits_within,
    passed_columns,
    rename_limits,
    rename_sources,
)
from floodmark.views.query_plan import PlanNode
from floodmark.views.state_plan import GroupPlan, OrderPlan, StatePlan, state_name


def build_delta_plan(catalyst: Catalyst, query: OptimizedQuery, can_keep: Callable[[str], bool]) -> DeltaPlan:
    """Build the plans of a query that has rules for all its operators.

    `can_keep` says whether the totals of an aggregate can be kept, by the name of its state.
    """
    return _Builder(catalyst, can_keep).build(_Operator.of(query.tree, query.plan))


@dataclass(eq=False)
class _Operator:
    """An operator of the query: its description, and the node in the JVM."""

    node: PlanNode
    plan: Any
    children: tuple[_Operator, ...]
    output: tuple[int, ...]
    attributes: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, node: PlanNode, plan: Any) -> _Operator:
        below = plan.children()
        children = tuple(cls.of(child, below.apply(i)) for i, child in enumerate(node.children))
        return cls(node, plan, children, output_of(node))

    def column(self, one: int) -> Any:
        """A column of the operator's rows."""
        if not self.attributes:
            self.attributes = dict(zip(self.output, items(self.plan.output()), strict=True))
        return self.attributes[one]

    @property
    def columns(self) -> list[Any]:
        return [self.column(one) for one in self.output]

    def all(self) -> Iterator[_Operator]:
        """This operator and all below it."""
        yield self
        for child in self.children:
            yield from child.all()

    @property
    def only(self) -> _Operator:
        [child] = self.children
        return child


@dataclass(frozen=True)
class _Pair:
    """An equality of a join, with the expressions of both sides."""

    equality: Equality
    left: Any
    right: Any


class _Builder:
    def __init__(self, catalyst: Catalyst, can_keep: Callable[[str], bool]) -> None:
        self._catalyst = catalyst
        self._can_keep = can_keep
        self._reads: dict[tuple[object, ...], Read] = {}
        self._stages: list[Stage | StateStage] = []
        self._numbers: dict[_Operator, int] = {}
        self._states: dict[_Operator, OperatorState | None] = {}
        self._staged: set[_Operator] = set()
        self._is_carrying = False  # whether plans of changes are built, not the plan of the whole query
        self._tables: list[str] = []
        self._leaf_columns: dict[int, list[Any]] = {}
        self._unused: frozenset[int] = frozenset()
        self._columns: dict[str, set[str]] = {}

    def build(self, root: _Operator) -> DeltaPlan:
        self._find_columns(root)
        self._number(root)
        rows = self._rows(root, "now", ())
        whole = replace(rows, plan=self._catalyst.project(root.columns, rows.plan))
        tables = tuple(self._tables)
        states = tuple(state for state in self._states.values() if state is not None)
        self._is_carrying = True
        terms = [replace(term, plan=self._ordered(root, term)) for term in self._changes(root)]
        columns = {table: tuple(sorted(names)) for table, names in self._columns.items()}
        return DeltaPlan(tuple(self._stages), tuple(terms), states, whole, tables, columns)

    def _find_columns(self, root: _Operator) -> None:
        """Find the columns of tables that the query uses."""
        used: set[int] = set(root.output)
        leaves = []
        for op in root.all():
            if op.children:
                used |= {expression_id(p) for p in op.node.own_expressions() if p.name == "AttributeReference"}
            else:
                leaves.append(op)
            if op.node.name == "Union":
                used |= {one for child in op.children for one in child.output}
        unused: set[int] = set()
        for leaf in leaves:
            if (table := table_of(leaf.node)) is not None:
                unused |= set(leaf.output) - used if set(leaf.output) & used else set(leaf.output[1:])
        self._unused = frozenset(unused)
        for leaf in leaves:
            if (table := table_of(leaf.node)) is not None:
                columns = table_columns(leaf.node)
                names = {str(columns[one]["name"]) for one in leaf.output if one not in unused}
                self._columns.setdefault(table, set()).update(names)

    def _number(self, op: _Operator) -> None:
        """Number the operators as the tree of their rules does, in which an order belongs to its limit."""
        self._numbers[op] = len(self._numbers)
        for child in op.children if limit_of(op.node) is None else (_kept_input(op),):
            self._number(child)

    def _columns_of(self, op: _Operator) -> list[Any]:
        """The columns of an operator that are used."""
        return [op.column(one) for one in op.output if one not in self._unused]

    def _ordered(self, op: _Operator, rows: Rows) -> Any:
        """The plan with the columns of an operator and the weight, in this order."""
        return self._catalyst.project([*self._columns_of(op), self._catalyst.weight], rows.plan)

    def _read(
        self,
        kind: Any,
        table: str | None,
        columns: tuple[str, ...] = (),
        among: Values | None = None,
        state: str | None = None,
    ) -> Read:
        identity = (kind, table, columns, among, state)
        if identity not in self._reads:
            self._reads[identity] = Read(f"floodmark_{kind}_{len(self._reads)}", kind, table, columns, among, state)
        return self._reads[identity]

    # Rows of an operator as of a version, where possible only those within limits

    def _rows(self, op: _Operator, version: Version, limits: Sequence[Limit]) -> Rows:
        if (state := self._state(op)) is not None:
            return self._state_rows(op, state, version, limits)
        match op.node.name:
            case "Project":
                return self._projected_rows(op, version, limits)
            case "Join":
                return self._joined_rows(op, version, limits)
            case "Aggregate":
                return self._grouped_rows(op, self._rows(op.only, version, self._group_limits(op, limits)))
            case "Window":
                return self._window_rows(op, self._rows(op.only, version, limits_within(limits, _partition(op))))
            case "Union":
                return self._union_rows(op, version, limits)
            case "Expand":
                return self._expanded_rows(op, version, limits)
            case name if name in PASSED_OPERATORS:
                return self._rows(op.only, version, limits)
            case _ if op.children:
                below = self._rows(op.only, version, limits_within(limits, op.only.output))
                return replace(below, plan=self._over(op, below.plan))
            case _:
                return self._leaf_rows(op, version, limits)

    def _state(self, op: _Operator) -> OperatorState | None:
        """The state that an operator keeps; None if it keeps none."""
        if op not in self._states:
            known = self._new_state(op)  # first those of the operators below
            self._states[op] = known
        return self._states[op]

    def _new_state(self, op: _Operator) -> OperatorState | None:
        if totals_of(op.node) is None and limit_of(op.node) is None:
            return None
        name = state_name(self._numbers[op], op.node)
        below = _kept_input(op)
        plan: StatePlan
        if op.node.name == "Aggregate":
            if not self._can_keep(name):
                return None
            plan = GroupPlan.of(self._catalyst, op.node, op.plan)
            rows = self._rows(below, "now", ())
            rows = replace(rows, plan=plan.totals(rows.plan))
        else:
            plan = OrderPlan.of(self._catalyst, op.node, op.plan, self._columns_of(below))
            rows = self._rows(below, "now", ())
            rows = replace(rows, plan=plan.first(rows.plan))
        added, removed = (Read(f"floodmark_{which}_{name}", "keys") for which in ("added", "removed"))
        return OperatorState(name, self._numbers[op], plan, rows, added, removed)

    def _state_rows(self, op: _Operator, state: OperatorState, version: Version, limits: Sequence[Limit]) -> Rows:
        if self._is_carrying:
            self._stage_state(op, state)
        limit = find_best_limit(limits, self._state_columns(op, state))
        return self._rows_of_state(op, state, self._read(version, None, *limit, state.name))

    def _rows_of_state(self, op: _Operator, state: OperatorState, read: Read) -> Rows:
        columns = self._state_columns(op, state) if read.is_small else {}
        sources = {one: Values(read, (name,)) for one, name in columns.items()}
        return Rows(state.plan.rows(self._catalyst.relation(read.name)), (read,), sources)

    def _state_columns(self, op: _Operator, state: OperatorState) -> dict[int, str]:
        """The columns of an operator that its state has, by id."""
        if isinstance(state.plan, GroupPlan):
            passed = passed_columns(op.node.expressions("aggregateExpressions"))
            names = {one: f"{KEY}{n}" for n, one in enumerate(state.plan.by)}
            return {above: names[one] for above, one in passed.items() if one in names}
        limit = limit_of(op.node)
        assert limit is not None
        below = _kept_input(op)
        used = [one for one in below.output if one not in self._unused]
        names = {one: f"{COLUMN}{n}" for n, one in enumerate(used)}
        for projection in limit.projections:
            passed = passed_columns(projection.expressions("projectList"))
            names = {above: names[one] for above, one in passed.items() if one in names}
        return names

    def _stage_state(self, op: _Operator, state: OperatorState) -> None:
        """Have the state changed before what reads it."""
        if op not in self._staged:
            self._staged.add(op)
            below = _kept_input(op)
            terms = [replace(term, plan=self._ordered(below, term)) for term in self._changes(below)]
            self._stages.append(StateStage(state, tuple(terms)))

    def _over(self, op: _Operator, *below: Any) -> Any:
        """The same operator over other inputs."""
        return op.plan.withNewChildren(self._catalyst.seq(below))

    def _leaf_rows(self, op: _Operator, version: Version, limits: Sequence[Limit]) -> Rows:
        table = table_of(op.node)
        if table is None:
            return Rows(op.plan, ())
        if version == "now" and not limits:
            self._tables.append(table)
        columns = {
            one: str(column["name"]) for one, column in table_columns(op.node).items() if is_restrictable(column)
        }
        return self._table_rows(op, self._read(version, table, *find_best_limit(limits, columns)))

    def _table_rows(self, op: _Operator, read: Read) -> Rows:
        sources = {}
        if read.is_small:
            columns = table_columns(op.node)
            sources = {
                one: Values(read, (str(column["name"]),))
                for one, column in columns.items()
                if is_restrictable(column) and one not in self._unused
            }
        return Rows(
            self._catalyst.project(self._columns_of_leaf(op), self._catalyst.relation(read.name)), (read,), sources
        )

    def _columns_of_leaf(self, op: _Operator) -> list[Any]:
        """The columns of a table by name, under the ids that the query has for them."""
        known = self._leaf_columns.get(id(op))
        if known is None:
            known = []
            for one, column in table_columns(op.node).items():
                if one in self._unused:
                    continue
                name = str(column["name"])
                quoted = "`" + name.replace("`", "``") + "`"
                known.append(self._catalyst.alias(self._catalyst.expression(quoted), name, op.column(one).exprId()))
            self._leaf_columns[id(op)] = known
        return known

    def _projected_rows(self, op: _Operator, version: Version, limits: Sequence[Limit]) -> Rows:
        passed = passed_columns(op.node.expressions("projectList"))
        below = self._rows(op.only, version, rename_limits(limits, passed))
        return Rows(self._over(op, below.plan), below.reads, rename_sources(below.sources, passed))

    def _group_limits(self, op: _Operator, limits: Sequence[Limit]) -> list[Limit]:
        by = {plain_column(item) for item in op.node.expressions("groupingExpressions")}
        passed = passed_columns(op.node.expressions("aggregateExpressions"))
        return rename_limits(limits, {above: below for above, below in passed.items() if below in by})

    def _grouped_rows(self, op: _Operator, below: Rows) -> Rows:
        passed = passed_columns(op.node.expressions("aggregateExpressions"))
        return Rows(self._over(op, below.plan), below.reads, rename_sources(below.sources, passed))

    def _window_rows(self, op: _Operator, below: Rows) -> Rows:
        """The window functions, with an order in which no two different rows are equal.

        Otherwise the rows that ORDER BY leaves open would come out one way now and another way later. The order of
        functions over ranges is not extended, because it defines the ranges.
        """
        functions = items(op.plan.windowExpressions())
        nodes = op.node.expressions("windowExpressions")
        order = items(op.plan.orderSpec())
        by_row = [f for f, node in zip(functions, nodes, strict=True) if all(map(has_row_frame, _windows(node)))]
        by_range = [f for f in functions if f not in by_row]
        plan = below.plan
        catalyst, partition = self._catalyst, op.plan.partitionSpec()
        if by_row:
            ordered = [*order, *(catalyst.ascending(column) for column in self._columns_of(op.only))]
            plan = catalyst.window(by_row, partition, catalyst.seq(ordered), plan, op.plan.hint())
        if by_range:
            plan = catalyst.window(by_range, partition, op.plan.orderSpec(), plan, op.plan.hint())
        return replace(below, plan=catalyst.project(self._columns_of(op), plan) if by_row and by_range else plan)

    def _union_rows(self, op: _Operator, version: Version, limits: Sequence[Limit]) -> Rows:
        parts = [self._rows(child, version, rename_limits(limits, _positions(op, child))) for child in op.children]
        reads = tuple(read for part in parts for read in part.reads)
        return Rows(self._over(op, *(part.plan for part in parts)), reads)

    def _expanded_rows(self, op: _Operator, version: Version, limits: Sequence[Limit]) -> Rows:
        passed = {one: one for one in _unchanged_by_expand(op)}
        below = self._rows(op.only, version, rename_limits(limits, passed))
        return Rows(self._over(op, below.plan), below.reads, rename_sources(below.sources, passed))

    def _joined_rows(self, op: _Operator, version: Version, limits: Sequence[Limit]) -> Rows:
        left, right = op.children
        how = join_kind(op.node)
        of_left, of_right = limits_within(limits, left.output), limits_within(limits, right.output)
        if how == "FullOuter":
            of_left, of_right = [], []
        right_first = how == "RightOuter" or (how in ("Inner", "Cross") and not of_left and bool(of_right))
        if right_first:
            second = self._rows(right, version, of_right)
            more = self._join_limits(op, second.sources, from_left=False)
            first = self._rows(left, version, [*(of_left if how != "RightOuter" else ()), *more])
        else:
            first = self._rows(left, version, of_left)
            more = [] if how == "FullOuter" else self._join_limits(op, first.sources, from_left=True)
            second = self._rows(right, version, [*(of_right if how in ("Inner", "Cross") else ()), *more])
        reads = (*second.reads, *first.reads) if right_first else (*first.reads, *second.reads)
        return Rows(self._over(op, first.plan, second.plan), reads, join_sources(how, first, second))

    def _join_limits(self, op: _Operator, sources: Mapping[int, Values], *, from_left: bool) -> list[Limit]:
        """Limits for one side of a join by the columns that are equal to columns of the other side."""
        by_read: dict[Read, tuple[list[int], list[str]]] = {}
        for pair in self._pairs(op):
            one = pair.equality
            known, other = (one.left, one.right) if from_left else (one.right, one.left)
            if known is not None and other is not None and known in sources:
                ids, names = by_read.setdefault(sources[known].read, ([], []))
                ids.append(other)
                names.extend(sources[known].columns)
        return [Limit(tuple(ids), Values(read, tuple(names))) for read, (ids, names) in by_read.items()]

    def _pairs(self, op: _Operator) -> list[_Pair]:
        left, right = (frozenset(child.output) for child in op.children)
        condition = op.node.expression("condition")
        if condition is None:
            return []
        found = []
        for node, expression in zip(
            conjuncts(condition), _conjuncts(condition, op.plan.condition().get()), strict=True
        ):
            if (known := equality(node, left, right)) is not None:
                one, is_same_order = known
                a, b = expression.left(), expression.right()
                found.append(_Pair(one, a, b) if is_same_order else _Pair(one, b, a))
        return found

    # Changes of an operator

    def _changes(self, op: _Operator) -> list[Term]:
        if (state := self._state(op)) is not None:
            self._stage_state(op, state)
            return [
                self._weighed(op, self._rows_of_state(op, state, read), weight, read)
                for read, weight in ((state.added, 1), (state.removed, -1))
            ]
        match op.node.name:
            case "Project":
                return [self._projected(op, term) for term in self._changes(op.only)]
            case "Join":
                return self._join_changes(op)
            case "Aggregate":
                by = items(op.plan.groupingExpressions())
                ids = [plain_column(item) for item in op.node.expressions("groupingExpressions")]
                return self._regrouped(op, by, ids)
            case "Window":
                by = items(op.plan.partitionSpec())
                ids = [plain_column(item) for item in op.node.expressions("partitionSpec")]
                return self._regrouped(op, by, ids)
            case "Union":
                return [self._renamed_part(op, child, term) for child in op.children for term in self._changes(child)]
            case "Expand":
                return [self._expanded(op, term) for term in self._changes(op.only)]
            case "Generate":  # it drops columns by their numbers, so the weight must come last
                below = self._changes(op.only)
                return [replace(term, plan=self._over(op, self._ordered(op.only, term))) for term in below]
            case name if name in PASSED_OPERATORS:
                return self._changes(op.only)
            case _ if op.children:
                return [replace(term, plan=self._over(op, term.plan)) for term in self._changes(op.only)]
            case _:
                return self._leaf_changes(op)

    def _leaf_changes(self, op: _Operator) -> list[Term]:
        table = table_of(op.node)
        if table is None:
            return []
        read = self._read("changes", table)
        rows = self._table_rows(op, read)
        columns = [*self._columns_of_leaf(op), self._catalyst.table_weight()]
        plan = self._catalyst.project(columns, self._catalyst.relation(read.name))
        return [Term(plan, rows.reads, rows.sources, seed=read)]

    def _projected(self, op: _Operator, term: Term) -> Term:
        plan = self._catalyst.project([*items(op.plan.projectList()), self._catalyst.weight], term.plan)
        return replace(
            term, plan=plan, sources=rename_sources(term.sources, passed_columns(op.node.expressions("projectList")))
        )

    def _renamed_part(self, op: _Operator, child: _Operator, term: Term) -> Term:
        """The changes of a part of a union, under the union's columns."""
        if child is op.children[0]:
            return replace(term, plan=self._ordered(child, term))
        catalyst = self._catalyst
        named = [
            catalyst.alias(child.column(own), op.column(one).name(), op.column(one).exprId())
            for one, own in zip(op.output, child.output, strict=True)
        ]
        sources = rename_sources(term.sources, _positions(op, child))
        return replace(term, plan=catalyst.project([*named, catalyst.weight], term.plan), sources=sources)

    def _expanded(self, op: _Operator, term: Term) -> Term:
        weight = self._catalyst.weight
        projections = [one.appended(weight) for one in items(op.plan.projections())]
        plan = self._catalyst.expand(projections, op.plan.output().appended(weight), term.plan)
        passed = {one: one for one in _unchanged_by_expand(op)}
        return replace(term, plan=plan, sources=rename_sources(term.sources, passed))

    def _join_changes(self, op: _Operator) -> list[Term]:
        left, right = op.children
        how = join_kind(op.node)
        if how in ("Inner", "Cross"):
            found = [self._joined(op, term, from_left=True, version="now") for term in self._changes(left)]
            return found + [self._joined(op, term, from_left=False, version="before") for term in self._changes(right)]
        if how == "FullOuter":
            return self._full_join_changes(op)
        is_left = how != "RightOuter"
        kept, other = (left, right) if is_left else (right, left)
        found = [self._joined(op, term, from_left=is_left, version="now") for term in self._changes(kept)]
        return found + self._partner_changes(op, kept, other, is_left=is_left)

    def _joined(self, op: _Operator, term: Term, *, from_left: bool, version: Version) -> Term:
        """The changes of one side with the rows of the other side."""
        limits = self._join_limits(op, term.sources, from_left=from_left)
        other = self._rows(op.children[1 if from_left else 0], version, limits)
        first, second = (term, other) if from_left else (other, term)
        sources = join_sources(join_kind(op.node), first, second)
        return Term(self._over(op, first.plan, second.plan), (*term.reads, *other.reads), sources, seed=term.seed)

    def _partner_changes(self, op: _Operator, kept: _Operator, other: _Operator, *, is_left: bool) -> list[Term]:
        """The changes of a join's kept rows whose partners changed: after minus before."""
        pairs = self._pairs(op)
        mine = [pair.left if is_left else pair.right for pair in pairs]
        theirs = [pair.right if is_left else pair.left for pair in pairs]
        my_ids = [pair.equality.left if is_left else pair.equality.right for pair in pairs]
        their_ids = [pair.equality.right if is_left else pair.equality.left for pair in pairs]
        keys = self._stage(op, [(term, theirs) for term in self._changes(other)])
        if keys is None:
            return []
        rows = self._restricted(kept, "before", keys, mine, my_ids)
        found = []
        for version, weight in _AFTER_BEFORE:
            limits = [*key_limits(keys, their_ids), *self._join_limits(op, rows.sources, from_left=is_left)]
            partners = self._rows(other, version, limits)
            first, second = (rows.plan, partners.plan) if is_left else (partners.plan, rows.plan)
            reads = (*rows.reads, *partners.reads)
            sources = rename_sources(rows.sources, {one: one for one in kept.output})
            found.append(self._weighed(op, Rows(self._over(op, first, second), reads, sources), weight, keys))
        return found

    def _full_join_changes(self, op: _Operator) -> list[Term]:
        left, right = op.children
        pairs = self._pairs(op)
        of_left, of_right = [pair.left for pair in pairs], [pair.right for pair in pairs]
        terms = [(term, of_left) for term in self._changes(left)] + [(term, of_right) for term in self._changes(right)]
        keys = self._stage(op, terms)
        if keys is None:
            return []
        found = []
        for version, weight in _AFTER_BEFORE:
            first = self._restricted(left, version, keys, of_left, [pair.equality.left for pair in pairs])
            second = self._restricted(right, version, keys, of_right, [pair.equality.right for pair in pairs])
            rows = Rows(self._over(op, first.plan, second.plan), (*first.reads, *second.reads))
            found.append(self._weighed(op, rows, weight, keys))
        return found

    def _regrouped(self, op: _Operator, by: Sequence[Any], ids: Sequence[int | None]) -> list[Term]:
        """The changes of groups or partitions: those that changed, after minus before."""
        keys = self._stage(op, [(term, by) for term in self._changes(op.only)])
        if keys is None:
            return []
        found = []
        for version, weight in _AFTER_BEFORE:
            below = self._restricted(op.only, version, keys, by, ids)
            rows = self._window_rows(op, below) if op.node.name == "Window" else self._grouped_rows(op, below)
            found.append(self._weighed(op, rows, weight, keys))
        return found

    def _restricted(
        self, op: _Operator, version: Version, keys: Read, by: Sequence[Any], ids: Sequence[int | None]
    ) -> Rows:
        """The rows whose expressions `by` have values among the keys; `ids` are their columns if they are plain."""
        rows = self._rows(op, version, key_limits(keys, ids))
        if not by:
            return replace(rows, reads=(keys, *rows.reads))
        catalyst = self._catalyst
        conditions = [catalyst.same(one, catalyst.expression(key_column(n))) for n, one in enumerate(by)]
        plan = catalyst.semi_join(rows.plan, catalyst.relation(keys.name), conditions)
        return replace(rows, plan=plan, reads=(keys, *rows.reads))

    def _stage(self, op: _Operator, terms: Iterable[tuple[Term, Sequence[Any]]]) -> Read | None:
        """The distinct values of expressions over changes; one row if there are no expressions."""
        catalyst = self._catalyst
        found = []
        for term, expressions in terms:
            named = list(enumerate(expressions)) or [(0, catalyst.expression("1"))]
            columns = [catalyst.alias(one, key_column(n), catalyst.new_id()) for n, one in named]
            found.append(replace(term, plan=catalyst.project(columns, term.plan)))
        if not found:
            return None
        keys = Read(f"floodmark_keys_{len(self._stages)}", "keys")
        self._stages.append(Stage(keys, tuple(found), self._numbers[op]))
        return keys

    def _weighed(self, op: _Operator, rows: Rows, weight: int, seed: Read) -> Term:
        plan = self._catalyst.project([*self._columns_of(op), self._catalyst.constant_weight(weight)], rows.plan)
        return Term(plan, rows.reads, rows.sources, seed=seed)


def _kept_input(op: _Operator) -> _Operator:
    """The operator from whose rows a state is computed."""
    below = op.only
    if op.node.name == "GlobalLimit":
        while below.node.name != "Sort":
            below = below.only
        return below.only
    return below


_AFTER_BEFORE: tuple[tuple[Version, int], ...] = (("now", 1), ("before", -1))


def _positions(op: _Operator, child: _Operator) -> dict[int, int]:
    return dict(zip(op.output, child.output, strict=True))


def _partition(op: _Operator) -> list[int]:
    return [one for item in op.node.expressions("partitionSpec") if (one := plain_column(item)) is not None]


def _unchanged_by_expand(op: _Operator) -> list[int]:
    """The columns that every projection of an Expand passes on unchanged."""
    return [op.output[at] for at in op.node[KEPT]]


def _windows(item: PlanNode) -> list[PlanNode]:
    return [part for part in item.all() if part.name == "WindowExpression"]


def _conjuncts(node: PlanNode, expression: Any) -> list[Any]:
    """The expressions of `conjuncts`, in the same order."""
    if node.name != "And":
        return [expression]
    left, right = node.children
    return _conjuncts(left, expression.left()) + _conjuncts(right, expression.right())
