"""Blocks of other programs are checked against the rules before they are used, and a call still reads few objects."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import floodmark as fm
from chain.mutations import MUTATIONS
from chain.strategies import a_slice, models
from floodmark.chain.events import AddData, SetInfo
from floodmark.chain.ids import DatasetId, Multihash, parse_head
from floodmark.chain.state import EMPTY, apply_block
from floodmark.chain.walk import check_chain, walk_back
from floodmark.chain.wire import encode
from floodmark.errors import Rule, RuleBroken
from floodmark.ledger import slice_index
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.slice_segment import BadSegment, decode, span
from floodmark.ledger.slice_segment import encode as encode_segment
from floodmark.ledger.snapshot import load_snapshot
from floodmark.storage import document
from floodmark.storage.memory import CountingStore, MemoryStore
from ledger.other_writers import add_event, chain_state, move_head, put_blocks
from ledger.worlds import START, Clock, InterleavingStore, keys, numbers
from profiles import examples


def opened(store):
    """The dataset as a new process opens it."""
    return fm.Lake(store, runtime=fm.Runtime(clock=Clock()))["d"]


def six_records(store=None):
    dataset = fm.Lake(store or MemoryStore(), runtime=fm.Runtime(clock=Clock())).create("d", schema={"n": "int64"})
    dataset.write(numbers(0, 3))
    dataset.write(numbers(3, 6))
    return dataset


def after_offset_2(objects) -> AddData:
    """An event as of a writer that has not seen the last three records."""
    watermark = chain_state(objects).watermark
    return AddData(prev_offset=2, new_data=a_slice(3, 3), new_watermark=watermark)


USES = {
    "read": lambda d: d.to_arrow(),
    "read by offset": lambda d: d.changes_arrow(),
    "read of the past": lambda d: d.to_arrow(as_of=1),
    "columns": lambda d: d.schema,
    "write": lambda d: d.write(numbers(6, 7)),
    "new column": lambda d: d.evolve({"c": "int64"}),
    "watermark": lambda d: d.advance_watermark(START + timedelta(days=1)),
    "purge": lambda d: d.purge(before=3),
    "fold": lambda d: d.fold(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("process", ["this process", "a new process", "a process without an index"])
def test_block_that_breaks_a_rule_is_refused_by_rule_and_block(use, process):
    dataset = six_records()
    objects = dataset.snapshot().objects
    number = dataset.snapshot().head_block.sequence_number + 1
    wrong = add_event(objects, after_offset_2(objects))
    if process == "a process without an index":
        for key in keys_below(objects, "info/index"):
            objects.store.delete(key)

    with pytest.raises(RuleBroken) as raised:
        USES[use](dataset if process == "this process" else opened(objects.store))

    error = raised.value
    assert (error.rule, error.rule.number, error.sequence_number) == (Rule.PREV_OFFSET_MISMATCH, 3, number)
    assert (error.hash, error.expected, error.actual) == (wrong, 5, 2)
    assert error.message.startswith(f"Block {number}: prev_offset is 2, but the chain's last offset is 5.")
    assert wrong.text in error.message
    assert objects.read_head() == wrong  # nothing was committed after it


def keys_below(objects, folder):
    return [info.key for info in objects.store.list(f"{objects.folder}/{folder}")]


def test_block_that_breaks_a_rule_stays_refused_and_changes_no_index():
    dataset = six_records()
    objects = dataset.snapshot().objects
    before = keys(dataset, "info/index")
    add_event(objects, SetInfo("fine"))
    add_event(objects, after_offset_2(objects))
    add_event(objects, SetInfo("fine, but after a block that is not"))
    for _ in range(2):
        with pytest.raises(RuleBroken):
            opened(objects.store).to_arrow()
    assert keys_below(objects, "info/index") == before


def test_hint_leads_back_to_the_last_valid_block():
    dataset = six_records()
    objects = dataset.snapshot().objects
    valid = dataset.head
    add_event(objects, after_offset_2(objects))
    with pytest.raises(RuleBroken) as raised:
        dataset.to_arrow()

    assert objects.head_key in raised.value.hint
    [named] = [word.strip(".,") for word in raised.value.hint.split() if word.startswith("f1620")]
    assert parse_head(named.encode()) == valid
    move_head(objects, Multihash.parse(named))

    assert opened(objects.store).to_arrow().num_rows == 6
    assert opened(objects.store).write(numbers(6, 7)).start == 6


def test_first_block_that_breaks_a_rule_has_a_hint_too():
    store = MemoryStore()
    objects = dataset_objects(store, DatasetId(b"1" * 32))
    add_event(objects, SetInfo("no seed"))
    with pytest.raises(RuleBroken) as raised:
        load_snapshot(objects, objects.read_head(), {})
    assert raised.value.rule is Rule.SEED_MISSING


def test_write_that_loses_a_race_to_a_broken_block_commits_nothing():
    store = InterleavingStore()
    dataset = six_records(store)
    objects = dataset.snapshot().objects
    store.at("before turn", lambda: add_event(objects, after_offset_2(objects)))
    with pytest.raises(RuleBroken):
        dataset.write(numbers(6, 7))
    assert chain_state(objects).last_offset == 3


def test_valid_blocks_of_other_writers_are_used():
    dataset = six_records()
    objects = dataset.snapshot().objects
    state = chain_state(objects)
    later = state.watermark + 10**9
    add_event(objects, SetInfo("six numbers"))
    add_event(objects, AddData(prev_offset=5, new_watermark=later))
    assert dataset.write(numbers(6, 7)).start == 6
    assert dataset.to_arrow().column("n").to_pylist() == list(range(7))
    assert dataset.verify().ok


@pytest.mark.parametrize("broken", [False, True], ids=["valid", "broken"])
def test_check_of_new_blocks_reads_few_objects_whatever_the_length_of_the_chain(broken):
    reads = []
    for length in (10, 200):
        dataset = six_records()
        for step in range(length):
            dataset.advance_watermark(START + timedelta(days=step + 1))
        objects = dataset.snapshot().objects
        for text in ("a", "b", "c"):
            add_event(objects, SetInfo(text))
        if broken:
            add_event(objects, after_offset_2(objects))
        store = CountingStore(objects.store)
        try:
            opened(store).snapshot()
        except RuleBroken:
            assert broken
        counts = store.counts
        reads.append((counts.reads, counts.lists))
    # The name, the head, the newest segment, three or four new blocks, the last checked block with its segment, and
    # the newest data block.
    assert reads[0] == reads[1] == (9, 1)


def index_unchecked(objects, version=None) -> str:
    """Store an index of all blocks without checking them; return its key."""
    blocks = list(walk_back(objects.get_block, objects.read_head()))[::-1]
    segment = span(None, blocks)
    data = encode_segment(segment)
    if version is not None:
        current = document.decode(data, "slice index", "segment", version=99)
        sections = {name: current.section(name) for name in current.sections}
        data = document.encode("slice index", version, current.facts, sections)
    objects.store.put_derived(objects.index_key(segment.name), data)
    return objects.index_key(segment.name)


def test_verify_and_rebuild_check_blocks_that_the_index_has():
    objects = six_records().snapshot().objects
    wrong = add_event(objects, after_offset_2(objects))
    index_unchecked(objects)
    assert opened(objects.store).count() == 4  # the index says that the block was checked

    problems = opened(objects.store).verify().problems
    number = chain_state(objects).head.sequence_number
    assert {(p.object, p.block) for p in problems if p.kind == "rule"} == {(wrong.text, number)}
    with pytest.raises(RuleBroken):
        slice_index.rebuild(objects, wrong)
    for key in keys_below(objects, "info/index"):
        objects.store.delete(key)
    with pytest.raises(RuleBroken):
        opened(objects.store).snapshot()


def test_index_of_a_release_that_did_not_check_is_built_again():
    objects = six_records().snapshot().objects
    key = index_unchecked(objects, version=1)
    with pytest.raises(BadSegment, match="format 1"):
        decode(objects.store.get(key))
    assert opened(objects.store).to_arrow().num_rows == 6
    assert decode(objects.store.get(key)).blocks

    add_event(objects, after_offset_2(objects))
    index_unchecked(objects, version=1)
    with pytest.raises(RuleBroken):
        opened(objects.store).snapshot()


LATER_MUTATIONS = [m for m in MUTATIONS if m.breaks.number > 1]
"""Rule 1 is checked while the chain is walked: see test_walk."""


@pytest.mark.slow
@pytest.mark.soak
@given(data=st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_chain_is_refused_exactly_when_a_check_of_all_blocks_finds_a_problem(data):
    """Wherever the index starts. The oracle checks every block; the first problem must be the one that is raised."""
    mutation = data.draw(st.sampled_from([None, *LATER_MUTATIONS]))
    blocks = chain_with(data, mutation)
    objects = dataset_objects(MemoryStore(), DatasetId(b"1" * 32))
    put_blocks(objects, [block for _, block in blocks])
    first = next(check_chain(blocks), None)
    valid = len(blocks) if first is None else first.sequence_number
    for end in sorted(data.draw(st.sets(st.integers(0, valid - 1), max_size=3))) if valid else []:
        load_snapshot(objects, blocks[end][0], {})  # stores the index as of this block

    if first is None:
        folded = EMPTY
        for block_hash, block in blocks:
            folded = apply_block(folded, block_hash, block)
        assert load_snapshot(objects, blocks[-1][0], {}).state == folded
    else:
        with pytest.raises(RuleBroken) as raised:
            load_snapshot(objects, blocks[-1][0], {})
        assert (raised.value.rule, raised.value.sequence_number) == (first.rule, first.sequence_number)


def chain_with(data, mutation):
    """A random chain, hashed correctly; with a mutation, one of its blocks is changed."""
    model = data.draw(models(None if mutation is None else mutation.kind))
    if mutation is None:
        return model.blocks
    state, changed = EMPTY, []
    for number, (block_hash, block) in enumerate(model.blocks):
        mutated = mutation.change(state, block)
        if mutated is not None and encode(mutated) != encode(block):
            changed.append((number, mutated))
        state = apply_block(state, block_hash, block)
    assume(changed)
    at, mutated = data.draw(st.sampled_from(changed))
    before = model.blocks[:at]
    after = [mutated, *(block for _, block in model.blocks[at + 1 :])][: data.draw(st.integers(1, len(model.blocks)))]
    chain, previous = list(before), before[-1][0] if before else None
    for block in after:
        linked = replace(block, prev_block_hash=previous)
        previous = Multihash.sha3_256(encode(linked))
        chain.append((previous, linked))
    return chain
