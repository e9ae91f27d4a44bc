"""The definition of a view: what a user declares, checked as far as that goes without Spark, and its version."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from floodmark.compute.functions.udf import Udf
from floodmark.compute.stored.catalog import FunctionRef
from floodmark.ledger.errors import DuplicateColumns, LedgerError
from floodmark.ledger.layout import check_column_name, check_distinct
from floodmark.storage.slices import Vocabulary
from floodmark.transform.views.analysed.analysis import OFFSET, RESERVED_PREFIX
from floodmark.transform.views.defined import functions, sql_text
from floodmark.transform.views.errors import BadView

_FORMS = "give sql='select …', or source= with select= and where="


@dataclass(frozen=True)
class UdfColumn:
    """A column of a view that a function computes from columns of its source."""

    name: str
    function: FunctionRef
    inputs: tuple[str, ...]
    type: pa.DataType
    nullable: bool

    @property
    def field(self) -> pa.Field:
        """The column as the view has it."""
        return pa.field(self.name, self.type, self.nullable)

    @property
    def call(self) -> str:
        """The call, as SQL would have it."""
        return f"{quoted(self.function.name)}({', '.join(map(quoted, self.inputs))})"


@dataclass(frozen=True)
class Definition:
    """What a view is: an SQL query, or columns of a source and which of its rows."""

    sql: str | None = None
    source: str | None = None
    select: tuple[tuple[str, str | UdfColumn], ...] = ()
    """The columns of a source in the user's order; none at all means all of them."""
    where: str | None = None

    @property
    def udfs(self) -> tuple[UdfColumn, ...]:
        """The columns that functions compute."""
        return tuple(column for _, column in self.select if isinstance(column, UdfColumn))

    @property
    def expressions(self) -> tuple[tuple[str, str], ...]:
        """The parts of select= and where= that are SQL, each with what it is."""
        chosen = [(f"column {name!r}", text) for name, text in self.select if isinstance(text, str)]
        return (*chosen, *([] if self.where is None else [("where", self.where)]))

    @cached_property
    def version(self) -> str:
        """Another one for every other query and every other version of its functions."""
        parts = [self.sql, self.source, [_identity(name, what) for name, what in self.select], self.where]
        return "view-" + hashlib.sha3_256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def query(self) -> str:
        """The query without the columns that functions compute: the SQL as given, or composed."""
        if self.sql is not None:
            return self.sql
        has_plain = not self.select or len(self.udfs) < len(self.select)
        return self.composed(() if has_plain else (OFFSET,))

    def composed(self, extra: Sequence[str]) -> str:
        """The query of select= and where=, without the columns that functions compute, and with more at the end."""
        plain = [(name, text) for name, text in self.select if isinstance(text, str)]
        return self._composed([*_items(plain), *map(quoted, extra)])

    @property
    def shown_query(self) -> str:
        """The query with the calls of functions written out, for people to read."""
        if self.sql is not None:
            return self.sql
        return self._composed(_items([(n, w.call if isinstance(w, UdfColumn) else w) for n, w in self.select]))

    def _composed(self, items: Iterable[str]) -> str:
        assert self.source is not None
        chosen = ", ".join(([] if self.select else ["*"]) + list(items))
        kept = "" if self.where is None else f" where ({_ended(self.where)})"
        # Named twice: for Spark `where (flag)` after a table without an alias is an alias and the name of its column.
        name = quoted(self.source)
        return f"select {chosen} from {name} as {name}{kept}" if kept else f"select {chosen} from {name}"

    def to_json(self) -> dict[str, Any]:
        """As the chain has it."""
        return {
            "sql": self.sql,
            "source": self.source,
            "select": [[name, what if isinstance(what, str) else _udf_to_json(what)] for name, what in self.select],
            "where": self.where,
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Definition:
        select = tuple((name, w if isinstance(w, str) else _udf_from_json(name, w)) for name, w in said["select"])
        return cls(said["sql"], said["source"], select, said["where"])


def define(view: str, *, sql: Any = None, source: Any = None, select: Any = None, where: Any = None) -> Definition:
    """A definition from what a user gives; `BadView` when that says nothing, too much, or what cannot be."""
    try:
        return _defined(sql, source, select, where)
    except BadView as error:
        raise BadView(f"view {view!r}: {error.message}", hint=error.hint, view=view) from error.__cause__


def _defined(sql: Any, source: Any, select: Any, where: Any) -> Definition:
    if sql is not None and any(given is not None for given in (source, select, where)):
        raise BadView("a view is given as sql=, or as source= with select= and where=, not as both", hint=_FORMS)
    if sql is not None:
        return Definition(sql=_statement(sql))
    if source is None:
        raise BadView("it is not said what the view is made from", hint=_FORMS)
    if not isinstance(source, str) or not source:
        raise BadView(f"source={_shortly(source)} is no dataset", hint="give a dataset of this lake, or its name")
    chosen = () if select is None else _select(select)
    return Definition(source=source, select=chosen, where=None if where is None else _expression(where, "where"))


def quoted(name: str) -> str:
    """A name as Spark SQL takes any."""
    return "`" + name.replace("`", "``") + "`"


def _items(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Expressions with their names."""
    return [f"{_ended(text)} as {quoted(name)}" for name, text in columns]


def _ended(text: str) -> str:
    """An expression such that what comes after it is not part of a comment that it may end in."""
    return f"{text}\n" if "--" in text else text


def _statement(sql: Any) -> str:
    if not isinstance(sql, str):
        raise BadView(f"sql={_shortly(sql)} is no text", hint="give the query as text: sql='select …'")
    text = sql_text.without_end(sql)
    if not text:
        raise BadView("its query is empty", hint="give one, such as select id from images where id > 10")
    if sql_text.has_several_statements(text):
        raise BadView("its query is several statements, and a view is one", hint="declare a view for each, or use WITH")
    word = sql_text.first_word(text)
    if word not in sql_text.QUESTIONS:
        said = "cannot be one" if word is None else f"begins with {word}, and a view is a SELECT"
        raise BadView(f"its query {said}", hint="begin it with select or with")
    return text


def _select(select: Any) -> tuple[tuple[str, str | UdfColumn], ...]:
    if not isinstance(select, Mapping):
        hint = "give names and what they stand for: select={'id': 'id', 'b': brightness}"
        raise BadView(f"select={_shortly(select)} says no names of columns", hint=hint)
    if not select:
        raise BadView("select= names no column", hint="leave it out to have all columns of the source")
    for name in select:
        _check_name(name)
    try:
        check_distinct(list(select))
    except DuplicateColumns as error:
        raise BadView(error.message, hint=error.hint) from error
    return tuple((name, _column(name, given)) for name, given in select.items())


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise BadView(f"select= names a column {_shortly(name)}, which is no text", hint="names are text")
    if name.lower().startswith(RESERVED_PREFIX):
        raise BadView(
            f"column name {name!r} begins as those do that a view keeps for itself", hint="give it another name"
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
            hint='put @floodmark.udf(returns="…") before it, so that its type and its version are known',
        )
    raise BadView(f"{what} is {_shortly(given)}", hint="a column is SQL text, a udf, or (udf, [columns that it takes])")


def _inputs(given: Any, what: str) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise BadView(f"the inputs of {what} are {_shortly(given)}", hint="name columns: (udf, ['a', 'b'])")
    return tuple(names)


def _udf_column(name: str, udf: Udf, inputs: tuple[str, ...] | None) -> UdfColumn:
    taken = udf.inputs_from(inputs)
    udf.check_shippable()
    functions.remember(udf)
    function = FunctionRef(udf.name, udf.version, udf.kind, udf.module, udf.qualname, udf.source)
    return UdfColumn(name, function, taken, udf.type, udf.nullable)


def _expression(given: Any, what: str) -> str:
    if not isinstance(given, str):
        hint = "give SQL text, such as where='id > 10'" if what == "where" else "give SQL text"
        raise BadView(f"{what} is {_shortly(given)}, which is no SQL text", hint=hint)
    text = given.strip()
    if not text:
        raise BadView(f"{what} is empty", hint="leave it out, or give an SQL expression")
    if any(token.text == ";" for token in sql_text.tokens(text)) or sql_text.closes_too_much(text):
        raise BadView(f"{what} is {given!r}, which is more than one SQL expression", hint="give one expression")
    return text


def _identity(name: str, what: str | UdfColumn) -> list[Any]:
    if isinstance(what, str):
        return [name, what]
    return [name, what.function.name, what.function.version, list(what.inputs), str(what.type), what.nullable]


def _udf_to_json(column: UdfColumn) -> dict[str, Any]:
    kind = base64.b64encode(pa.schema([column.field]).serialize()).decode()  # Arrow's own form has every type
    return {"function": asdict(column.function), "inputs": list(column.inputs), "field": kind}


def _udf_from_json(name: str, said: Mapping[str, Any]) -> UdfColumn:
    field = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(said["field"]))).field(0)
    return UdfColumn(name, FunctionRef(**said["function"]), tuple(said["inputs"]), field.type, field.nullable)


def _shortly(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
