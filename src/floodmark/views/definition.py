"""`ViewDefinition`: a view's declaration, checked as far as possible without Spark, and its version."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import pyarrow as pa

from floodmark.columns.catalog import FunctionRef
from floodmark.errors import BadColumnName, BadFunction, BadView, LedgerError
from floodmark.functions.udf import Udf, find_udf
from floodmark.ledger.schema import check_column_name, check_distinct, quote_name
from floodmark.storage.parquet import Vocabulary
from floodmark.views import spark_sql
from floodmark.views.analysis import OFFSET_COLUMN, RESERVED_PREFIX

RefreshPolicy = Literal["incremental"]
"""`incremental`: refuse a query that cannot be maintained in parts."""

_FORMS = "give sql='select …', or source= with select= and where="


@dataclass(frozen=True)
class UdfColumn:
    """A column of a view that a function computes from columns of its input."""

    name: str
    function: FunctionRef
    inputs: tuple[str, ...]
    type: pa.DataType
    nullable: bool

    @property
    def field(self) -> pa.Field:
        """The column's field in the view."""
        return pa.field(self.name, self.type, self.nullable)

    @property
    def call(self) -> str:
        """The function call as SQL text."""
        return f"{quote_name(self.function.name)}({', '.join(map(quote_name, self.inputs))})"


