"""Whatever derived file is lost or damaged, the next answer is right and so is the next write."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, product
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from ledger.keyed.harm import HARM, derived, harmed, lose_all, replace
from ledger.keyed.naive import Counts
from ledger.keyed.twins import Twin

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


@pytest.mark.parametrize("asked", ASKED)
def test_loss_of_one_file_leaves_the_answer_right(original, asked):
    """Of each file in turn; which way it is harmed goes around, so that all ways are met."""
    ask = ASKED[asked]
    whole = copied(original)
    expected = ask(whole, original), state(whole)
    kinds = cycle(sorted(HARM)[list(ASKED).index(asked) % len(HARM) :] + sorted(HARM))
    for key, how in zip(derived(original.dataset), kinds, strict=False):
        dataset = copied(original)
        store = dataset.snapshot().objects.store
        data = store.get(key)
        replace(store, key, harmed(key, data, how, len(data) // 2))
        assert (ask(dataset, original), state(dataset)) == expected, f"{how} {key}"


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_every_harm_to_every_file_leaves_the_answer_right(original, asked):
    ask = ASKED[asked]
    whole = copied(original)
    expected = ask(whole, original), state(whole)
    for key, how in product(derived(original.dataset), HARM):
        dataset = copied(original)
        store = dataset.snapshot().objects.store
        data = store.get(key)
        replace(store, key, harmed(key, data, how, len(data) // 2))
        assert (ask(dataset, original), state(dataset)) == expected, f"{how} {key}"


@pytest.mark.parametrize("asked", ASKED)
def test_loss_of_everything_leaves_the_answer_right(original, asked):
    ask = ASKED[asked]
    whole, lost = copied(original), copied(original)
    lose_all(lost)
    assert (ask(lost, original), state(lost)) == (ask(whole, original), state(whole))
    assert lost.verify().problems == ()


@pytest.mark.parametrize("asked", ASKED)
def test_loss_under_a_dataset_that_is_open_leaves_the_answer_right(original, asked, tmp_path):
    """Files that are open, mapped or remembered by name go, and come back as others."""
    ask = ASKED[asked]
    whole = copied(original)
    expected = ask(whole, original), state(whole)
    for how in ("delete", "flip", "empty"):
        twin = grown(LocalStore(tmp_path / how))
        for key in derived(twin.dataset):
            data = twin.lake.store.get(key)
            replace(twin.lake.store, key, harmed(key, data, how, len(data) // 2))
        assert (ask(twin.dataset, twin), state(twin.dataset)) == expected, how


@pytest.mark.parametrize("how", ["delete", "flip", "truncate", "empty"])
def test_next_writes_mend_what_was_lost(original, how):
    """After the loss of any file the index works again, agrees with the ledger, and is not made again each time."""
    for key in derived(original.dataset):
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
        assert problems == (), f"{key}: {problems}"


@pytest.mark.slow
def test_no_flipped_byte_of_the_key_index_is_believed(original):
    def ask(dataset: Dataset) -> Any:
        present = dataset.to_arrow().to_pylist()
        past = [dataset.to_arrow(as_of=end).to_pylist() for end in (9, 16)]
        keys = [(g, i) for g in "ab" for i in range(4)]
        return present, past, dataset.get(original.keys(keys)).to_pylist(), dataset.get(group("g", "a")).to_pylist()

    expected = ask(original.dataset)
    for key in [key for key in derived(original.dataset) if "/info/keys/" in key]:
        for at in range(5, len(original.lake.store.get(key)), 17):
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


def test_damaged_folded_file_is_found_by_verify_and_mended_by_a_fold(original):
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
    """The records of some keys are gone: what was made from them may not know more than what can be made again."""
    outcomes = []
    for lose in (lambda dataset: None, lose_all):
        dataset = fm.Lake(MemoryStore()).create("d", key=["id"], merge=kind)
        dataset.write(pa.table({"id": [1, 2, 3]}))
        dataset.write(pa.table({"id": [1, 2, 3, 4]}))
        assert dataset.purge(before=3).records == 3
        lose(dataset)
        commit = dataset.write(pa.table({"id": [1, 4, 5]}))
        outcomes.append((Counts.of(commit), dataset.to_arrow().to_pylist(), dataset.verify().problems))
    assert outcomes[0] == outcomes[1]
