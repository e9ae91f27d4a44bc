"""Whatever derived file is lost or damaged, the next answer is right and so is the next write."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from profiles import IN_FULL, sample
from rows.harm import HARM, derived, harmed, lose_all, replace
from rows.naive import Counts
from rows.twins import Twin

SCHEMA = {"g": pa.string(), "id": pa.int64(), "x": pa.string()}


def row(g: str, i: int, x: str = "x") -> dict[str, Any]:
    return {"g": g, "id": i, "x": x}


def group(name: str, value: Any) -> pa.Table:
    return pa.table({name: [value]})


# What is asked of a dataset, and what comes of it: the answer in a form that can be compared.
ASKED: dict[str, Callable[[Dataset, Twin], Any]] = {
    "read": lambda d, t: d.to_arrow().to_pylist(),
    "read the past": lambda d, t: [d.to_arrow(as_of=end).to_pylist() for end in (3, 8)],
    "count": lambda d, t: d.count(),
    "get": lambda d, t: d.get(t.keys([("a", 1), ("b", 2)])).to_pylist(),
    "get a group": lambda d, t: d.get(group("g", "a")).to_pylist(),
    "get by another part of the key": lambda d, t: d.get(group("id", 1)).to_pylist(),
    "history": lambda d, t: d.history(t.keys([("a", 1)])).select(["offset", "op", "x"]).to_pylist(),
    "write": lambda d, t: Counts.of(d.write(t.table([row("a", 1, "z"), row("b", 0), row("c", 0)]))),
    "delete": lambda d, t: Counts.of(d.delete(t.keys([("a", 1), ("c", 1)]))),
    "delete a group": lambda d, t: Counts.of(d.delete(group("g", "a"))),
    "delete by another part of the key": lambda d, t: Counts.of(d.delete(group("id", 1))),
    "store a chunk": lambda d, t: Counts.of(d.store_chunk(t.table([row("a", 1)]), group("g", "a"))),
    "store a chunk by keys": lambda d, t: Counts.of(
        d.store_chunk(t.table([row("a", 1)]), t.keys([("a", 0), ("b", 1)]))
    ),
    "store a chunk by another part of the key": lambda d, t: Counts.of(
        d.store_chunk(t.table([row("a", 1)]), group("id", 1))
    ),
    "fold": lambda d, t: d.fold() and None,
}


def grown(store: Any) -> Twin:
    """A dataset with changes, retractions, a fold, and changes since."""
    twin = Twin(fm.Lake(store, runtime=fm.Runtime(fold_at=None)), SCHEMA, "upsert", ["g", "id"], lookup=["g"])
    twin.write([row(g, i) for g in "ab" for i in range(4)])
    twin.write([row("a", 1, "y"), row("b", 1, "y"), row("b", 2, "y")])
    twin.delete([("a", 2)])
    twin.dataset.fold()
    twin.write([row("b", 2, "w"), row("a", 1, "v")])
    twin.delete([("b", 3)])
    return twin


def copied(twin: Twin) -> Dataset:
    store = MemoryStore()
    for info in twin.lake.store.list(""):
        store.put_derived(info.key, twin.lake.store.get(info.key))
    return fm.Lake(store, runtime=fm.Runtime(fold_at=None))["d"]


def state(dataset: Dataset) -> Any:
    """All that can be read afterwards, but for times."""
    records = dataset.changes_arrow().select(["offset", "op", *SCHEMA]).to_pylist()
    return dataset.to_arrow().to_pylist(), records, dataset.count()


@pytest.fixture(scope="module")
def original() -> Twin:
    return grown(MemoryStore())


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("asked", ASKED)
def test_harm_to_one_file_leaves_the_answer_right(original, asked):
    """Each question meets other files and other harms; all of them together meet every pair."""
    ask = ASKED[asked]
    whole = copied(original)
    expected = ask(whole, original), state(whole)
    cases = list(product(derived(original.dataset), HARM))
    first = list(ASKED).index(asked) * len(cases) // len(ASKED)
    for key, how in sample(cases[first:] + cases[:first], 4):
        dataset = copied(original)
        store = dataset.snapshot().objects.store
        data = store.get(key)
        replace(store, key, harmed(key, data, how, len(data) // 2))
        assert (ask(dataset, original), state(dataset)) == expected, f"{how} {key}"


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_loss_of_everything_leaves_the_answer_right(original, asked):
    ask = ASKED[asked]
    whole, lost = copied(original), copied(original)
    lose_all(lost)
    assert (ask(lost, original), state(lost)) == (ask(whole, original), state(whole))
    assert lost.verify().problems == ()


WHILE_OPEN = ["delete", "flip", "empty"]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("asked", ASKED)
def test_loss_under_a_dataset_that_is_open_leaves_the_answer_right(original, asked, tmp_path):
    """Files that are open, mapped or remembered by name go, and come back as others."""
    ask = ASKED[asked]
    whole = copied(original)
    expected = ask(whole, original), state(whole)
    one = list(ASKED).index(asked) % len(WHILE_OPEN)
    for how in WHILE_OPEN if IN_FULL else WHILE_OPEN[one : one + 1]:
        twin = grown(LocalStore(tmp_path / how, HastyFileSystem()))
        for key in derived(twin.dataset):
            data = twin.lake.store.get(key)
            replace(twin.lake.store, key, harmed(key, data, how, len(data) // 2))
        assert (ask(twin.dataset, twin), state(twin.dataset)) == expected, how


@pytest.mark.slow
@pytest.mark.soak
def test_next_writes_repair_what_was_lost(original):
    """After the loss of any file the index works again, agrees with the ledger, and is not rebuilt each time."""
    cases = product(derived(original.dataset), ["delete", "flip", "truncate", "empty"])
    for key, how in sample(cases, 10):
        dataset = copied(original)
        store = dataset.snapshot().objects.store
        data = store.get(key)
        replace(store, key, harmed(key, data, how, len(data) // 2))
        for x in "pq":
            dataset.write(original.table([row("a", 1, x), row("c", 1, x), row("b", 0, x)]))
            dataset.get(original.keys([("a", 1)]))
            dataset.to_arrow()
        dataset.fold()
        fresh = fm.Lake(store)["d"]
        assert fresh.get(group("g", "a")).num_rows == 3
        problems = fresh.verify().problems
        assert problems == (), f"{how} {key}: {problems}"


@pytest.mark.slow
@pytest.mark.soak
def test_no_flipped_byte_of_the_key_index_is_believed(original):
    def ask(dataset: Dataset) -> Any:
        present = dataset.to_arrow().to_pylist()
        past = [dataset.to_arrow(as_of=end).to_pylist() for end in (9, 16)]
        keys = [(g, i) for g in "ab" for i in range(4)]
        return present, past, dataset.get(original.keys(keys)).to_pylist(), dataset.get(group("g", "a")).to_pylist()

    expected = ask(original.dataset)
    sizes = {k: len(original.lake.store.get(k)) for k in derived(original.dataset) if "/info/keys/" in k}
    for key, at in sample([(k, place) for k, size in sizes.items() for place in range(5, size, 17)], 25):
        dataset = copied(original)
        store = dataset.snapshot().objects.store
        replace(store, key, HARM["flip"](store.get(key), at))
        assert ask(dataset) == expected, (key, at)


def test_damaged_copy_of_rows_hides_no_row_from_a_search_by_other_columns(original):
    """A search that no index serves looks at the copies of rows: it must not believe a damaged one."""
    one = (1).to_bytes(8, "little")
    for key in [key for key in derived(original.dataset) if "/info/rows/" in key]:
        dataset = copied(original)
        store = dataset.snapshot().objects.store
        replace(store, key, store.get(key).replace(one, (77).to_bytes(8, "little")))
        assert sorted(r["g"] for r in dataset.get(group("id", 1)).to_pylist()) == ["a", "b"], key


def test_damaged_folded_file_is_found_by_verify_and_repaired_by_a_fold(original):
    """The slices are whole, so there must be a way back that needs no hands."""
    [key] = [key for key in derived(original.dataset) if "/info/fold/files/" in key]
    dataset = copied(original)
    store = dataset.snapshot().objects.store
    replace(store, key, HARM["zeros"](store.get(key), 0))
    fresh = fm.Lake(store)["d"]
    assert [problem.object for problem in fresh.verify().problems] == [key]
    fresh.fold()
    assert fresh.verify().problems == ()
    assert state(fresh) == state(original.dataset)


@pytest.mark.parametrize("kind", ["ledger", "upsert", "snapshot"])
def test_what_a_purge_forgets_does_not_depend_on_the_index(kind):
    """The history of some keys is gone: what was made from it may not know more than what can be made again."""
    outcomes = []
    for lose in (lambda dataset: None, lose_all):
        dataset = fm.Lake(MemoryStore()).create("d", key=["id"], merge=kind)
        dataset.write(pa.table({"id": [1, 2, 3], "v": [0, 0, 0]}))
        dataset.write(pa.table({"id": [1, 2, 4], "v": [1, 0, 0]}))
        assert dataset.purge(before=3).records == (0 if kind == "ledger" else 3)
        lose(dataset)
        commit = dataset.write(pa.table({"id": [1, 4, 5], "v": [1, 0, 0]}))
        outcomes.append((Counts.of(commit), dataset.to_arrow().to_pylist(), dataset.verify().problems))
    assert outcomes[0] == outcomes[1]