@dataclass(frozen=True)
class ViewDefinition:
    """A view's declaration: a SQL query, or a source with selected columns and a condition for its rows."""

    sql: str | None = None
    source: str | None = None
    select: tuple[tuple[str, str | UdfColumn], ...] = ()
    """The columns of a source in the user's order; empty means all."""
    where: str | None = None
    refresh: RefreshPolicy | None = None
    description: str | None = None

    @property
    def udfs(self) -> tuple[UdfColumn, ...]:
        """The columns that functions compute."""
        return tuple(column for _, column in self.select if isinstance(column, UdfColumn))

    @property
    def expressions(self) -> tuple[tuple[str, str], ...]:
        """The SQL texts in select= and where=, each with a description."""
        chosen = [(f"column {name!r}", text) for name, text in self.select if isinstance(text, str)]
        return (*chosen, *([] if self.where is None else [("where", self.where)]))

    @cached_property
    def version(self) -> str:
        """A text that changes with the query and with the versions of its functions."""
        parts = [self.sql, self.source, [_identity(name, what) for name, what in self.select], self.where]
        return "view-" + hashlib.sha3_256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def query(self) -> str:
        """The query without the columns of functions: the given SQL, or one built from select= and where=."""
        if self.sql is not None:
            return self.sql
        has_plain = not self.select or len(self.udfs) < len(self.select)
        return self.compose(() if has_plain else (OFFSET_COLUMN,))

    def compose(self, extra: Sequence[str]) -> str:
        """The query built from select= and where=, without the columns of functions, plus `extra` columns."""
        plain = [(name, text) for name, text in self.select if isinstance(text, str)]
        return self._composed([*_items(plain), *map(quote_name, extra)])

    @property
    def shown_query(self) -> str:
        """The query including function calls, for display."""
        if self.sql is not None:
            return self.sql
        return self._composed(_items([(n, w.call if isinstance(w, UdfColumn) else w) for n, w in self.select]))

    def _composed(self, items: Iterable[str]) -> str:
        assert self.source is not None
        chosen = ", ".join(([] if self.select else ["*"]) + list(items))
        kept = "" if self.where is None else f" where ({_close_comment(self.where)})"
        # With an alias, because Spark reads `from t where (flag)` as the alias `where` with the column `flag`.
        name = quote_name(self.source)
        return f"select {chosen} from {name} as {name}{kept}" if kept else f"select {chosen} from {name}"

    def to_json(self) -> dict[str, Any]:
        """The form that is stored on the chain."""
        return {
            "sql": self.sql,
            "source": self.source,
            "select": [[name, what if isinstance(what, str) else _udf_to_json(what)] for name, what in self.select],
            "where": self.where,
            "refresh": self.refresh,
            "description": self.description,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ViewDefinition:
        select = tuple((name, w if isinstance(w, str) else _udf_from_json(name, w)) for name, w in document["select"])
        policy, description = document["refresh"], document["description"]
        return cls(document["sql"], document["source"], select, document["where"], policy, description)


def define(
    view: str,
    *,
    sql: Any = None,
    source: Any = None,
    select: Any = None,
    where: Any = None,
    refresh: Any = None,
    description: Any = None,
) -> ViewDefinition:
    """Check the arguments of `Lake.view` and build a definition; `BadView` if they are missing or invalid."""
    try:
        if refresh is not None and refresh not in get_args(RefreshPolicy):
            raise BadView(
                f"refresh={_shortly(refresh)} is not known", hint='give refresh="incremental", or leave it out'
            )
        if description is not None and not isinstance(description, str):
            raise BadView(f"description={_shortly(description)} is not text", hint="give text, or leave it out")
        return replace(_defined(sql, source, select, where), refresh=refresh, description=description or None)
    except BadView as error:
        raise BadView(f"view {view!r}: {error.message}", hint=error.hint, view=view) from error.__cause__


def _defined(sql: Any, source: Any, select: Any, where: Any) -> ViewDefinition:
    if sql is not None and any(given is not None for given in (source, select, where)):
        raise BadView("a view is declared by sql=, or by source= with select= and where=, not by both", hint=_FORMS)
    if sql is not None:
        return ViewDefinition(sql=_statement(sql))
    if source is None:
        raise BadView("the view has neither sql= nor source=", hint=_FORMS)
    if not isinstance(source, str) or not source:
        raise BadView(f"source={_shortly(source)} is not a dataset", hint="give a dataset of this lake, or its name")
    chosen = () if select is None else _select(select)
    return ViewDefinition(source=source, select=chosen, where=None if where is None else _expression(where, "where"))


def _items(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Select items: expressions with their names."""
    return [f"{_close_comment(text)} as {quote_name(name)}" for name, text in columns]


def _close_comment(text: str) -> str:
    """An expression that ends with a newline if it may end in a comment, so that later text is not in the comment."""
    return f"{text}\n" if "--" in text else text


def _statement(sql: Any) -> str:
    if not isinstance(sql, str):
        raise BadView(f"sql={_shortly(sql)} is not text", hint="give the query as text: sql='select …'")
    text = spark_sql.strip_semicolons(sql)
    if not text:
        raise BadView("its query is empty", hint="give a query, such as select id from images where id > 10")
    if spark_sql.has_several_statements(text):
        raise BadView("its query has several statements; a view is one", hint="declare a view for each, or use WITH")
    word = spark_sql.first_word(text)
    if word not in spark_sql.QUERY_KEYWORDS:
        problem = "is not a query" if word is None else f"begins with {word}, but a view is a SELECT"
        raise BadView(f"its query {problem}", hint="begin it with select or with")
    return text


def _select(select: Any) -> tuple[tuple[str, str | UdfColumn], ...]:
    if not isinstance(select, Mapping):
        hint = "give column names and their expressions: select={'id': 'id', 'b': brightness}"
        raise BadView(f"select={_shortly(select)} is not a mapping of column names", hint=hint)
    if not select:
        raise BadView("select= names no column", hint="leave it out to have all columns of the source")
    for name in select:
        _check_name(name)
    try:
        check_distinct(list(select))
    except BadColumnName as error:
        raise BadView(error.message, hint=error.hint) from error
    return tuple((name, _column(name, given)) for name, given in select.items())


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise BadView(f"select= names a column {_shortly(name)}, which is not text", hint="use text as column names")
    if name.lower().startswith(RESERVED_PREFIX):
        raise BadView(
            f"column name {name!r} begins with the reserved prefix {RESERVED_PREFIX!r}", hint="give it another name"
        )
    try:
        check_column_name(name, Vocabulary())
    except LedgerError as error:
        raise BadView(error.message, hint=error.hint) from error


def _column(name: str, given: Any) -> str | UdfColumn:
    what = f"column {name!r}"
    if isinstance(given, str):
        return _expression(given, what)
    if isinstance(given, Udf):
        return _udf_column(name, given, None)
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], Udf):
        return _udf_column(name, given[0], _inputs(given[1], what))
    of_pair = given[0] if isinstance(given, tuple | list) and given else given
    if callable(of_pair) and not isinstance(of_pair, Udf):
        raise BadView(
            f"{what} is a plain function, {_shortly(of_pair)}",
            hint='decorate it with @floodmark.udf(returns="…"), which gives it a type and a version',
        )
    raise BadView(f"{what} is {_shortly(given)}", hint="use SQL text, a udf, or (udf, [columns that it takes])")


def _inputs(given: Any, what: str) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise BadView(f"the inputs of {what} are {_shortly(given)}", hint="name columns: (udf, ['a', 'b'])")
    return tuple(names)


def _udf_column(name: str, udf: Udf, inputs: tuple[str, ...] | None) -> UdfColumn:
    taken = udf.inputs_from(inputs)
    udf.check_shippable()
    remember_udf(udf)
    function = FunctionRef(udf.name, udf.version, udf.kind, udf.module, udf.qualname, udf.source)
    return UdfColumn(name, function, taken, udf.type, udf.nullable)


def _expression(given: Any, what: str) -> str:
    if not isinstance(given, str):
        hint = "give SQL text, such as where='id > 10'" if what == "where" else "give SQL text"
        raise BadView(f"{what} is {_shortly(given)}, which is not SQL text", hint=hint)
    text = given.strip()
    if not text:
        raise BadView(f"{what} is empty", hint="leave it out, or give an SQL expression")
    if any(token.text == ";" for token in spark_sql.tokens(text)) or spark_sql.has_unopened_parenthesis(text):
        raise BadView(f"{what} is {given!r}, which is not a single SQL expression", hint="give one expression")
    return text


def _identity(name: str, what: str | UdfColumn) -> list[Any]:
    if isinstance(what, str):
        return [name, what]
    return [name, what.function.name, what.function.version, list(what.inputs), str(what.type), what.nullable]


def _udf_to_json(column: UdfColumn) -> dict[str, Any]:
    kind = base64.b64encode(pa.schema([column.field]).serialize()).decode()  # Arrow's form covers every type
    return {"function": asdict(column.function), "inputs": list(column.inputs), "field": kind}


def _udf_from_json(name: str, document: Mapping[str, Any]) -> UdfColumn:
    field = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["field"]))).field(0)
    return UdfColumn(name, FunctionRef(**document["function"]), tuple(document["inputs"]), field.type, field.nullable)


def _shortly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# Functions

_remembered_udfs: dict[tuple[str, str], Udf] = {}
"""The functions that this process declared views with; nothing else keeps a reference to a lambda."""


def remember_udf(udf: Udf) -> None:
    """Remember a function for refreshes in this process."""
    _remembered_udfs[udf.name, udf.version] = udf


def resolve_udf(view: str, column: UdfColumn, given: Sequence[Udf]) -> Udf:
    """The function of a view's column: a given one, or one with this name and version that this process knows."""
    for udf in given:
        if not isinstance(udf, Udf):
            raise TypeError(f"{udf!r} is not a udf: decorate it with @floodmark.udf(returns=…)")
    version = column.function.name, column.function.version
    for udf in given:
        if (udf.name, udf.version) == version:
            return udf
    remembered = _remembered_udfs.get(version) or find_udf(*version)
    if remembered is not None:
        return remembered
    where = f"{column.function.module}.{column.function.qualname}".strip(".")
    others = [udf.version for udf in given if udf.name == column.function.name]
    raise BadFunction(
        f"view {view!r}: the function {where!r} (version {version[1]}) of column {column.name!r} is not known here"
        + (f"; the given one has version {others[0]}" if others else ""),
        hint="declare the view again with the current function: lake.view(…, select=…)"
        if others
        else "import the module that defines it, or pass it: refresh(udfs=[…])",
        column=column.name,
        module=column.function.module,
    )
