"""What a Spark query over a lake may use: built-in functions without side effects, and tables of the lake.

A query may come from the lake itself (a view), so it is not trusted. It is checked on the plan from Spark's parser,
before Spark resolves a name: resolving a function already loads classes, and resolving a table opens files. Everything
that is not known to be harmless is refused: operators, expressions and functions are on lists.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from floodmark.errors import BadQuery, close_matches
from floodmark.ledger.spark_builtins import FUNCTIONS, TABLE_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUOTING = "table names are dataset names; quote a name that contains '-' or '.' with `"
_ONE_SELECT = "use a single SELECT statement"
_BUILT_IN = (
    "use Spark's built-in functions without side effects; "
    "compute anything else in a step or with a function of your own (udf)"
)

_OPERATORS = """
    Aggregate AsOfJoin Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit
    LocalRelation NearestByJoin Offset OneRowRelation Pivot Project RebalancePartitions Repartition
    RepartitionByExpression Sample Sort SubqueryAlias Union Unpivot UnresolvedHaving UnresolvedHint
    UnresolvedInlineTable UnresolvedQualify UnresolvedRelation UnresolvedSubqueryColumnAliases
    UnresolvedTableValuedFunction UnresolvedTVFAliases UnresolvedWith WithWindowDefinition
"""
"""The operators that Spark's parser makes from a SELECT and that read only tables."""

_EXPRESSIONS = """
    Add AggregateExpression Alias And AnyValue BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce Collate
    Concat CreateNamedStruct Cube CurrentDate CurrentRow CurrentTime CurrentTimestamp Divide EqualNullSafe EqualTo
    Exists First GreaterThan GreaterThanOrEqual GroupingSets ILike In InSubquery IntegralDivide IsNotNull IsNull
    JsonTable LambdaFunction Last LateralSubquery LessThan LessThanOrEqual Like LikeAll LikeAny ListQuery Literal Lower
    MultiAlias Multiply NamedArgumentExpression Not NotLikeAll NotLikeAny Or Overlay PipeExpression PipeOperator RLike
    Remainder Rollup ScalarSubquery SemiStructuredExtract ShiftLeft ShiftRight ShiftRightUnsigned SortOrder
    SpecifiedWindowFrame StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract TimestampAdd
    TimestampDiff UnaryMinus UnaryPositive UnboundedFollowing UnboundedPreceding Unnest UnresolvedAlias
    UnresolvedAttribute UnresolvedCollation UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator
    UnresolvedNamedLambdaVariable UnresolvedOrdinal UnresolvedPipeAggregateOrdinal UnresolvedRegex UnresolvedStar
    UnresolvedStarExceptOrReplace UnresolvedWindowExpression UnspecifiedFrame WindowExpression WindowSpecDefinition
    WindowSpecReference
"""
"""The expressions that the parser makes itself. Functions are all `UnresolvedFunction` or `UnresolvedGenerator`."""

_HARMLESS = frozenset(f"{_OPERATORS} {_EXPRESSIONS}".split())

_MOST_NESTED = 500
"""The most nested parentheses: the parser's time grows fast with them."""

_CATALYST = "org.apache.spark.sql.catalyst."
_TREE_NODE = f"{_CATALYST}trees.TreeNode"
_VALUES = (f"{_CATALYST}expressions.Literal", f"{_CATALYST}plans.logical.LocalRelation")
"""What consists of values, and refers to nothing else."""

_known_kinds: dict[tuple[str, str], bool] = {}
_QUALIFIERS = ((), ("builtin",), ("system", "builtin"))
"""What may stand before the name of a function: nothing else names a built-in one."""


@dataclass(frozen=True)
class ParsedQuery:
    """A checked query: the plan from Spark's parser, the tables that it names, and the names that it defines (WITH)."""

    plan: Any
    tables: tuple[str, ...]  # each in its first spelling
    defined: frozenset[str]  # in lower case


def parse_query(spark: SparkSession, query: str) -> ParsedQuery:
    """Parse a query and check everything in it; `BadQuery` if it is not one SELECT, or uses what it must not."""
    if not hasattr(spark, "_jsparkSession"):
        raise BadQuery(
            "a query cannot be checked through Spark Connect", hint="use a local or classic Spark session for it"
        )
    if max(accumulate({"(": 1, ")": -1}.get(character, 0) for character in query), default=0) > _MOST_NESTED:
        raise BadQuery("the query is nested too deeply", hint="write it with fewer parentheses")
    with convert_query_errors():
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)
    return _Check(spark).checked(plan)


def parse_select(spark: SparkSession, query: str, known: Collection[str]) -> ParsedQuery:
    """Like `parse_query`, and refuse a query that names other tables than the known ones."""
    parsed = parse_query(spark, query)
    own = {name.lower() for name in known} | parsed.defined
    for name in parsed.tables:
        if name.lower() not in own:
            raise _not_a_dataset(name)
    return parsed


