"""What killed runs left beside outputs goes in the end; what runs, `why` and replay need stays, however old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.maintenance import garbage_sources
from floodmark.provenance.replay import replay
from floodmark.storage import sweep
from floodmark.storage.local import LocalStore
from floodmark.transforms import commit
from maintenance.worlds import Dying, Killed, World, collected, everything, stored
from profiles import sample
from transforms.worlds import in_this_process

ALL_PARTS = ("checkpoints", "info/transform/made", "info/transform/declared", "info/transform/chunks")


class Died(BaseException):
    """The process dies here."""


def twice(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    ids = rows["id"].to_pylist()
    if 13 in ids:
        raise ValueError("bad luck")
    return rows, pa.table({"id": ids, "m": [2 * n for n in rows["n"].to_pylist()]})


def step(version: str = "1") -> fm.BatchTransform:
    return fm.BatchTransform(twice, inputs=["a"], outputs=["first", "second"], version=version, name="twice")


def numbers(*ids: int, n: int = 1) -> pa.Table:
    return pa.table({"id": list(ids), "n": [n] * len(ids)})


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(old: World, tmp_path: Path) -> World:
    return old.copied(tmp_path / "lake")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A step of two versions that has run, failed for a key, and was killed once before it could commit."""
    world = World(tmp_path_factory.mktemp("old") / "lake")
    with in_this_process(), world.days_ago(40) as lake:
        lake.create("a", key="id").write(numbers(1, 2, 13))
        step().run(lake)
        lake["a"].write(numbers(1, 2, 3, n=2))
        step().run(lake)
        lake["a"].write(numbers(1, n=3))
        step("2").run(lake)  # only older blocks name the notes of version 1
        lake["a"].write(numbers(4, n=9))
        kill(lake, "2")
    return world


def kill(lake: fm.Lake, version: str = "1") -> None:
    """A run that puts everything that the commit of its first output needs, and dies; the second one is committed."""

    def dies(self: commit._Put) -> None:
        put(self)
        if self.made is not None:
            raise Died

    put = commit._Put.__call__
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit._Put, "__call__", dies)
        with pytest.raises(Died):
            step(version).run(lake)


def said(lake: fm.Lake) -> list[str]:
    """What replay says, and `why` of some records."""
    outcomes = [f"{one.dataset} {one.outcome}" for one in replay(lake, ["first", "second"], [step(), step("2")])]
    whys = [
        repr(lake.why(name, n)) for name in ("first", "second") for n in sample(range(lake[name].last_offset + 1), 3)
    ]
    return outcomes + whys


def left(lake: fm.Lake) -> dict[str, set[str]]:
    return {f"{name} {part}": stored(lake[name], part) for name in ("first", "second") for part in ALL_PARTS}


@pytest.mark.slow
def test_what_a_killed_run_put_goes_and_nothing_reads_otherwise(world: World):
    lake = world.lake()
    before, told, there = everything(lake), said(lake), left(lake)
    assert there["first info/transform/chunks"]

    gone = collected(lake)

    assert gone["first", "results of stopped runs"] == len(there["first info/transform/chunks"])
    assert left(lake)["first info/transform/chunks"] == set()
    one_less = len(there["first info/transform/made"]) - 1  # the note of the commit that was not
    assert len(left(lake)["first info/transform/made"]) == one_less
    assert gone["first", "transform meta"] == 1 + len(there["first checkpoints"] - left(lake)["first checkpoints"]) > 1
    assert left(lake)["second checkpoints"] == there["second checkpoints"]
    assert (everything(world.lake()), said(world.lake())) == (before, told)
    assert {outcome for outcome in told if outcome.endswith(("differs", "replayable"))} == set()
    step("2").run(world.lake())
    assert sorted(world.lake()["first"].to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]


def test_nothing_that_is_younger_than_a_week_goes(tmp_path: Path):
    world = World(tmp_path / "lake")
    with world.days_ago(6.9) as lake:
        lake.create("a", key="id").write(numbers(1, 2))
        step().run(lake)
        lake["a"].write(numbers(3))
        kill(lake)
    before = left(world.lake())

    assert collected(world.lake()) == {}

    assert left(world.lake()) == before


