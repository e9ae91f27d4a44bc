"""Forged objects whose hashes and checksums fit: an error of ours that names the dataset, and the others are served."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults import operations as op
from faults.forging import (
    Content,
    can_be_forged,
    content_of,
    is_block,
    is_document,
    other_object,
    reencoded,
    sealed,
    store_of,
)
from floodmark.chain import wire
from floodmark.chain.events import SourceState
from floodmark.chain.ids import DatasetId
from floodmark.cli.datasets import summarise
from floodmark.dataset import Dataset
from floodmark.ledger.block_attributes import PURGE_SOURCE
from floodmark.ledger.witness import STATE_FOLDER
from floodmark.maintenance.doctor import check_lake
from floodmark.maintenance.gc import find_garbage
from floodmark.storage.memory import MemoryStore
from profiles import seeds
from transforms.worlds import in_this_process
from views.refresh_worlds import NoSession

GOOD = "good"
MEMORY = 2 << 30
STEPS: tuple[op.Act, ...] = (
    *(op.viewed, op.refresh_answered, op.sold, op.refresh_answered),
    lambda place: place.lake.rename("orders", "bought"),
    *(op.keyed, op.more, op.emptied, op.fold, op.add_column, op.backfill, op.purge, op.erase, op.more),
    *(op.appended, op.append, op.purge_log, op.evolve, op.of_step, op.run, op.changed, op.run, op.timed, op.late),
    *(op.files, op.ingest),
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_FOLDER, str(tmp_path))


def lake_of(store: MemoryStore) -> fm.Lake:
    return fm.Lake(store, runtime=fm.Runtime(session=NoSession(), checkpoint_seconds=0.001))


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Content:
    """A lake with an object of every kind, and a dataset that is not forged."""
    store, folder = MemoryStore(), tmp_path_factory.mktemp("files")
    with in_this_process(), pytest.MonkeyPatch.context() as patched:
        patched.setenv(STATE_FOLDER, str(folder / "state"))
        for step in STEPS:
            step(op.Place(lake_of(store), folder))
        lake_of(store).create(GOOD, key="id").write(op._rows((1, "a", 1), (2, "b", 2)))
        for dataset in lake_of(store):
            assert dataset.verify().ok
    return content_of(store)


# What users do

READS: tuple[Callable[[Dataset], Any], ...] = (
    *(Dataset.to_arrow, Dataset.count, Dataset.changes_arrow, Dataset.columns, Dataset.find_garbage),
    lambda dataset: list(dataset.log()),
    lambda dataset: list(dataset.timeline_batches()),
    lambda dataset: dataset.get([1, 2]),
    lambda dataset: dataset.history([1]),
    lambda dataset: dataset.to_arrow(as_of=1),
    lambda dataset: (dataset.schema, dataset.strategy, dataset.event_time),
)


def tried(act: Callable[[], Any]) -> Any:
    """What it returns, or the error if it is ours."""
    try:
        return act()
    except fm.FloodmarkError as error:
        return error


@contextmanager
def little_memory() -> Iterator[None]:
    """No number in an object may make us allocate what it claims."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def assert_served(content: Content, name: str) -> list[str]:
    """Do what users do with a lake in which this dataset is forged; the datasets of which verify names problems."""
    with little_memory():
        listed, _ = summarise(lake_of(store_of(content)))
        assert GOOD in [one.name for one in listed]
        assert GOOD not in [getattr(found, "dataset", None) for found in find_garbage(lake_of(store_of(content)))]
        assert [found.state for found in check_lake(lake_of(store_of(content))) if found.what.endswith(GOOD)] == ["ok"]
        problems = []
        lake = lake_of(store_of(content))
        for dataset in lake:
            report = tried(dataset.verify)
            if isinstance(report, fm.FloodmarkError) or not report.ok:
                problems.append(dataset.name)
            if dataset.name == name:
                for read in READS:
                    tried(partial(read, dataset))
                tried(partial(lake.readers, dataset.name))
                tried(partial(lake.sql, f'select count(*) from "{dataset.name}"'))
        assert GOOD not in problems
    return problems


# Each object, changed in one place

FORGED_PER_RUN = 60


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(FORGED_PER_RUN))
def test_forged_value_is_an_error_of_ours_and_other_datasets_are_served(content, seed):
    chance = random.Random(seed)
    keys = [key for key, data in sorted(content.items()) if can_be_forged(key, data) and owner(content, key) != GOOD]
    blocks = [key for key in keys if is_block(key)]
    key = chance.choice(blocks if chance.random() < 0.4 else [key for key in keys if not is_block(key)])
    data = other_object(chance, key, content[key])
    if data is not None:
        assert_served(sealed(content, key, data), owner(content, key))


