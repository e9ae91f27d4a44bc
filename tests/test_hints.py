"""Every hint leads on: the commands, options and calls that it names exist, and doing what it says works."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.cli.app import floodmark
from hint_texts import Hint, all_hints

HINTS = all_hints()
OTHER_NAMES = {
    *(
        "format",
        "mode",
        "save",
        "Model",
        "__call__",
        "astype",
        "cast",
        "duplicated",
        "drop",
        "float32",
        "foreachBatch",
        "list",
        "list_",
        "load",
    ),
    *(
        "Spec",
        "now",
        "option",
        "parquet",
        "reset_index",
        "set",
        "str",
        "timedelta",
        "concat",
        "DataFrame",
        "astimezone",
    ),
}
"""Names in hints that are not Floodmark's: Python, pandas, Arrow, Spark, and the user's own function."""

OTHER_KEYWORDS = {"openjdk", "changes", "state", "columns"}
"""Arguments in hints that are not Floodmark's, and options of Spark jobs."""


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function and class, and every public method of a class, by its last name."""
    for name in fm.__all__:
        thing = getattr(fm, name)
        if not callable(thing):
            continue
        yield name, thing
        if isinstance(thing, type):
            yield from (
                (member, value) for member, value in inspect.getmembers(thing, callable) if not member.startswith("_")
            )


CALLABLES: dict[str, list[Callable[..., Any]]] = {}
for _name, _thing in public_callables():
    CALLABLES.setdefault(_name, []).append(_thing)


def parameters(thing: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(thing).parameters)
    except ValueError:
        return set()


PARAMETERS = {name for things in CALLABLES.values() for thing in things for name in parameters(thing)}


def command(name: str) -> click.Command:
    found = floodmark.commands.get(name)
    assert found is not None, f"there is no command `floodmark {name}`"
    return found


def options(of: click.Command) -> set[str]:
    return {text for parameter in of.params for text in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def named(wanted: Callable[[Hint], Any]) -> Any:
    return pytest.mark.parametrize(
        "hint", [h for h in HINTS if wanted(h)], ids=lambda hint: f"{hint.module}:{hint.line}"
    )


def test_hints_are_found() -> None:
    assert len(HINTS) > 400
    assert sum(hint.names_something for hint in HINTS) > 130


@named(lambda hint: hint.commands)
def test_commands_of_hints_exist_with_these_options(hint: Hint) -> None:
    for verb, *arguments in hint.commands:
        found = command(verb)
        given = [one.partition("=")[0] for one in arguments if one.startswith("--")]
        assert set(given) <= options(found), hint
        values = sum(1 for one in given if not _is_flag(found, one))
        most = [p.nargs for p in found.params if isinstance(p, click.Argument)]
        positional = len(arguments) - len(given) - values
        assert -1 in most or positional <= sum(most), hint
        assert positional >= sum(p.required for p in found.params if isinstance(p, click.Argument)), hint


def _is_flag(of: click.Command, option: str) -> bool:
    [found] = [p for p in of.params if option in p.opts]
    return isinstance(found, click.Option) and found.is_flag


@named(lambda hint: hint.options)
def test_options_of_hints_exist(hint: Hint) -> None:
    known = set().union(*(options(each) for each in floodmark.commands.values()))
    assert set(hint.options) <= known, hint


@named(lambda hint: hint.calls)
def test_calls_of_hints_exist_with_these_arguments(hint: Hint) -> None:
    for call in hint.calls:
        if call.name in OTHER_NAMES or call.path in ("pd", "pa", "asyncio", "spark.conf", "spark.read"):
            continue
        found = CALLABLES.get(call.name)
        assert found, f"{call.name}() of {hint}"
        assert any(set(call.keywords) <= parameters(thing) for thing in found), f"{call.keywords} of {hint}"


@named(lambda hint: hint.keywords)
def test_arguments_of_hints_exist(hint: Hint) -> None:
    assert set(hint.keywords) - OTHER_KEYWORDS <= PARAMETERS, hint


# Following hints

NOON = datetime(2026, 11, 15, 12)
DATA = pa.table({"id": [1, 2], "n": pa.array([10, 20], pa.int32())})


@fm.udf(returns="int64", version="1")
def double(n: int) -> int:
    return 2 * n


@fm.udf(returns="int64", version="2")
def triple(n: int) -> int:
    return 3 * n


@dataclass
class World:
    """A lake with a keyed dataset, a dataset without a key and one without columns."""

    lake: fm.Lake = field(default_factory=lambda: fm.Lake("lake"))

    def __post_init__(self) -> None:
        self.people = self.lake.create("people", key="id")
        self.people.write(DATA)
        self.log = self.lake.create("log")
        self.log.write(DATA)
        self.new = self.lake.create("new")

    def computed(self) -> fm.Dataset:
        self.people.add_column("twice", double)
        self.people.backfill("twice", udf=double)
        return self.people


@dataclass(frozen=True)
class Case:
    """How a user gets an error with a hint, and what the user does then."""

    hint: str
    provoke: Callable[[World], Any]
    follow: Callable[[World], Any]


def timed(world: World) -> fm.Dataset:
    """A dataset with event times in UTC and a timeline."""
    made = world.lake.create("timed", event_time="at", partition_by="day", exist_ok=True)
    if made.schema is None:
        made.write(pa.table({"at": pa.array([NOON.replace(tzinfo=UTC)], pa.timestamp("us", "UTC"))}))
    return made


def text_file(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def damage(dataset: fm.Dataset) -> None:
    """Remove the slices of a dataset."""
    store = dataset.snapshot().objects.store
    for info in list(store.list(dataset.snapshot().objects.folder)):
        if "/data/" in info.key:
            store.delete(info.key)


def lossy(world: World) -> Any:
    return world.computed().write(world.people.to_pandas())


def _doubled() -> pd.DataFrame:
    frame = DATA.to_pandas()
    return pd.concat([frame, frame[["n"]]], axis=1)


def _as_of_noon(world: World) -> Any:
    return world.people.to_arrow(as_of=NOON)


CASES = [
    # Writes
    Case(
        "frame.drop(columns=['twice'])", lossy, lambda w: w.people.write(w.people.to_pandas().drop(columns=["twice"]))
    ),
    Case("did you mean 'id'?", lambda w: w.log.write(DATA.rename_columns(["ID", "n"])), lambda w: w.log.write(DATA)),
    Case(
        "add it to the dataset first: .evolve({'extra': …})",
        lambda w: w.log.write(DATA.append_column("extra", DATA["n"])),
        lambda w: (w.log.evolve({"extra": "int32"}), w.log.write(DATA.append_column("extra", DATA["n"]))),
    ),
    Case(
        "add them, with nulls where there is no value",
        lambda w: w.log.write(DATA.drop_columns(["n"])),
        lambda w: w.log.write(DATA.drop_columns(["n"]).append_column("n", pa.nulls(2))),
    ),
    Case(
        "keep one: frame.loc[:, ~frame.columns.duplicated()]",
        lambda w: w.new.write(_doubled()),
        lambda w: w.new.write(_doubled().loc[:, ~_doubled().columns.duplicated()]),
    ),
    Case(
        "rename one of them",
        lambda w: w.new.write(pa.table({"a": [1], "A": [1]})),
        lambda w: w.new.write(pa.table({"a": [1], "b": [1]})),
    ),
    Case(
        "rename it, for example to 'op_'; or create a dataset with vocab={'op': '_op'}",
        lambda w: w.new.write(pa.table({"op": [1]})),
        lambda w: (
            w.new.write(pa.table({"op_": [1]})),
            w.lake.create("other", vocab={"op": "_op"}).write(pa.table({"op": [1]})),
        ),
    ),
    Case(
        "drop or rename it; the dataset fills this column itself; only merge='changelog' reads it",
        lambda w: w.people.write(DATA.append_column("op", pa.array([0, 0]))),
        lambda w: (
            w.people.write(DATA),
            w.lake.create("moves", key="id", merge="changelog").write(DATA.append_column("op", pa.array([0, 0]))),
        ),
    ),
    Case(
        "keep one row per key, or use merge='upsert', where the last row wins",
        lambda w: w.lake.create("s", key="id", merge="snapshot").write(pa.table({"id": [1, 1]})),
        lambda w: (
            w.lake["s"].write(pa.table({"id": [1]})),
            w.lake.create("u", key="id", merge="upsert").write(pa.table({"id": [1, 1]})),
        ),
    ),
    Case(
        "fill or drop them: every column of a key needs a value",
        lambda w: w.people.write(pa.table({"id": [None, 3], "n": [1, 2]})),
        lambda w: w.people.write(pa.table({"id": [3], "n": [2]})),
    ),
    Case(
        "give the format: read='parquet', 'csv' or 'json'",
        lambda w: w.new.write(text_file("rows.txt", "id\n1\n")),
        lambda w: w.new.write(text_file("rows.txt", "id\n1\n"), read="csv"),
    ),
    Case(
        "cast the column to int32 first",
        lambda w: w.log.write(pa.table({"id": [1], "n": ["7"]})),
        lambda w: w.log.write(pa.table({"id": [1], "n": pa.array(["7"]).cast("int32")})),
    ),
    Case(
        "round the column first (pandas: .dt.floor('us'))",
        lambda w: timed(w).write(pd.DataFrame({"at": [pd.Timestamp(1, tz="UTC")]})),
        lambda w: timed(w).write(pd.DataFrame({"at": pd.Series([pd.Timestamp(1, tz="UTC")]).dt.floor("us")})),
    ),
    Case(
        "add one (pandas: .dt.tz_localize('UTC'))",
        lambda w: timed(w).write(pd.DataFrame({"at": [pd.Timestamp(0)]})),
        lambda w: timed(w).write(pd.DataFrame({"at": pd.Series([pd.Timestamp(0)]).dt.tz_localize("UTC")})),
    ),
    Case(
        "use a dataset with merge='upsert'",
        lambda w: w.lake.create("facts", key="id", merge="ledger").delete([1]),
        lambda w: w.lake.create("rows", key="id", merge="upsert", schema={"id": "int64"}).delete([1]),
    ),
    Case("create a dataset with key= to find rows by key", lambda w: w.log.get([1]), lambda w: w.people.get([1])),
    Case("write data to it first, or create it with schema=", lambda w: w.new.to_arrow(), lambda w: w.new.write(DATA)),
    # Columns of a dataset
    Case(
        "add a column with another name, or create another dataset with this type and write the rows to it",
        lambda w: w.log.evolve({"n": "int64"}),
        lambda w: (
            w.log.evolve({"n2": "int64"}),
            w.lake.create("wide", schema={"id": "int64", "n": "int64"}).write(DATA),
        ),
    ),
    Case(
        "leave it out: give only the new columns",
        lambda w: w.log.evolve({"n": "int32", "x": "int8"}),
        lambda w: w.log.evolve({"x": "int8"}),
    ),
    Case(
        "Add an optional field under a new name",
        lambda w: w.log.evolve({"id": "int64", "n": "int64"}),
        lambda w: w.log.evolve({"n64": "int64"}),
    ),
    Case(
        "choose another name, or call drop_column('twice') first",
        lambda w: w.computed().evolve({"twice": "int64"}),
        lambda w: (w.people.drop_column("twice"), w.people.evolve({"twice": "int64"})),
    ),
    Case(
        "choose another name for the computed column, or call alter_column() to change its function",
        lambda w: w.computed().add_column("twice", triple),
        lambda w: w.people.alter_column("twice", triple),
    ),
    Case(
        "did you mean 'twice'?",
        lambda w: w.computed().backfill("Twice"),
        lambda w: w.people.backfill("twice", udf=double),
    ),
    Case(
        "give a pyarrow type or its name",
        lambda w: w.log.evolve({"x": "integr"}),
        lambda w: w.log.evolve({"x": "int64"}),
    ),
    # Creating and opening
    Case(
        "name the columns that identify a row: key=['id']",
        lambda w: w.lake.create("x", merge="upsert"),
        lambda w: w.lake.create("x", merge="upsert", key=["id"]),
    ),
    Case(
        "leave out key=, or choose merge= from ledger",
        lambda w: w.lake.create("x", merge="append", key="id"),
        lambda w: (w.lake.create("x", merge="append"), w.lake.create("y", merge="ledger", key="id")),
    ),
    Case("leave out lookup=", lambda w: w.lake.create("x", lookup="id"), lambda w: w.lake.create("x")),
    Case(
        "leave out key= and merge= to open it",
        lambda w: w.lake.create("log", key="id", exist_ok=True),
        lambda w: w.lake.create("log", exist_ok=True),
    ),
    Case(
        "leave out vocab= to open it",
        lambda w: w.lake.create("log", vocab={"op": "_op"}, exist_ok=True),
        lambda w: w.lake.create("log", exist_ok=True),
    ),
    Case(
        "leave out partition_by= and the other",
        lambda w: (
            w.lake.create("plain", event_time="at"),
            w.lake.create("plain", event_time="at", partition_by="day", exist_ok=True),
        ),
        lambda w: w.lake.create("plain", event_time="at", exist_ok=True),
    ),
    Case(
        "add partition_by='day'",
        lambda w: w.lake.create("x", event_time="at", timeline="eager"),
        lambda w: w.lake.create("x", event_time="at", partition_by="day"),
    ),
    Case("did you mean 'people'?", lambda w: w.lake["peeple"], lambda w: w.lake["people"]),
    Case(
        "use event_time= for the column with the event time",
        lambda w: w.lake.create("x", vocab={"event_time": "at"}),
        lambda w: w.lake.create("x", event_time="at"),
    ),
    # Reading
    Case(
        "add one, as in 2026-11-15T12:00:00Z for UTC", _as_of_noon, lambda w: w.people.to_arrow(as_of=NOON.astimezone())
    ),
    Case(
        "give times a zone if the column has one",
        lambda w: timed(w).to_batches(where=pc.field("at") > NOON).read_all(),
        lambda w: timed(w).to_batches(where=pc.field("at") > NOON.replace(tzinfo=UTC)).read_all(),
    ),
    Case(
        "then store its new Dataset.position()",
        lambda w: w.log.changes_arrow(since=99),
        lambda w: w.log.changes_arrow(since=w.log.position()),
    ),
    Case(
        "give an offset, or a position as str(dataset.position()) writes it",
        lambda w: fm.Position.parse("9"),
        lambda w: fm.Position.parse(str(w.log.position())),
    ),
    Case(
        "choose from its columns: offset, op",
        lambda w: w.log.to_arrow(columns=["nope"]),
        lambda w: w.log.to_arrow(columns=["offset", "op"]),
    ),
    Case(
        "give one SELECT; use write() to write data",
        lambda w: w.lake.sql("delete from log"),
        lambda w: w.lake.sql("select * from log"),
    ),
    Case(
        "check the columns and functions: lake['name'].schema",
        lambda w: w.lake.sql("select nope from log"),
        lambda w: w.lake.sql(f"select {w.lake['log'].schema.names[0]} from log"),
    ),
    Case(
        "try_cast(… as …) gives null",
        lambda w: w.lake.sql("select cast('x' as int) from log"),
        lambda w: w.lake.sql("select try_cast('x' as int) from log"),
    ),
    Case(
        "in double quotes if they contain '-'",
        lambda w: (w.lake.create("a-b").write(DATA), w.lake.sql("select * from a-b where")),
        lambda w: w.lake.sql('select * from "a-b"'),
    ),
    Case(
        "call verify() to find out which",
        lambda w: (damage(w.log), w.lake.sql("select sum(n) from log")),
        lambda w: w.log.verify(),
    ),
    Case("call verify() to find out which", lambda w: (damage(w.log), w.log.to_arrow()), lambda w: w.log.verify()),
    Case(
        "read since 1: the first record left is 2",
        lambda w: (w.log.write(DATA), w.log.purge(before=2), w.log.changes_arrow(since=0)),
        lambda w: w.log.changes_arrow(since=1),
    ),
    Case(
        "create the dataset with event_time= and partition_by='day'",
        lambda w: w.log.timeline_batches().read_all(),
        lambda w: timed(w).timeline_batches().read_all(),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.hint[:40])
def test_doing_what_the_hint_says_works(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = World()
    with pytest.raises(fm.FloodmarkError) as refused:
        case.provoke(world)
    assert case.hint in refused.value.hint, str(refused.value)
    case.follow(world)
