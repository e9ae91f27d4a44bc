"""SQL over the datasets of a lake, by DuckDB in this process or by Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from floodmark.ledger.errors import BadName, BadQuery, UnknownDataset
from floodmark.ledger.scan import Scan
from floodmark.ledger.spark_read import spark_frame

_QUOTING = "table names are dataset names; put quotes around one with '-' or '.' in it"


class Table(Protocol):
    """A dataset that a query reads."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema | None: ...

    def scan(self) -> Scan: ...


class Datasets(Protocol):
    """Where the tables of a query come from."""

    def __getitem__(self, name: str) -> Table: ...

    def __iter__(self) -> Iterator[Table]: ...


def query_duckdb(datasets: Datasets, query: str) -> pa.Table:
    """The answer as an Arrow table. Columns and filters are pushed down into the slices."""
    import duckdb

    from floodmark.ledger.duckdb_table import raise_failure  # late, as duckdb: it imports pandas

    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    tables = []
    try:
        _refuse_all_but_questions(connection, query)
        for name, dataset in _tables(connection, datasets, query).items():
            scan = dataset.scan()
            tables.append(scan.filtered())
            columns = ", ".join('"' + c.replace('"', '""') + '"' for c in scan.data_names)
            connection.register("records of " + name, tables[-1])
            connection.execute(f'create view "{name}" as select {columns} from "records of {name}"')
        return _interruptible(connection, lambda: connection.sql(query).to_arrow_table())
    except duckdb.Error as error:
        for table in tables:
            raise_failure(table, error)
        raise BadQuery(f"DuckDB cannot answer: {str(error).strip()}", hint=_QUOTING) from error
    finally:
        connection.close()


def _refuse_all_but_questions(connection: Any, query: str) -> None:
    """One SELECT (or SHOW, DESCRIBE, EXPLAIN …): SQL here changes nothing, neither in the lake nor on the disk."""
    kinds = [statement.type.name for statement in connection.extract_statements(query)]
    if len(kinds) != 1 or kinds[0] not in ("SELECT", "EXPLAIN"):
        said = " and ".join(kinds) if kinds else "nothing"
        raise BadQuery(f"the query is {said}, not one question", hint="ask one SELECT; data is written with write()")


def _interruptible(connection: Any, ask: Callable[[], pa.Table]) -> pa.Table:
    """Ask in a thread, so that Ctrl-C reaches this one and ends the query."""
    with ThreadPoolExecutor(1) as asking:
        answer = asking.submit(ask)
        try:
            return answer.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def query_spark(datasets: Datasets, query: str, spark: Any) -> Any:
    """The answer as a Spark frame. The datasets are views of a session of their own, so that no view is shadowed."""
    from pyspark.errors import AnalysisException, ParseException

    isolated = spark.newSession() if hasattr(spark, "newSession") else spark
    tree = _parsed(query)
    for name, dataset in _tables_for_spark(datasets, query).items():
        frame = spark_frame(_meant(dataset.scan(), query, tree), isolated)
        frame.createOrReplaceTempView(name if name.isidentifier() else f"`{name}`")
    try:
        return isolated.sql(query)
    except (AnalysisException, ParseException) as error:
        raise BadQuery(f"Spark cannot answer: {str(error).strip()}", hint=_QUOTING) from error


def _meant(scan: Scan, query: str, tree: Any) -> Scan:
    """The scan with its data columns, less those beside the records that a query cannot mean.

    Spark reads records alone by itself, but columns beside them through Python, whether the query uses them or not.
    """
    if tree is None or _means_all_columns(tree):
        return replace(scan, columns=scan.data_names)
    said = query.lower()
    own = scan.layout.shown.names
    others = [name for name in scan.data_names if name not in own]
    return replace(scan, columns=(*own, *[name for name in others if name.lower() in said]))


def _means_all_columns(node: Any) -> bool:
    """Whether columns may play a part in a query that are not named in it."""
    if isinstance(node, list):
        return any(map(_means_all_columns, node))
    if not isinstance(node, dict):
        return False
    unnamed = (
        node.get("class") == "STAR" or node.get("type") in ("PIVOT", "SHOW_REF") or node.get("ref_type") == "NATURAL"
    )
    return unnamed or any(map(_means_all_columns, node.values()))


def _parsed(query: str) -> Any:
    """A query as DuckDB parses it, None when it is nothing that DuckDB knows."""
    import duckdb

    try:
        with duckdb.connect() as connection:
            return _tree(connection, query)
    except duckdb.Error:
        return None


def _tables_for_spark(datasets: Datasets, query: str) -> Mapping[str, Table]:
    """The datasets that a query names; all of them when only Spark can parse it."""
    import duckdb

    try:
        with duckdb.connect() as connection:
            return _tables(connection, datasets, query)
    except duckdb.Error:
        return {dataset.name: dataset for dataset in datasets if dataset.schema is not None}


def _tables(connection: Any, datasets: Datasets, query: str) -> Mapping[str, Table]:
    """The datasets that a query names; table functions such as range() and names it defines are left to DuckDB."""
    named, defined = _table_names(connection, query)
    found: dict[str, Table] = {}
    for name in sorted(named):
        try:
            found[name] = datasets[name]
        except (UnknownDataset, BadName):
            if name not in defined:
                raise
    return found


def _table_names(connection: Any, query: str) -> tuple[set[str], set[str]]:
    """The tables that a query reads and the names that it defines itself (WITH), both in lower case."""
    # Parsed, not bound: DuckDB's own get_table_names refuses joins with USING while there are no tables yet.
    tree = _tree(connection, query)
    if tree is None:  # it does not parse, which this call then says, or is no plain SELECT
        return {name.lower() for name in connection.get_table_names(query)}, set()
    named: set[str] = set()
    defined: set[str] = set()
    _collect(tree, named, defined)
    return named, defined


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
