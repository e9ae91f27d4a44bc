"""Spark's parser and analyser for queries that are not run, sessions for them, and edits of their SQL text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.engine.session import make_empty_frame
from floodmark.errors import BadQuery, BadView
from floodmark.ledger.schema import quote_name
from floodmark.ledger.spark_query import convert_query_errors, parse_select
from floodmark.ledger.types import spark_schema
from floodmark.views.analysis import COPY_COLUMN, ROW_COLUMN
from floodmark.views.query_plan import PlanNode, parse_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_ONE_EXPRESSION = "give one expression, such as upper(carrier) or delay > 10; quote unusual column names with `"


def check_expression(spark: SparkSession, what: str, text: str) -> None:
    """Refuse a text that is not one SQL expression; `what` names it in the error."""
    try:
        with convert_query_errors():
            spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except BadQuery as error:
        raise BadQuery(f"{what}: {text!r} is not a SQL expression: {error.message}", hint=_ONE_EXPRESSION) from error


@dataclass(frozen=True)
class PlannedQuery:
    """A query that Spark has analysed."""

    frame: DataFrame
    plan: PlanNode
    is_deterministic: bool


def plan_query(
    spark: SparkSession, query: str, tables: Mapping[str, pa.Schema], known: Collection[str]
) -> PlannedQuery:
    """Analyse the query over empty tables with these columns; `BadQuery` if Spark refuses it.

    The query may name the known tables only.
    """
    parse_select(spark, query, known)
    for alias, schema in tables.items():
        register_table(alias, make_empty_frame(spark, spark_schema(schema)))
    with convert_query_errors():
        return resolved_query(spark.sql(query))


def resolved_query(frame: DataFrame) -> PlannedQuery:
    """The plan of a query that Spark has analysed."""
    analysed = frame._jdf.queryExecution().analyzed()
    return PlannedQuery(frame, parse_plan(str(analysed.toJSON())), bool(analysed.deterministic()))


# Sessions

_REQUIRED_SETTINGS = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.timestampType",
    "spark.sql.caseSensitive",
)
"""Stored even if they are unset, because their defaults depend on the machine or the Spark release."""

_MEANING_SETTINGS = re.compile(
    r"spark\.sql\.(session\.timeZone|timestampType|caseSensitive|mapKeyDedupPolicy|crossJoin\.enabled|orderByOrdinal"
    r"|groupByAliases|groupByOrdinal|charAsVarchar|readSideCharPadding|preserveCharVarcharTypeInfo|retainGroupColumns"
    r"|storeAssignmentPolicy|chunkBase64String\.\w+|fromJsonForceNullableSchema|columnNameOfCorruptRecord"
    r"|pivotMaxValues|timeType\.\w+|timestampNanosTypes\.\w+"
    r"|(ansi|legacy|decimalOperations|function|functionResolution|json|jsonGenerator|parser|collation|icu"
    r"|lateralColumnAlias|listagg|variant|analyzer)\..*)"
)

_NO_VARIABLES = ("spark.sql.variable.substitute", "false")
"""Otherwise `${…}` in a query would be replaced from the settings and environment of the process."""

_SEPARATOR = "\x1e"


def isolated_session(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A new session with its own views and functions, in which queries have the meaning that `settings` give them.

    `settings` of None are those of the given session, which also provides all other settings. Spark Connect has no
    such sessions: there the given one is returned, and it must already have the settings.
    """
    if not hasattr(spark, "_jsparkSession"):
        _check(spark, settings or {})
        return spark
    session = spark.newSession()
    ours, theirs = _session_settings(session), _session_settings(spark)
    if settings is not None:
        _check_names(settings)
        for name in filter(_MEANING_SETTINGS.fullmatch, ours):
            if name not in settings and session.conf.isModifiable(name):
                session.conf.unset(name)
        theirs = {
            **{name: value for name, value in theirs.items() if not _MEANING_SETTINGS.fullmatch(name)},
            **settings,
        }
    for name, value in theirs.items():
        if name.startswith("spark.sql.") and ours.get(name) != value and session.conf.isModifiable(name):
            session.conf.set(name, value)
    session.conf.set(*_NO_VARIABLES)
    return session


