"""SQL over the datasets of a lake, by DuckDB in this process or by Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from floodmark.errors import BadName, BadQuery, UnknownDataset
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import quote_name
from floodmark.ledger.spark_query import convert_query_errors, parse_query
from floodmark.ledger.spark_read import spark_frame

_QUOTING = "use dataset names as table names, in double quotes if they contain '-' or '.'"
_NAMES = "check the columns and functions: lake['name'].schema has the columns of a dataset"
_VALUES = "correct the query or the values that it reads; try_cast(… as …) gives null for a value that does not fit"


class QueryTable(Protocol):
    """A dataset that a query reads."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema | None: ...

    def scan(self) -> Scan: ...


class QueryDatasets(Protocol):
    """The datasets that a query can read."""

    def __getitem__(self, name: str) -> QueryTable: ...

    def __iter__(self) -> Iterator[QueryTable]: ...


def query_duckdb(datasets: QueryDatasets, query: str) -> pa.Table:
    """Run a query with DuckDB; the result is an Arrow table. Columns and filters are pushed down to the slices."""
    import duckdb

    from floodmark.ledger.duckdb_table import connect, raise_failure, raise_unreadable  # late: it imports pandas

    connection = connect()
    tables = []
    names: list[str] = []
    try:
        tree = _one_select(connection, query)
        for name, dataset in _tables(datasets, tree).items():
            scan = dataset.scan()
            tables.append(scan.filtered())
            names.append(name)
            columns = ", ".join('"' + c.replace('"', '""') + '"' for c in scan.data_names)
            connection.register("records of " + name, tables[-1])
            connection.execute(f'create view "{name}" as select {columns} from "records of {name}"')
        return _interruptible(connection, lambda: connection.sql(query).to_arrow_table())
    except duckdb.Error as error:
        for table in tables:
            raise_failure(table, error)
        raise_unreadable(f"the records of {' or '.join(names)}", error)
        is_value = isinstance(error, duckdb.DataError | duckdb.InvalidInputException)
        hint = _VALUES if is_value else _QUOTING if isinstance(error, duckdb.ParserException) else _NAMES
        raise BadQuery(f"DuckDB cannot run the query: {str(error).strip()}", hint=hint) from error
    finally:
        connection.close()


_EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_QUERY_NODES = ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE")


def _one_select(connection: Any, query: str) -> Any:
    """The syntax tree of a query, which must be one SELECT (or SHOW, DESCRIBE), or EXPLAIN of one.

    Everything else is refused, also as a part of it: a query must not change the lake or the disk.
    """
    kinds = [statement.type.name for statement in connection.extract_statements(query)]
    if kinds == ["SELECT"]:
        tree = _tree(connection, query)
    elif kinds == ["EXPLAIN"] and (explain := _EXPLAIN.match(query)) is not None:
        tree = _tree(connection, query[explain.end() :])
    else:
        tree = None
    if tree is None or not _only_selects(tree):
        statements = " and ".join(kinds) if kinds else "empty"
        raise BadQuery(
            f"only a single SELECT statement is supported; the query is {statements}",
            hint="give one SELECT; use write() to write data",
        )
    return tree


def _only_selects(node: Any) -> bool:
    """Whether all statements in a syntax tree are queries: WITH may contain others."""
    if isinstance(node, list):
        return all(map(_only_selects, node))
    if not isinstance(node, dict):
        return True
    kind = node.get("type")
    is_other = isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERY_NODES
    return not is_other and all(map(_only_selects, node.values()))


def _interruptible(connection: Any, run: Callable[[], pa.Table]) -> pa.Table:
    """Run the query in a thread, so that Ctrl-C reaches this thread and interrupts the query."""
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(run)
        try:
            return result.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def query_spark(datasets: QueryDatasets, query: str, spark: Any) -> Any:
    """Run a query with Spark; the result is a Spark frame.

    The query may use what a view may use. The datasets are temporary views of a separate session, so that they do not
    hide the user's views.
    """
    isolated = spark.newSession() if hasattr(spark, "newSession") else spark
    tree = _parsed(query)
    for name, dataset in _tables_for_spark(datasets, query, tree, isolated).items():
        frame = spark_frame(_narrowed(dataset.scan(), query, tree), isolated)
        frame.createOrReplaceTempView(quote_name(name))
    with convert_query_errors():
        return isolated.sql(query)


def _narrowed(scan: Scan, query: str, tree: Any) -> Scan:
    """The scan with its data columns, without side columns that the query does not use.

    Spark reads records without Python, but side columns only through Python, even if the query does not use them.
    """
    if tree is None or _uses_all_columns(tree):
        return replace(scan, columns=scan.data_names)
    text = query.lower()
    own = scan.layout.shown.names
    others = [name for name in scan.data_names if name not in own]
    return replace(scan, columns=(*own, *[name for name in others if name.lower() in text]))


def _uses_all_columns(node: Any) -> bool:
    """Whether a query may use columns that it does not name."""
    if isinstance(node, list):
        return any(map(_uses_all_columns, node))
    if not isinstance(node, dict):
        return False
    unnamed = (
        node.get("class") == "STAR" or node.get("type") in ("PIVOT", "SHOW_REF") or node.get("ref_type") == "NATURAL"
    )
    return unnamed or any(map(_uses_all_columns, node.values()))


def _parsed(query: str) -> Any:
    """The query's syntax tree from DuckDB; None if DuckDB cannot parse it."""
    import duckdb

    from floodmark.ledger.duckdb_table import connect

    try:
        with connect() as connection:
            return _tree(connection, query)
    except duckdb.Error:
        return None


def _tables_for_spark(datasets: QueryDatasets, query: str, tree: Any, spark: Any) -> Mapping[str, QueryTable]:
    """The datasets that a query for Spark names."""
    if hasattr(spark, "_jsparkSession"):
        parsed = parse_query(spark, query)
        return _named_tables(datasets, parsed.tables, parsed.defined)
    if tree is None:
        raise BadQuery(
            "only a single SELECT statement is supported, and through Spark Connect only one that DuckDB can parse",
            hint="use a local or classic Spark session for this query",
        )
    return _tables(datasets, tree)


def _tables(datasets: QueryDatasets, tree: Any) -> Mapping[str, QueryTable]:
    """The datasets that a query names, without table functions such as range() and names that the query defines."""
    # From the syntax tree: get_table_names of DuckDB refuses joins with USING before the tables exist.
    named: set[str] = set()
    defined: set[str] = set()
    _collect(tree, named, defined)
    return _named_tables(datasets, named, defined)


def _named_tables(datasets: QueryDatasets, named: Iterable[str], defined: Collection[str]) -> Mapping[str, QueryTable]:
    tables: dict[str, QueryTable] = {}
    for name in sorted(named):
        try:
            tables[name] = datasets[name]
        except (UnknownDataset, BadName):
            if name.lower() not in defined:
                raise
    return tables


def _tree(connection: Any, query: str) -> Any:
    [(text,)] = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
    tree = json.loads(text)
    return None if tree["error"] else tree


def _collect(node: Any, named: set[str], defined: set[str]) -> None:
    if isinstance(node, list):
        for item in node:
            _collect(item, named, defined)
    elif isinstance(node, dict):
        if node.get("type") == "BASE_TABLE" and not node.get("schema_name"):
            named.add(str(node["table_name"]).lower())
        if isinstance(node.get("cte_map"), dict):
            defined.update(str(entry["key"]).lower() for entry in node["cte_map"]["map"])
        for item in node.values():
            _collect(item, named, defined)