def test_failures_of_a_refused_run_stay(tmp_path: Path):
    world = World(tmp_path / "lake")

    def fails(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        raise ValueError("no good")

    broken = fm.BatchTransform(fails, inputs=["a"], outputs=["first", "second"], version="broken", name="twice")
    with world.days_ago(40) as lake:
        lake.create("a", key="id").write(numbers(1, 2))
        step().run(lake)
        for _ in range(2):
            lake["a"].write(numbers(3, 4, n=13))
            assert broken.run(lake, check=False).failed
            lake["a"].write(numbers(5))
    failures = broken.errors(world.lake()).to_pylist()
    assert len(failures) == 5

    collected(world.lake())

    assert broken.errors(world.lake()).to_pylist() == failures
    assert step().run(world.lake()).keys == 3


def test_results_of_a_stopped_run_stay_for_a_month_and_are_used(tmp_path: Path):
    world = World(tmp_path / "lake")
    with world.days_ago(29) as lake:
        lake.create("a", key="id").write(numbers(1, 2))
        kill(lake)

    collected(world.lake())

    report = step().run(world.lake())
    assert report.reused > 0


def test_a_run_that_comes_back_to_what_is_about_to_go_keeps_it(world: World):
    """The same files are put again between the looking and the removing: they are young then."""
    lake = world.lake()
    objects = lake["first"].snapshot().objects
    source, oldest = garbage_sources.MetaGarbage(objects), world.now - 7 * 86_400
    found = sweep.find(source, oldest).objects
    assert found
    objects.store.put_if_absent(found[0].key, objects.store.get(found[0].key))

    assert sweep.collect(source, oldest).objects == found[1:]


def test_a_manifest_that_cannot_be_read_keeps_everything(world: World):
    lake = world.lake()
    objects = lake["first"].snapshot().objects
    newest = lake["first"].snapshot().state.checkpoint
    assert newest is not None
    path = objects.store.local_path(objects.checkpoint_key(newest))
    assert path is not None
    path.write_bytes(b"{}")

    assert sweep.find(garbage_sources.MetaGarbage(objects), world.now).objects == ()


@pytest.mark.slow
def test_a_collection_that_is_killed_harms_nothing(world: World):
    lake = world.lake()
    before, told = everything(lake), said(lake)
    for unlinks in (0, 2, 5):
        with pytest.raises(Killed):
            collected(world.lake(LocalStore(world.folder, Dying(unlinks))))
    assert everything(world.lake()) == before
    collected(world.lake())
    assert (everything(world.lake()), said(world.lake())) == (before, told)


@fm.udf(returns="float64", on_error=[fm.Skip(ZeroDivisionError)])
def inverse(n: int) -> float:
    return 1 / n


@pytest.mark.spark
def test_rows_that_a_view_failed_for_are_known_however_old_they_are(tmp_path: Path, spark):
    world = World(tmp_path / "lake")
    with world.days_ago(40) as lake:
        lake.create("a", key="id").write(pa.table({"id": [1, 2], "n": [1, 0]}))
        view = lake.view("inverses", source="a", select={"id": "id", "inverse": inverse})
        view.refresh()
        failed = view.errors()
    assert failed.num_rows == 1

    collected(world.lake())

    lake = world.lake()
    assert lake.view("inverses").errors().equals(failed)
    lake["a"].write(pa.table({"id": [3], "n": [2]}))
    lake.view("inverses").refresh()
    assert sorted(lake["inverses"].to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_checkpoint_of_an_unknown_kind_keeps_everything(world: World, monkeypatch: pytest.MonkeyPatch):
    before = left(world.lake())
    for kind in ("KIND", "SecondaryNote.KIND", "DatatableNote.KIND", "ViewNote.KIND"):
        monkeypatch.setattr(f"floodmark.backup.checkpoint_notes.{kind}", "another kind")

    collected(world.lake())

    assert {name: files for name, files in left(world.lake()).items() if not name.endswith("chunks")} == {
        name: files for name, files in before.items() if not name.endswith("chunks")
    }