@contextmanager
def convert_query_errors() -> Iterator[None]:
    """Convert Spark's errors to `BadQuery` with one sentence and the position. Silences Spark's query log."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.logger import PySparkLogger

    log = PySparkLogger.getLogger("SQLQueryContextLogger")  # it prints a page of JSON per error
    before, log.disabled = log.disabled, True
    try:
        yield
    except (AnalysisException, ParseException) as error:
        is_about_names = isinstance(error, ParseException) or "TABLE_OR_VIEW" in str(error)
        hint = QUOTING if is_about_names else "correct the query"
        raise BadQuery(f"Spark cannot run the query: {_sentence(str(error))}", hint=hint) from error
    except (Py4JJavaError, RecursionError) as error:
        if isinstance(error, Py4JJavaError) and "StackOverflowError" not in str(error.java_exception):
            raise
        raise BadQuery("the query is nested too deeply", hint="write it with fewer parentheses") from error
    finally:
        log.disabled = before


def _sentence(text: str) -> str:
    """The first sentence of an error and its position in the query, without Spark's plans and codes."""
    first, _, rest = text.strip().partition(" SQLSTATE")
    place = re.search(r"line (\d+)\W*pos (\d+)", rest)
    sentence = re.sub(r"^\[[A-Z_.]+\] ", "", first).partition("\n")[0].strip()
    sentence = re.sub(r"( Did you mean one of the following\? )\[(.*?)\]\.", _suggested, sentence)
    return sentence if place is None else f"{sentence} (line {place[1]}, column {int(place[2]) + 1})"


def _suggested(match: re.Match[str]) -> str:
    """Spark's suggested names without Floodmark's internal columns."""
    kept = [name for name in match[2].split(", ") if not name.startswith("`floodmark_")]
    return f"{match[1]}[{', '.join(kept)}]." if kept else ""


# The check of a parsed plan


class _Check:
    """Walks everything that a parsed plan refers to: operators, expressions, and the collections that hold them."""

    def __init__(self, spark: SparkSession) -> None:
        self._gateway: Any = spark.sparkContext._gateway
        self._tables: dict[str, str] = {}
        self._defined: set[str] = set()

    def checked(self, plan: Any) -> ParsedQuery:
        waiting = [plan]
        while waiting:
            waiting += reversed(self._parts(waiting.pop()))
        return ParsedQuery(plan, tuple(self._tables.values()), frozenset(self._defined))

    def _parts(self, value: Any) -> list[Any]:
        """The objects that a JVM object refers to, after its check."""
        name = str(value.getClass().getName())
        if name.startswith("scala.collection."):
            items = value.toSeq()
            return _objects(items.apply(i) for i in range(items.size()))
        if self._is(value, name, _TREE_NODE):
            self._check_node(value, name)
            if name in _VALUES:
                return []
        elif not self._is(value, name, "scala.Product"):
            return []
        return _objects(value.productElement(i) for i in range(value.productArity()))

    def _is(self, value: Any, name: str, kind: str) -> bool:
        """Whether an object of the class `name` is a `kind`; each class is asked about once."""
        from py4j.java_gateway import is_instance_of

        if (name, kind) not in _known_kinds:
            _known_kinds[name, kind] = bool(is_instance_of(self._gateway, value, kind))
        return _known_kinds[name, kind]

    def _check_node(self, node: Any, name: str) -> None:
        kind = name.rpartition(".")[2].rstrip("$")
        if not name.startswith(_CATALYST):
            raise _refused(kind)
        match kind:
            case "UnresolvedFunction":
                _check_function(_texts(node.nameParts()), FUNCTIONS)
            case "UnresolvedTableValuedFunction":
                _check_function(_texts(node.name()), TABLE_FUNCTIONS)
            case "UnresolvedGenerator":
                called = node.name()
                outer = [part.get() for part in (called.catalog(), called.database()) if part.isDefined()]
                _check_function([*map(str, outer), str(called.funcName())], TABLE_FUNCTIONS)
            case "UnresolvedRelation":
                self._check_table(node)
            case "UnresolvedWith":
                relations = node.cteRelations()
                self._defined |= {str(relations.apply(i).productElement(0)).lower() for i in range(relations.size())}
            case _ if kind not in _HARMLESS:
                raise _refused(kind)

    def _check_table(self, node: Any) -> None:
        parts = _texts(node.multipartIdentifier())
        if len(parts) > 1:
            raise _not_a_dataset(".".join(f"`{part}`" for part in parts))
        if node.isStreaming():
            raise BadQuery("the query reads a stream", hint=_ONE_SELECT)
        self._tables.setdefault(parts[0].lower(), parts[0])


def _objects(values: Iterable[Any]) -> list[Any]:
    """The values that are objects of the JVM; texts and numbers are values of Python."""
    from py4j.java_gateway import JavaObject

    return [value for value in values if isinstance(value, JavaObject)]


def _texts(sequence: Any) -> list[str]:
    return [str(sequence.apply(i)) for i in range(sequence.size())]


def _check_function(parts: list[str], allowed: frozenset[str]) -> None:
    *qualifiers, name = [part.lower() for part in parts]
    if tuple(qualifiers) in _QUALIFIERS and name in allowed:
        return
    shown = ".".join(parts)
    near = close_matches(name, allowed)
    raise BadQuery(
        f"the query calls {shown}(), which is not one of the functions that a query over a lake may call",
        hint=f"did you mean {near[0]}()? {_BUILT_IN}" if near else _BUILT_IN,
        function=shown,
    )


def _refused(kind: str) -> BadQuery:
    if kind in ("CurrentUser", "CurrentPath"):
        return BadQuery(f"the query uses {kind}, a value of the session that runs it", hint=_BUILT_IN)
    return BadQuery(f"the query is or contains {kind}, not a SELECT over datasets", hint=_ONE_SELECT)


def _not_a_dataset(name: str) -> BadQuery:
    return BadQuery(f"{name} is not a dataset of the lake", hint=QUOTING)
