"""Asking Spark about a query without running it: does it parse, what does it name, what is its plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.engine.frames import make_empty_frame
from floodmark.ledger.errors import BadQuery
from floodmark.ledger.spark_types import spark_schema
from floodmark.transform.views.analysed.identity import register
from floodmark.transform.views.analysed.plan_tree import Node, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ONE_EXPRESSION = "give one expression, such as upper(carrier) or delay > 10; put ` around odd names of columns"
QUOTING = "tables are datasets; put ` around a name with '-' or '.' in it"


def parsed(spark: SparkSession, query: str) -> Any:
    """The plan as Spark's parser has it; `BadQuery` if it is no question."""
    with explained():
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)
    for node in _nodes(plan):
        if _is_statement(spark, node):
            raise BadQuery(
                f"the query is {node.getClass().getSimpleName()}, not a question", hint="a view is one SELECT"
            )
    return plan


def check_expression(spark: SparkSession, what: str, text: str) -> None:
    """Refuse a text that is not one SQL expression; `what` says whose it is."""
    try:
        with explained():
            spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except BadQuery as error:
        raise BadQuery(f"{what}: {text!r} is no SQL expression: {error.message}", hint=_ONE_EXPRESSION) from error


@dataclass(frozen=True)
class Named:
    """The tables that a query names, and the names that it defines itself (WITH)."""

    tables: tuple[str, ...]
    defined: frozenset[str]  # in lower case


def named(plan: Any) -> Named:
    """What a parsed query names, each as it is first spelled."""
    tables: dict[str, str] = {}
    defined: set[str] = set()
    for node in _nodes(plan):
        kind = node.getClass().getSimpleName()
        if kind == "UnresolvedRelation":
            parts = node.multipartIdentifier()
            if parts.size() > 1:
                said = parts.mkString("`", "`.`", "`")
                raise BadQuery(f"{said} names no dataset of the lake", hint=QUOTING)
            tables.setdefault(str(parts.head()).lower(), str(parts.head()))
        elif kind == "UnresolvedWith":
            relations = node.cteRelations()
            defined |= {str(relations.apply(i).productElement(0)).lower() for i in range(relations.size())}
    return Named(tuple(tables.values()), frozenset(defined))


@dataclass(frozen=True)
class Planned:
    """A query that Spark has understood."""

    frame: DataFrame
    plan: Node
    is_deterministic: bool


def planned(spark: SparkSession, query: str, tables: Mapping[str, pa.Schema]) -> Planned:
    """The query over empty tables with these columns; `BadQuery` if Spark cannot make sense of it."""
    for alias, schema in tables.items():
        register(alias, make_empty_frame(spark, spark_schema(schema)))
    with explained():
        frame = spark.sql(query)
    analysed = frame._jdf.queryExecution().analyzed()
    return Planned(frame, parse(str(analysed.toJSON())), bool(analysed.deterministic()))


@contextmanager
def explained() -> Iterator[None]:
    """Turn what Spark says of a query into `BadQuery`: one sentence, and the place. Its log keeps quiet meanwhile."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.logger import PySparkLogger

    log = PySparkLogger.getLogger("SQLQueryContextLogger")  # it prints a page of JSON for every mistake
    before, log.disabled = log.disabled, True
    try:
        yield
    except (AnalysisException, ParseException) as error:
        is_about_names = isinstance(error, ParseException) or "TABLE_OR_VIEW" in str(error)
        hint = QUOTING if is_about_names else "correct the query"
        raise BadQuery(f"Spark cannot answer: {_sentence(str(error))}", hint=hint) from error
    finally:
        log.disabled = before


def _sentence(text: str) -> str:
    """The sentence of an error, and where in the query it was, without Spark's plans and codes."""
    said, _, rest = text.strip().partition(" SQLSTATE")
    place = re.search(r"line (\d+)\W*pos (\d+)", rest)
    sentence = re.sub(r"^\[[A-Z_.]+\] ", "", said).partition("\n")[0].strip()
    sentence = re.sub(r"( Did you mean one of the following\? )\[(.*?)\]\.", _suggested, sentence)
    return sentence if place is None else f"{sentence} (line {place[1]}, column {int(place[2]) + 1})"


def _suggested(found: re.Match[str]) -> str:
    """Spark's suggestions without columns of ours, which nobody means."""
    kept = [name for name in found[2].split(", ") if not name.startswith("`floodmark_")]
    return f"{found[1]}[{', '.join(kept)}]." if kept else ""


def _is_statement(spark: SparkSession, node: Any) -> bool:
    from py4j.java_gateway import is_instance_of

    gateway = spark.sparkContext._gateway
    package = "org.apache.spark.sql.catalyst.plans.logical"
    return any(is_instance_of(gateway, node, f"{package}.{name}") for name in ("Command", "ParsedStatement"))


def _nodes(plan: Any) -> Iterator[Any]:
    """All operators of a plan, those of its subqueries and of what it defines included."""
    yield plan
    for below in (plan.children(), plan.innerChildren()):
        for i in range(below.size()):
            yield from _nodes(below.apply(i))
