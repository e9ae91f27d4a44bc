"""TPC-H as a lake: its tables with their keys, its 22 queries, and random changes of its rows.

The queries have the values of the specification. Where a `limit` may cut between equal rows, `order by` has one column
more, so that there is one right answer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import floodmark as fm

KEYS: Mapping[str, Sequence[str]] = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "customer": ["c_custkey"],
    "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}
"""The tables, each after the tables that it refers to, with their primary keys."""

LOOKUPS = {"lineitem": "l_orderkey", "partsupp": "ps_partkey"}
"""By table, the first column of its key, by which its rows can be looked up too."""

LINES_PER_ORDER = 7  # at most

QUERIES = {
    file.stem: file.read_text("utf-8") for file in sorted((Path(__file__).parent / "tpch_queries").glob("*.sql"))
}
"""The 22 queries, by their names `q01` to `q22`."""


def generate(folder: Path, scale: float) -> Path:
    """Write the tables as Parquet files; scale 1 has six million lines."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    command = [program, "parquet", "--scale-factor", str(scale), "--output-dir", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def read_table(folder: Path, table: str) -> pa.Table:
    """A generated table, with the types that Floodmark and Spark have in common."""
    rows = pq.read_table(folder / f"{table}.parquet")
    types = [pa.string() if pa.types.is_string_view(field.type) else field.type for field in rows.schema]
    return rows.cast(pa.schema(list(zip(rows.column_names, types, strict=True))))


def load(lake: fm.Lake, folder: Path) -> None:
    """Create the tables as datasets with keys."""
    for table, key in KEYS.items():
        lake.create(table, key=key, lookup=LOOKUPS.get(table)).write(read_table(folder, table))


def change_orders(lake: fm.Lake, seed: int, share: float = 0.001) -> int:
    """A third of the chosen orders is copied under new keys, a third deleted, a third gets other prices; with lines.

    Returns the number of chosen orders.
    """
    rng = np.random.default_rng(seed)
    keys = lake["orders"].to_arrow(columns=["o_orderkey"])["o_orderkey"].to_numpy()
    chosen = rng.choice(keys, max(3, int(len(keys) * share)), replace=False)
    copied, deleted, corrected = np.array_split(chosen, 3)
    first = int(keys.max()) + 1
    for table, key, price in (("orders", "o_orderkey", "o_totalprice"), ("lineitem", "l_orderkey", "l_extendedprice")):
        rows = _rows_of_orders(lake, table, copied)
        places = pc.index_in(rows[key].combine_chunks(), pa.array(copied))
        renumbered = _replace(rows, key, pa.array(np.arange(first, first + len(copied))).take(places))
        rows = _rows_of_orders(lake, table, corrected)
        lake[table].write(pa.concat_tables([renumbered, _replace(rows, price, _raise(rows[price], rng))]))
        lake[table].delete(_rows_of_orders(lake, table, deleted).select(KEYS[table]))
    return len(chosen)


def change_references(lake: fm.Lake, seed: int) -> None:
    """Suppliers and customers move to other nations, parts get other names, and a nation is renamed."""
    rng = np.random.default_rng(seed)
    for table, column in (("supplier", "s_nationkey"), ("customer", "c_nationkey")):
        rows = _some(lake, table, rng)
        lake[table].write(_replace(rows, column, pa.array(rng.integers(0, 25, len(rows)))))
    parts, others = _some(lake, "part", rng), _some(lake, "part", rng)
    moved = ["p_name", "p_brand", "p_type", "p_size", "p_container"]
    for column in moved:
        parts = _replace(parts, column, others[column])
    lake["part"].write(parts)
    stock = _some(lake, "partsupp", rng)
    lake["partsupp"].write(_replace(stock, "ps_supplycost", _raise(stock["ps_supplycost"], rng)))
    nations = lake["nation"].to_arrow()
    one, other = rng.choice(len(nations), 2, replace=False)
    both = nations.take([one, other])
    lake["nation"].write(_replace(both, "n_name", both["n_name"].take([1, 0])))


def _rows_of_orders(lake: fm.Lake, table: str, orders: npt.NDArray[np.int64]) -> pa.Table:
    if table == "orders":
        return lake[table].get(pa.table({"o_orderkey": orders}))
    numbers = np.tile(np.arange(1, LINES_PER_ORDER + 1, dtype=np.int32), len(orders))
    return lake[table].get(pa.table({"l_orderkey": np.repeat(orders, LINES_PER_ORDER), "l_linenumber": numbers}))


def _some(lake: fm.Lake, table: str, rng: np.random.Generator) -> pa.Table:
    rows = lake[table].to_arrow()
    return rows.take(rng.choice(len(rows), max(2, len(rows) // 500), replace=False))


def _raise(prices: pa.ChunkedArray, rng: np.random.Generator) -> pa.ChunkedArray:
    cents = pa.array(rng.integers(1, 10_000, len(prices))).cast(pa.decimal128(19, 0))
    return pc.add(prices, pc.multiply(cents, pa.scalar(1, pa.decimal128(3, 2)))).cast(prices.type)


def _replace(rows: pa.Table, column: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    at = rows.schema.get_field_index(column)
    return rows.set_column(at, rows.schema.field(at), values.cast(rows.schema.field(at).type))
