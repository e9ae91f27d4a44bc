"""Ways in which derived files are lost: what the ledger says must not depend on any of them."""

from __future__ import annotations

from collections.abc import Callable

from floodmark.dataset import Dataset
from floodmark.storage.store import Store

FOLDERS = ("info/keys", "info/rows", "info/fold", "info/index")

HARM: dict[str, Callable[[bytes, int], bytes | None]] = {
    "delete": lambda data, at: None,
    "empty": lambda data, at: b"",
    "truncate": lambda data, at: data[: at % len(data)],
    "flip": lambda data, at: (
        data[: at % len(data)] + bytes([data[at % len(data)] ^ (1 + at % 255)]) + data[at % len(data) + 1 :]
    ),
    "zeros": lambda data, at: data[: at % len(data)] + bytes(len(data) - at % len(data)),
    "longer": lambda data, at: data + bytes(1 + at % 100),
}


def derived(dataset: Dataset) -> list[str]:
    """The keys of all objects that can be lost."""
    objects = dataset.snapshot().objects
    return [info.key for folder in FOLDERS for info in objects.store.list(f"{objects.folder}/{folder}")]


def replace(store: Store, key: str, data: bytes | None) -> None:
    """Put other bytes in place of an object, as a new file: who has the old one open keeps it."""
    path = store.local_path(key)
    if data is None:
        store.delete(key)
    elif path is None:
        store.put_derived(key, data)
    else:
        beside = path.with_name(path.name + ".harm")
        beside.write_bytes(data)
        beside.replace(path)


def harmed(key: str, data: bytes, how: str, at: int) -> bytes | None:
    """The bytes after the harm.

    No reader hashes a Parquet file as a whole, slices neither: that a folded file is gone or of another size is seen,
    other bytes in it are for `verify` to find. So these are cut short instead.
    """
    if "/info/fold/files/" in key and how in ("flip", "zeros"):
        how = "truncate"
    return HARM[how](data, at)


def harm(dataset: Dataset, how: str, which: int, at: int) -> None:
    """Do one kind of harm to one derived object."""
    store, there = dataset.snapshot().objects.store, derived(dataset)
    if there:
        key = there[which % len(there)]
        data = store.get(key)
        if data:
            replace(store, key, harmed(key, data, how, at))


def lose_all(dataset: Dataset) -> None:
    """Everything derived is gone."""
    for key in derived(dataset):
        replace(dataset.snapshot().objects.store, key, None)


def saved(dataset: Dataset) -> dict[str, bytes]:
    """A copy of everything derived, to come back to."""
    store = dataset.snapshot().objects.store
    return {key: store.get(key) for key in derived(dataset)}


def go_back(dataset: Dataset, to: dict[str, bytes]) -> None:
    """The derived files are as they were at an earlier time: the ledger has moved on without them."""
    store = dataset.snapshot().objects.store
    for key in derived(dataset):
        if key not in to:
            replace(store, key, None)
    for key, data in to.items():
        replace(store, key, data)
