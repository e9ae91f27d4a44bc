"""`floodmark sql`: a query over the datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli import document, interrupts
from floodmark.cli.call import Call, verb
from floodmark.cli.place import open_lake

if TYPE_CHECKING:
    import pyarrow as pa


@verb("sql")
@click.argument("query")
@click.option("--spark", is_flag=True, help="Let Spark answer, in its dialect, instead of DuckDB.")
def sql(call: Call, query: str, spark: bool) -> None:
    """Answer an SQL query; the tables are the datasets.

    \b
    floodmark sql "select day, sum(fare) from trips group by day"
    floodmark sql 'select * from "bike-trips" limit 5' --json | jq '.rows[]'
    floodmark sql --spark "select count(*) from trips"

    A terminal shows the first 200 rows; a pipe and --json get all of them.
    """
    from floodmark.cli import records

    table = _by_spark(call, query) if spark else _by_duckdb(call, query)
    if call.as_json:
        columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
        document.emit(columns=columns, rows=records.objects(table))
        return
    records.show(call, table, "row")
    if table.num_rows == 0:
        call.note("no rows")


def _by_duckdb(call: Call, query: str) -> pa.Table:
    lake = call.lake()
    return interrupts.wait_for(lambda: lake.sql(query))


def _by_spark(call: Call, query: str) -> pa.Table:
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from floodmark.engine import Profile, launch
    from floodmark.ledger.errors import BadQuery

    # PySpark would write the whole Java stack of a failed query to stderr; we say what went wrong ourselves.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    runtime = call.runtime(Profile.SHORT)
    lake = open_lake(call.place(), runtime)
    with call.waiting("asking Spark"), runtime.session:
        try:
            return lake.sql_spark(query).toArrow()
        except BaseException as error:
            if interrupts.pressed():
                launch.kill_jvm()  # a query that nobody waits for any more; the session has nothing else to end
                raise KeyboardInterrupt from error
            if not isinstance(error, PySparkException):
                raise
            # Some errors show only when rows are computed.
            message = f"Spark cannot answer: {str(error).strip()}"
            raise BadQuery(message, hint="the query was understood; it failed on the data") from error
