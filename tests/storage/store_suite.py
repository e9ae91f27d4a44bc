"""What every store promises; a store's own test class inherits this and gives it a `store` fixture."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.errors import ObjectNotFound, StorageError
from floodmark.storage.store import Store

BAD_KEYS = [
    *("", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/./b", ".hidden", "a/.hidden"),
    *("a\\b", "a\0b", "a\nb", "\udcff", "x" * 300, "/".join(["x" * 100] * 20)),
]


def at_once(count: int, call: Callable[[int], Any]) -> list[Any]:
    """The results of `count` threads that start their call at the same moment."""
    start = threading.Barrier(count)

    def run(number: int) -> Any:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def increment(store: Store, key: str, times: int) -> int:
    """Add 1 to a number `times` times by compare-and-swap; how many attempts were lost."""
    lost = 0
    for _ in range(times):
        while True:
            seen = store.get(key)
            if store.compare_and_swap(key, seen, b"%d" % (int(seen) + 1)):
                break
            lost += 1
    return lost


def _wide_view(data: bytes) -> memoryview:
    """A view whose items are not bytes."""
    return memoryview(data).cast("q")


def _form_name(form: Any) -> str:
    return str(form.__name__)


class StoreSuite:
    """Tests that every store passes."""

    racers = 4
    rounds = 10

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    # reading

    def test_store_has_every_method_of_the_protocol(self, store):
        assert isinstance(store, Store)

    def test_object_reads_back_as_it_was_put(self, store):
        data = bytes(range(256)) * 10
        assert store.put_if_absent("blocks/a", data)
        assert store.get("blocks/a") == data

    @pytest.mark.parametrize("form", [bytes, bytearray, memoryview, pa.py_buffer, _wide_view], ids=_form_name)
    def test_content_may_be_any_bytes(self, store, form):
        assert store.put_if_absent("once", form(b"12345678"))
        store.put_derived("derived", form(b"12345678"))
        assert store.compare_and_swap("pointer", None, form(b"87654321"))
        assert store.compare_and_swap("pointer", b"87654321", form(b"12345678"))
        assert {store.get(key) for key in ("once", "derived", "pointer")} == {b"12345678"}

    def test_empty_object_is_an_object(self, store):
        assert store.put_if_absent("empty", b"")
        assert store.get("empty") == b""
        assert store.get_range("empty", 0, 10) == b""
        assert store.open("empty").read() == b""
        assert store.stat("empty").size == 0

    @pytest.mark.parametrize("key", ["a b/c+d", "über/straße", "100%/a%2Fb", "q?x=1/#1", "a=1/b=2,3", "x" * 240])
    def test_unusual_but_good_key_keeps_its_spelling(self, store, key):
        store.put_if_absent(key, b"here")
        assert store.get(key) == b"here"
        assert [info.key for info in store.list("")] == [key]

    def test_missing_object_is_reported_with_its_key(self, store):
        for read in (store.get, store.open, lambda key: store.get_range(key, 0, 1)):
            with pytest.raises(ObjectNotFound, match="blocks/none") as caught:
                read("blocks/none")
            assert caught.value.key == "blocks/none"

    def test_folder_is_not_an_object(self, store):
        store.put_if_absent("blocks/a", b"a")
        with pytest.raises(ObjectNotFound):
            store.get("blocks")
        with pytest.raises(ObjectNotFound):
            store.open("blocks")
        assert store.stat("blocks") is None

    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (0, 3, b"012"),
            (4, 7, b"456"),
            (8, 99, b"89"),
            (10, 12, b""),
            (99, 120, b""),
            (3, 3, b""),
            (5, 2, b""),
        ],
    )
    def test_range_is_half_open_and_cut_at_the_end(self, store, start, end, expected):
        store.put_if_absent("digits", b"0123456789")
        assert store.get_range("digits", start, end) == expected
        assert store.get_range("digits", np.int64(start), np.int64(end)) == expected

    def test_stat_knows_size_and_age(self, store):
        began = time.time()
        store.put_if_absent("blocks/a", b"12345")
        info = store.stat("blocks/a")
        assert (info.key, info.size) == ("blocks/a", 5)
        assert began - 1 <= info.modified <= time.time() + 1  # a store may keep whole seconds
        assert store.stat("blocks/none") is None
        assert store.stat("blocks/a/below") is None

    def test_open_file_can_seek(self, store):
        data = bytes(range(256)) * 1000
        store.put_if_absent("data/a", data)
        with store.open("data/a") as file:
            assert file.size() == len(data)
            assert file.read(10) == data[:10]
            file.seek(-10, 2)
            assert file.read() == data[-10:]
            file.seek(100_000)
            assert file.tell() == 100_000
            assert file.read(77) == data[100_000:100_077]

    def test_parquet_reads_through_open(self, store):
        table = pa.table({"a": list(range(5000)), "b": [f"row {i}" for i in range(5000)]})
        path = store.staging() / "table.parquet"
        pq.write_table(table, path, row_group_size=700)
        store.put_file("data/table", path)
        with store.open("data/table") as file:
            assert pq.read_table(file).equals(table)
        with store.open("data/table") as file:
            assert pq.read_table(file, columns=["b"], filters=[("a", ">", 4990)]).num_rows == 9

    # putting

    def test_second_put_changes_nothing(self, store):
        assert store.put_if_absent("blocks/a", b"first")
        assert not store.put_if_absent("blocks/a", b"second")
        assert store.get("blocks/a") == b"first"

    def test_put_file_takes_the_file_away(self, store):
        for made in (True, False):
            path = store.staging() / "unfinished"
            path.write_bytes(b"rows")
            assert store.put_file("data/a", path) is made
            assert not path.exists()
        assert store.get("data/a") == b"rows"
        assert list(store.staging().iterdir()) == []

    def test_derived_object_is_replaced(self, store):
        store.put_derived("info/index", b"one")
        store.put_derived("info/index", b"two, longer")
        assert store.get("info/index") == b"two, longer"

    def test_derived_object_is_replaced_by_a_file_which_is_gone_afterwards(self, store):
        for content in (b"one", b"two, longer"):
            path = store.staging() / "unfinished"
            path.write_bytes(content)
            store.put_derived_file("info/keys/run", path)
            assert not path.exists()
            assert store.get("info/keys/run") == content
        assert list(store.staging().iterdir()) == []

    def test_derived_file_that_is_not_there_replaces_nothing(self, store, tmp_path):
        store.put_derived("info/keys/run", b"one")
        with pytest.raises((OSError, StorageError)):
            store.put_derived_file("info/keys/run", tmp_path / "none")
        assert store.get("info/keys/run") == b"one"

    def test_deleted_object_is_gone_and_can_be_put_again(self, store):
        store.put_if_absent("blocks/a", b"first")
        store.delete("blocks/a")
        store.delete("blocks/a")
        store.delete("nowhere/at/all")
        assert store.stat("blocks/a") is None
        assert store.put_if_absent("blocks/a", b"second")
        assert store.get("blocks/a") == b"second"

    # listing

    def test_list_is_in_key_order(self, store):
        keys = ["a-b", "a/b", "a/b-c", "a/b/c", "a0", "B", "é", "z/1", "z/10", "z/2"]
        keys.remove("a/b")  # a folder's name, which a file system cannot give to a file as well
        for key in reversed(keys):
            store.put_if_absent(key, key.encode())
        assert [info.key for info in store.list("")] == sorted(keys)
        assert [(info.key, info.size) for info in store.list("z")] == [("z/1", 3), ("z/10", 4), ("z/2", 3)]

    def test_prefix_is_a_folder(self, store):
        for key in ("blocks/a", "blocks-old/b", "blocks2", "c/blocks/d"):
            store.put_if_absent(key, b"x")
        assert [info.key for info in store.list("blocks")] == ["blocks/a"]
        assert [info.key for info in store.list("blocks/")] == ["blocks/a"]
        assert list(store.list("none")) == []
        assert list(store.list("blocks2")) == []

    def test_list_shows_what_it_can_when_objects_go_meanwhile(self, store):
        for number in range(6):
            store.put_if_absent(f"{number % 3}/{number}", b"x")
        seen = []
        for info in store.list(""):
            seen.append(info.key)
            for number in range(6):
                store.delete(f"{number % 3}/{number}")
        assert seen[0] == "0/0"

    # compare and swap

    def test_swap_from_nothing_makes_the_object(self, store):
        assert not store.compare_and_swap("refs/head", b"a", b"b")
        assert store.compare_and_swap("refs/head", None, b"a")
        assert not store.compare_and_swap("refs/head", None, b"b")
        assert store.get("refs/head") == b"a"

    def test_swap_needs_the_expected_value(self, store):
        store.compare_and_swap("refs/head", None, b"a")
        assert not store.compare_and_swap("refs/head", b"b", b"c")
        assert store.compare_and_swap("refs/head", b"a", b"b")
        assert store.get("refs/head") == b"b"

    def test_swap_of_a_value_for_itself_only_confirms_it(self, store):
        store.compare_and_swap("refs/head", None, b"a")
        assert store.compare_and_swap("refs/head", b"a", b"a")
        assert not store.compare_and_swap("refs/head", b"b", b"b")
        assert store.get("refs/head") == b"a"

    def test_swap_leaves_nothing_else_in_the_listing(self, store):
        store.compare_and_swap("refs/head", None, b"a")
        with store.turn("refs/head"):
            store.compare_and_swap("refs/head", b"a", b"b")
        assert [info.key for info in store.list("")] == ["refs/head"]
        assert list(store.staging().iterdir()) == []

    # races

    def test_one_of_many_puts_wins(self, store):
        for round_ in range(self.rounds):
            key = f"blocks/{round_}"
            made = at_once(self.racers, lambda number, key=key: store.put_if_absent(key, b"%d" % number))
            assert made.count(True) == 1
            assert store.get(key) == b"%d" % made.index(True)

    def test_one_of_many_swaps_wins_each_step(self, store):
        value = None
        for round_ in range(self.rounds):
            new = [b"%d by %d" % (round_, number) for number in range(self.racers)]
            won = at_once(
                self.racers,
                lambda number, old=value, new=new: store.compare_and_swap("refs/head", old, new[number]),
            )
            assert won.count(True) == 1
            value = store.get("refs/head")
            assert value == new[won.index(True)]

    def test_no_increment_is_lost(self, store):
        store.compare_and_swap("counter", None, b"0")
        at_once(self.racers, lambda _: increment(store, "counter", self.rounds))
        assert store.get("counter") == b"%d" % (self.racers * self.rounds)

    # keys, pickling, staging

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_key_is_refused_by_every_method(self, store, key, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(b"x")
        calls: list[Callable[[], Any]] = [
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.stat(key),
            lambda: store.open(key),
            lambda: store.local_path(key),
            lambda: store.put_if_absent(key, b"x"),
            lambda: store.put_file(key, path),
            lambda: store.put_derived(key, b"x"),
            lambda: store.put_derived_file(key, path),
            lambda: store.compare_and_swap(key, None, b"x"),
            lambda: store.turn(key).__enter__(),
            lambda: store.delete(key),
        ]
        if key not in ("", "a/"):
            calls.append(lambda: list(store.list(key)))
        for call in calls:
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.key in (key, key.removesuffix("/"))

    def test_pickled_store_sees_the_same_objects(self, store):
        store.put_if_absent("blocks/a", b"a")
        again = pickle.loads(pickle.dumps(store))
        assert again.get("blocks/a") == b"a"
        assert again.url == store.url
        again.compare_and_swap("refs/head", None, b"b")
        assert store.get("refs/head") == b"b"

    def test_staging_is_a_folder_that_is_not_listed(self, store):
        (store.staging() / "unfinished").write_bytes(b"half")
        assert store.staging().is_dir()
        assert list(store.list("")) == []

    def test_turn_can_be_taken_again_and_does_not_hinder_a_swap(self, store):
        for _ in range(2):
            with store.turn("refs/head"):
                pass
        with store.turn("refs/head"):
            assert store.compare_and_swap("refs/head", None, b"a")

    def test_error_inside_a_turn_comes_out_unchanged_and_ends_it(self, store):
        with pytest.raises(PermissionError, match="mine"), store.turn("refs/head"):
            raise PermissionError("mine")
        with store.turn("refs/head"):
            pass