def meaning_settings(spark: SparkSession) -> dict[str, str]:
    """The settings of a session that affect the meaning of queries."""
    always = {name: str(spark.conf.get(name)) for name in _REQUIRED_SETTINGS}
    return dict(
        sorted(
            {**{n: v for n, v in _session_settings(spark).items() if _MEANING_SETTINGS.fullmatch(n)}, **always}.items()
        )
    )


def _check_names(settings: Mapping[str, str]) -> None:
    """Refuse other settings: those of a view come from the lake, and some settings load classes or open files."""
    for name in settings:
        if not _MEANING_SETTINGS.fullmatch(name):
            raise BadView(
                f"the view sets {name!r}, which is not a setting that affects the meaning of queries",
                hint="drop the view and declare it again",
                setting=name,
            )


def _session_settings(spark: SparkSession) -> dict[str, str]:
    """The settings of a session, in one call; `conf.getAll` makes one call per setting."""
    text = spark._jsparkSession.sessionState().conf().getAllConfs().mkString(_SEPARATOR)
    pairs = [line.partition(" -> ") for line in str(text).split(_SEPARATOR)]
    return {name: value for name, arrow, value in pairs if arrow}


def _check(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Refuse a Spark Connect session whose settings differ from the view's."""
    for name, value in settings.items():
        if (present := spark.conf.get(name, None)) != value:
            raise BadView(
                f"the view was declared with {name}={value}, but this Spark Connect session has {present}",
                hint=f"set it: spark.conf.set({name!r}, {value!r}), or refresh with a classic Spark session",
                setting=name,
                value=value,
            )


# Injecting columns into a query

_SELECT = re.compile(r"select(\s+all)?\b", re.IGNORECASE)
_TRANSPARENT = ("Sort", "Filter", "SubqueryAlias", "UnresolvedWith", "RepartitionByExpression")


def inject_columns(parsed: Any, query: str, names: Sequence[str]) -> Iterator[str]:
    """Variants of a query that should also return these columns of its table; the best first.

    The caller must check the plan: a variant may fail to return them, or may change the rest of the query.
    """
    if not names:
        yield query
        return
    projects = list(_projects(parsed))
    lists = [project for project in projects if not _has_star(project)]
    if not projects:
        return
    added = ", ".join(f"`{name}`" for name in names)
    for place in (_after_last_item, _after_select):
        places = [place(project, query) for project in lists]
        if all(at is not None for at in places):
            yield _insert_columns(query, [at for at in places if at is not None], added, place is _after_select)


def _insert_columns(query: str, places: Sequence[int], added: str, is_first: bool) -> str:
    for at in sorted(set(places), reverse=True):
        text = f" {added}, " if is_first else f", {added}"
        query = query[:at] + text + query[at:]
    return query


def _projects(plan: Any) -> Iterator[Any]:
    """The select lists between a query's result and its single table."""
    while True:
        name = plan.getClass().getSimpleName()
        if name == "Project":
            yield plan
        elif name not in _TRANSPARENT:
            return
        children = plan.children()
        if children.size() != 1:
            return
        plan = children.apply(0)


def _items(project: Any) -> list[Any]:
    listed = project.projectList()
    return [listed.apply(i) for i in range(listed.size())]


def _is_star(expression: Any) -> bool:
    return "Star" in expression.getClass().getSimpleName()


def _has_star(project: Any) -> bool:
    """Whether the list has all columns of its table because it contains `*`."""
    return any(_is_star(item) for item in _items(project))


def _after_last_item(project: Any, query: str) -> int | None:
    item = _items(project)[-1]
    if item.getClass().getSimpleName() == "UnresolvedAlias":  # unnamed: it has the position of the whole query
        item = item.child()
    stop = item.origin().stopIndex()
    return stop.get() + 1 if stop.isDefined() and stop.get() < len(query) else None


def _after_select(project: Any, query: str) -> int | None:
    """Where the list begins. Its end is unusable, because the position of a parenthesised expression excludes `)`."""
    start = project.origin().startIndex()
    match = _SELECT.match(query, start.get()) if start.isDefined() else None
    return match.end() if match is not None else None


# Tables and row identities


def register_table(alias: str, frame: DataFrame) -> None:
    """Register a frame as a table of its session, under its name in queries."""
    frame.createOrReplaceTempView("`" + alias.replace("`", "``") + "`")


def with_row_hash(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows with one more column: a hash of these columns."""
    from pyspark.sql import functions as f

    # The isNull flags are needed because the hash skips nulls: (null, 'a') and ('a', null) would have one hash.
    parts = [part for name in columns for part in (frame[quote_name(name)].isNull(), frame[quote_name(name)])]
    return frame.withColumn(ROW_COLUMN, f.xxhash64(*parts))


def with_identity(frame: DataFrame, t: Sequence[str]) -> DataFrame:
    """The rows with two more columns that, together with T, identify each row.

    One is a hash of the row, the other numbers the rows with the same hash. So hash collisions do no harm, and equal
    rows get the same identities in each run.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    hashed = with_row_hash(frame, frame.columns)
    by = dict.fromkeys([*t, ROW_COLUMN])
    same = Window.partitionBy(*[hashed[quote_name(name)] for name in by]).orderBy(hashed[ROW_COLUMN])
    return hashed.withColumn(COPY_COLUMN, (f.row_number().over(same) - f.lit(1)).cast("int"))


# Tokens, without Spark

_TOKEN = re.compile(
    r"""
      --[^\n]*                                   # a comment to the end of the line
    | /\*(?:[^*]|\*(?!/))*\*/                    # a block comment
    | \b[rR](?:'[^']*'|"[^"]*")                  # raw text: a backslash is a plain character
    | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"
    | `(?:[^`]|``)*`
    | [A-Za-z_][A-Za-z0-9_]* | [;()]
    """,
    re.VERBOSE | re.DOTALL,
)
QUERY_KEYWORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
"""The first words of statements that only read."""


@dataclass(frozen=True)
class Token:
    """A word, parenthesis or semicolon outside of quotes and comments."""

    text: str
    start: int


def tokens(text: str) -> Iterator[Token]:
    """The words, parentheses and semicolons of a text, without quoted names and values."""
    for match in _TOKEN.finditer(text):
        word = match.group()
        if word in (";", "(", ")") or ((word[0].isalpha() or word[0] == "_") and not word.endswith(("'", '"'))):
            yield Token(word, match.start())


def strip_semicolons(text: str) -> str:
    """A statement without the semicolons and spaces at its end."""
    last = [token for token in tokens(text) if token.text == ";"]
    while last and not _has_content(text[last[-1].start + 1 :]):
        text = text[: last.pop().start]
    return text.strip()


def has_several_statements(text: str) -> bool:
    """Whether a semicolon separates two statements."""
    return any(token.text == ";" for token in tokens(strip_semicolons(text)))


def first_word(text: str) -> str | None:
    """The first word of a statement after opening parentheses, in capitals; None if there is none."""
    for token in tokens(text):
        if token.text != "(":
            return token.text.upper()
    return None


def has_unopened_parenthesis(text: str) -> bool:
    """Whether the text closes a parenthesis that it did not open, which would close one around it."""
    depth = 0
    for token in tokens(text):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0:
            return True
    return False


def _has_content(text: str) -> bool:
    """Whether the text has more than spaces and comments."""
    return bool(re.sub(r"--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/|;", "", text).strip())
