"""Meta is state: a file that is gone or damaged is an error that says so, never an answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from floodmark.chain.ids import Multihash
from floodmark.errors import BadMeta
from floodmark.functions.failures import empty_failed_keys
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage import document
from floodmark.storage.arrays import Hashes
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.sorted_runs import process_cache
from floodmark.transforms.meta import TransformMeta
from floodmark.transforms.meta_entries import encode_meta
from limits import set_limit
from transforms.meta_worlds import INPUTS, KEYS, committed, failures, hashes, run


@pytest.fixture(params=["local", "memory"])
def objects(request, tmp_path):
    return DatasetObjects(LocalStore(tmp_path / "lake") if request.param == "local" else MemoryStore(), "features")


def key_of(objects, name):
    return objects.checkpoint_key(Multihash.parse(name))


def replace_object(objects, name, data):
    process_cache().clear()
    objects.store.put_derived(key_of(objects, name), data)


def two_commits(objects):
    meta = TransformMeta.load(objects, None)
    meta = committed(meta.after(run(1, 3), [hashes(range(30))], failures({4}), {"a": 3}, "v"), objects)
    return committed(meta.after(run(2, 5), [hashes({1, 2})], empty_failed_keys(KEYS), {"a": 5}, "v"), objects)


def everything(meta):
    found = meta.find(hashes(range(40)), INPUTS)
    return found.last_offsets.tolist(), found.process_ts.tolist(), meta.to_table(), meta.failed()


def refusal(objects, checkpoint, right):
    """The error by which a question is refused; None when everything is answered, which must be right."""
    try:
        assert everything(TransformMeta.load(objects, checkpoint)) == right
    except BadMeta as error:
        return error
    return None


def test_no_damaged_byte_of_any_file_changes_an_answer(objects):
    meta = two_commits(objects)
    right = everything(meta)
    refused = 0
    for name in [*meta.manifest.names, meta.checkpoint.text]:
        data = objects.store.get(key_of(objects, name))
        for at in range(0, len(data), 97):
            replace_object(objects, name, data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
            problem = refusal(objects, meta.checkpoint, right)
            assert problem is None or (problem.file, problem.dataset) == (name, "features")
            assert problem is None or "floodmark reset" in problem.hint
            refused += problem is not None
        replace_object(objects, name, data)
    assert refused > 20
    assert everything(TransformMeta.load(objects, meta.checkpoint)) == right


@pytest.mark.parametrize("harm", ["gone", "cut", "longer"])
def test_file_that_is_gone_or_of_another_length_is_refused(objects, harm):
    meta = two_commits(objects)
    for name in [*meta.manifest.names, meta.checkpoint.text]:
        data = objects.store.get(key_of(objects, name))
        if harm == "gone":
            process_cache().clear()
            objects.store.delete(key_of(objects, name))
        else:
            replace_object(objects, name, data[:-9] if harm == "cut" else data + b"more")
        with pytest.raises(BadMeta) as caught:
            everything(TransformMeta.load(objects, meta.checkpoint))
        assert caught.value.file == name
        replace_object(objects, name, data)


def test_next_commit_does_not_build_on_a_damaged_file(objects):
    meta = two_commits(objects)
    (file,) = meta.manifest.segments[1]
    data = bytearray(objects.store.get(key_of(objects, file.name)))
    data[file.size - file.footer_size - 1] ^= 1  # in the last page of the last column
    replace_object(objects, file.name, bytes(data))
    with pytest.raises(BadMeta):
        meta.after(run(3, 6), [hashes({7})], empty_failed_keys(KEYS), {"a": 6}, "v")


@pytest.mark.parametrize("section", ["fence.high", "fence.low", "sums.high", "sums.low"])
def test_damaged_fence_or_checksum_leads_to_no_answer(tmp_path, section):
    objects = DatasetObjects(LocalStore(tmp_path / "lake"), "features")
    meta = two_commits(objects)
    (file,) = meta.manifest.segments[1]
    data = bytearray(objects.store.get(key_of(objects, file.name)))
    footer = document.decode(bytes(data[-file.footer_size :]), "sorted run of meta", file.name)
    data[file.size - file.footer_size + footer._sections[section][0] + 3] ^= 128
    replace_object(objects, file.name, bytes(data))
    with pytest.raises(BadMeta, match=f"section '{section}'"):
        meta.find(hashes(range(30)))


def test_manifest_that_does_not_know_the_run_of_an_entry_is_refused(objects):
    manifest = replace(two_commits(objects).manifest, runs={})
    data = encode_meta(manifest)
    objects.store.put_if_absent(objects.checkpoint_key(Multihash.sha3_256(data)), data)
    with pytest.raises(BadMeta, match="refer to run 0"):
        TransformMeta.load(objects, Multihash.sha3_256(data))


def test_reset_works_when_the_meta_is_damaged(objects):
    meta = two_commits(objects)
    replace_object(objects, meta.checkpoint.text, b"{}")
    with pytest.raises(BadMeta):
        TransformMeta.load(objects, meta.checkpoint)
    empty = TransformMeta.load(objects, None)
    again = committed(empty.fresh(run(3, 6), [hashes({7})], empty_failed_keys(KEYS), {"a": 6}, "v2"), objects)
    assert again.find(hashes(range(40))).seen.nonzero()[0].tolist() == [7]


def test_damaged_copy_of_a_remote_file_is_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_limit(monkeypatch, "files.small_bytes", 0)
    objects = DatasetObjects(MemoryStore(), "features")
    meta = two_commits(objects)
    right = everything(meta)
    copies = list((tmp_path / "floodmark" / "meta").iterdir())
    assert len(copies) == 2
    for copy in copies:
        copy.write_bytes(bytes(copy.stat().st_size))
    process_cache().clear()
    assert everything(meta) == right


def test_page_far_from_the_damaged_one_can_still_be_read(objects):
    many = np.arange(10_000, dtype=np.uint64) << np.uint64(40)
    meta = TransformMeta.load(objects, None)
    meta = committed(meta.after(run(1, 3), [Hashes(many, many)], empty_failed_keys(KEYS), {"a": 3}, "v"), objects)
    ((file,),) = meta.manifest.segments
    data = bytearray(objects.store.get(key_of(objects, file.name)))
    data[8 * 9_000] ^= 1  # in the column of high halves, which comes first
    replace_object(objects, file.name, bytes(data))
    if objects.is_local:  # what is not mapped is checked as a whole
        assert meta.find(Hashes(many[:50], many[:50])).seen.all()
    with pytest.raises(BadMeta):
        meta.find(Hashes(many[9_000:9_001], many[9_000:9_001]))
