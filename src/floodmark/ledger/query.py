"""SQL over the datasets of a lake, by DuckDB in this process or by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from floodmark.ledger.dataset import Dataset
from floodmark.ledger.errors import BadQuery, UnknownDataset


class Datasets(Protocol):
    """Where the tables of a query come from."""

    def __getitem__(self, name: str) -> Dataset: ...


def query_duckdb(datasets: Datasets, query: str) -> pa.Table:
    """The answer as an Arrow table. Columns and filters are pushed down into the slices."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    try:
        for name, dataset in _tables(connection, datasets, query).items():
            scan = dataset.scan()
            columns = ", ".join('"' + c.replace('"', '""') + '"' for c in scan.layout.data.names)
            connection.register("records of " + name, scan.dataset())
            bounds = scan.selection
            offset = scan.layout.vocab.offset
            only = "" if bounds.is_whole else f' where "{offset}" >= {bounds.start} and "{offset}" < {bounds.end}'
            connection.execute(f'create view "{name}" as select {columns} from "records of {name}"{only}')
        return connection.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise BadQuery(
            f"DuckDB cannot answer: {error}", hint="table names are dataset names; quote those with '-'"
        ) from error
    finally:
        connection.close()


def query_spark(datasets: Datasets, query: str, spark: Any) -> Any:
    """The answer as a Spark frame. Each dataset of the query becomes a temporary view of its name."""
    import duckdb
    from pyspark.errors import AnalysisException, ParseException

    try:
        with duckdb.connect() as connection:
            names = _tables(connection, datasets, query)
        for name, dataset in names.items():
            dataset.read().createOrReplaceTempView(f"`{name}`" if not name.isidentifier() else name)
        return spark.sql(query)
    except (AnalysisException, ParseException, duckdb.Error) as error:
        raise BadQuery(
            f"Spark cannot answer: {error}", hint="table names are dataset names; quote those with '-'"
        ) from error


def _tables(connection: Any, datasets: Datasets, query: str) -> Mapping[str, Dataset]:
    """The datasets that a query names; names that DuckDB itself knows (such as range()) are left to it."""
    found: dict[str, Dataset] = {}
    # Names differ by more than capitals, in SQL and in a lake.
    for name in sorted({name.lower() for name in connection.get_table_names(query)}):
        try:
            found[name] = datasets[name]
        except UnknownDataset as error:
            raise UnknownDataset(error.message, hint=error.hint, name=name) from error
    return found