def owner(content: Content, key: str) -> str:
    """The name of the dataset that an object belongs to."""
    kind, folder, *_ = key.split("/")
    if kind == "names":
        return folder
    ids = {json.loads(data)["id"]: json.loads(data)["name"] for name, data in content.items() if name[:6] == "names/"}
    return str(ids[DatasetId.from_bytes(bytes.fromhex(folder)).text])


# Objects that once ended every command


def with_facts(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        return reencoded(data, change)

    return changed


def with_event(**values: Any) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        block = wire.decode(data)
        return wire.encode(replace(block, event=replace(block.event, **values)))

    return changed


def with_size(data: bytes) -> bytes:
    block = wire.decode(data)
    new = replace(block.event.new_data, size=1 << 63)
    return wire.encode(replace(block, event=replace(block.event, new_data=new)))


def is_purge(data: bytes) -> bool:
    state = getattr(wire.decode(data).event, "new_source_state", None)
    return state is not None and state.source_name == PURGE_SOURCE


def has_data(data: bytes) -> bool:
    return getattr(wire.decode(data).event, "new_data", None) is not None


NESTED = b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
PURGED_TO_NO_NUMBER = with_event(new_source_state=SourceState(PURGE_SOURCE, "floodmark.dev/offset", "²"))

CRAFTED: dict[str, tuple[str, Callable[[bytes], bool], Callable[[bytes], bytes]]] = {
    "purge to no number": ("/blocks/", is_purge, PURGED_TO_NO_NUMBER),
    "size of 2^63": ("/blocks/", has_data, with_size),
    "nested name": ("names/k", bool, lambda _: NESTED),
    "nested file log": ("info/sources/files.json", bool, lambda _: NESTED),
    "folded files without fields": ("info/fold/manifest", bool, with_facts(lambda facts: {**facts, "files": ["x"]})),
    "root without a number": ("info/timeline/root", bool, with_facts(lambda facts: {**facts, "purged_before": "1"})),
    "root that lacks a field": ("info/timeline/root", bool, with_facts(lambda facts: {**facts, "manifests": None})),
    "catalog with a text": ("columns/catalog", bool, with_facts(lambda facts: {**facts, "fragment_rows": "4"})),
    "fragments of no rows": ("columns/catalog", bool, with_facts(lambda facts: {**facts, "fragment_rows": 0})),
    "key index from -1": ("info/keys/manifests/", bool, with_facts(lambda facts: {**facts, "start": -1})),
    "index without totals": ("info/index/", bool, with_facts(lambda facts: {**facts, "totals": []})),
    "index of 2^80 blocks": ("info/index/", bool, with_facts(lambda facts: {**facts, "blocks": 1 << 80})),
}


@pytest.mark.parametrize("crafted", CRAFTED)
def test_crafted_object_ends_no_command(content, crafted):
    where, chosen, change = CRAFTED[crafted]
    found = sorted(
        key for key, data in content.items() if where in key and chosen(data) and owner(content, key) != GOOD
    )
    assert_served(sealed(content, found[-1], change(content[found[-1]])), owner(content, found[-1]))


def test_column_that_is_computed_from_itself_is_refused(content):
    def change(facts: dict[str, Any]) -> dict[str, Any]:
        [column] = facts["columns"]
        return {**facts, "columns": [{**column, "inputs": [column["name"]]}]}

    [key] = [key for key in content if key.endswith("columns/catalog")]
    lake = lake_of(store_of({**content, key: reencoded(content[key], change)}))
    with pytest.raises(fm.FloodmarkError, match="computed from itself"):
        lake["k"].columns()


def test_manifest_does_not_decide_how_much_memory_is_used(content):
    [key, *_] = [key for key in content if "info/timeline/manifests/" in key]

    def enlarged(section: bytes) -> bytes:
        return (1 << 60).to_bytes(8, "little") + section[8:]

    data = reencoded(content[key], sections={"data": enlarged})
    assert_served(sealed(content, key, data), owner(content, key))


def test_sealed_objects_fit_each_other(content):
    """A change that no check of values refuses: everything that has the object's hash is found under its new name."""
    [key] = [key for key, data in content.items() if is_block(key) and is_purge(data)][:1]
    block = wire.decode(content[key])
    changed = sealed(content, key, wire.encode(replace(block, system_time=block.system_time + 1)))
    assert key not in changed
    assert sum(is_document(data) for data in changed.values()) == sum(is_document(data) for data in content.values())
    assert json.loads(changed["names/k"]) == json.loads(content["names/k"])
    assert assert_served(changed, owner(content, key)) == []
