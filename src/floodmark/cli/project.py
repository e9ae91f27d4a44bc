"""`floodmark init` and `floodmark new`: create a lake or a project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli import output
from floodmark.cli.command import TOML, Invocation, lake_in_toml, marker_folder, verb
from floodmark.cli.exit_codes import BadToml, CommandError, NoLake

if TYPE_CHECKING:
    from floodmark.storage.store import Store

_BUCKET_MARK = "runs/init"
"""An object by which `init` finds that a bucket without datasets is a lake already."""


@verb("init")
@click.option("--toml", is_flag=True, help=f"Also write a {TOML} with this lake in this folder.")
def init(call: Invocation, toml: bool) -> None:
    """Create an empty lake; an existing lake is not changed.

    \b
    floodmark init
    floodmark init --lake /data/lake --toml
    """
    from floodmark.lake import Lake

    place = call.place()
    lake = Lake(place.url)
    mark = marker_folder(lake)
    path = Path.cwd() / TOML
    if toml:
        _check_toml(path, lake.store.url)
    if mark is None:
        created = _create_in_bucket(lake.store)
    else:
        created = not mark.is_dir()
        _create_marker(mark)
    if toml and not path.exists():
        path.write_text(f"lake = {json.dumps(_relative(lake.store.url), ensure_ascii=False)}\n", "utf-8")
    if call.as_json:
        output.emit(lake=lake.store.url, created=created, toml=str(path) if toml else None)
        return
    click.echo(f"created an empty lake at {lake.store.url}" if created else f"{lake.store.url} is already a lake")
    if toml:
        click.echo(f"{path} names it")


def _create_in_bucket(store: Store) -> bool:
    """Mark a bucket as a lake; False if it was one. The first write also checks that the bucket is usable."""
    is_new = store.put_if_absent(_BUCKET_MARK, b"A lake of Floodmark\n")
    return is_new and next(iter(store.list("names")), None) is None


def _create_marker(mark: Path) -> None:
    try:
        mark.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NoLake(
            f"{mark.parent} cannot be a lake: {error.filename} is a file",
            hint="name a folder, or a path that does not exist yet, with --lake",
            lake=str(mark.parent),
        ) from error


def _check_toml(path: Path, url: str) -> None:
    """Refuse a floodmark.toml that names no lake or another lake, before anything is created."""
    if not path.exists():
        return
    said = lake_in_toml(path)
    if said is None or (said != url and Path(said).resolve() != Path(url).resolve()):
        what = "names no lake" if said is None else f"names the lake {said}"
        raise BadToml(
            f"{path} already exists and {what}",
            hint=f"add this line to the file: lake = {json.dumps(_relative(url), ensure_ascii=False)}",
            path=str(path),
        )


def _relative(url: str) -> str:
    """The path of a lake; relative if it is below this folder, so that both can move together."""
    if "://" in url:
        return url
    folder = Path(url).resolve()
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


@verb("new")
@click.argument("name", metavar="FOLDER")
def new(call: Invocation, name: str) -> None:
    """Create a project: a pipeline, example data, and a lake.

    \b
    floodmark new my-project
    cd my-project
    floodmark run

    The folder must be new or empty.
    """
    from floodmark.cli.command import marker_folder
    from floodmark.lake import Lake

    folder = Path(name).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(
            f"{folder} already exists and is not empty",
            hint="name a new folder, or run `floodmark init` in this one to create a lake",
            path=str(folder),
        )
    written = []
    for path, text in FILES.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("{name}", folder.resolve().name), "utf-8")
        written.append(path)
    lake = Lake(folder / "lake")
    if (mark := marker_folder(lake)) is not None:
        mark.mkdir(parents=True, exist_ok=True)
    if call.as_json:
        output.emit(folder=str(folder), files=written, lake=lake.store.url)
        return
    click.echo(f"created {folder} with {', '.join(written)} and an empty lake")
    call.note(f"next: cd {name}; floodmark run")


_TOML = """\
lake = "lake"
pipeline = "pipeline.py"

[defaults]
workers = 4                 # steps that run at the same time

# [spark]                   # settings of the Spark session, for large work and for views
# "spark.master" = "local[4]"
"""

_PIPELINE = '''\
"""Sales of a few shops: load files, convert prices, and compute totals."""

import pyarrow as pa
import pyarrow.compute as pc

from floodmark import DatasetSpec, Pipeline, Source

RATES = {"EUR": 1.0, "NOK": 0.085, "USD": 0.92}

sales = DatasetSpec("sales", key="id", event_time="at")
in_euros = DatasetSpec("in_euros", key="id")
totals = DatasetSpec("totals", key="shop")

pipeline = Pipeline([sales, Source(sales, files="data/*.csv")])


@pipeline.transform(inputs=[sales], outputs=[in_euros])
def convert(sales: pa.Table) -> pa.Table:
    """Called with new and changed sales only."""
    rates = pa.array([RATES[currency] for currency in sales["currency"].to_pylist()], pa.float64())
    return pa.table({"id": sales["id"], "shop": sales["shop"], "euros": pc.multiply(sales["price"], rates)})


@pipeline.table(inputs=[in_euros], outputs=[totals])
def total(sales: pa.Table) -> pa.Table:
    """Called with all sales when there are new ones. Only totals that changed are written."""
    grouped = sales.group_by("shop").aggregate([("euros", "sum"), ("euros", "count")])
    return pa.table(
        {
            "shop": grouped["shop"],
            "euros": pc.round(grouped["euros_sum"], 2),
            "sales": grouped["euros_count"],
        }
    )


@pipeline.column(sales, returns="string")
def size(price: float) -> str:
    """A computed column of `sales`: computed once per row."""
    return "large" if price >= 100 else "small"


# A view stores the result of a query. Spark refreshes it, which needs Java:
#
# @pipeline.view()
# def by_currency():
#     return "select currency, count(*) as sales from sales group by currency"
'''

_JANUARY = """\
id,at,shop,currency,price
1,2026-01-05T09:10:00Z,Oslo,NOK,249.0
2,2026-01-05T11:45:00Z,Rome,EUR,18.5
3,2026-01-06T14:20:00Z,Oslo,NOK,89.0
4,2026-01-08T16:05:00Z,Boston,USD,120.0
"""

_FEBRUARY = """\
id,at,shop,currency,price
5,2026-02-02T10:00:00Z,Rome,EUR,42.0
6,2026-02-03T12:30:00Z,Boston,USD,15.0
2,2026-01-05T11:45:00Z,Rome,EUR,19.5
"""

_README = """\
# {name}

```
floodmark run            # load data/*.csv, convert, compute totals and the column
floodmark run            # nothing to do
floodmark status         # what is up to date
floodmark graph          # what each step reads
floodmark sql "select * from totals order by shop"
```

Add a file to `data/`, or change a line of one, and run again: only what changed is processed. Change `RATES` in
`pipeline.py`, and every sale is converted again. `floodmark run --watch` runs whenever files change.

`floodmark.toml` names the lake. In a copy of this folder, `floodmark init` creates an empty lake.
"""

FILES = {
    "floodmark.toml": _TOML,
    "pipeline.py": _PIPELINE,
    "data/2026-01.csv": _JANUARY,
    "data/2026-02.csv": _FEBRUARY,
    "README.md": _README,
    ".gitignore": "lake/\n__pycache__/\n",
}
