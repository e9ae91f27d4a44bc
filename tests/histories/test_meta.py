"""After any history of commits the meta says what a dictionary says, and never claims what was not processed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.functions.failures import empty_failed_keys
from floodmark.storage.tiers import Tiers
from floodmark.transforms.failed_keys import failed_column, failed_keys
from floodmark.transforms.meta import TransformMeta
from floodmark.transforms.meta_entries import MOST_RUNS, NEVER
from profiles import examples
from transforms.meta_worlds import INPUTS, KEYS, committed, failures, hashes, objects_in_memory, run

ALL = range(40)
SOME = st.sets(st.sampled_from(ALL), max_size=12)
OFFSET = st.integers(-1, 6)
COMMIT = st.fixed_dictionaries(
    {
        "fresh": st.sampled_from([False] * 9 + [True]),
        "done": SOME,
        "failing": st.sets(st.sampled_from(ALL), max_size=4),
        "last_offsets": st.tuples(OFFSET, OFFSET),
        "positions": st.tuples(OFFSET, OFFSET),
    }
)
TIERS = st.sampled_from([Tiers(2, 2, 8), Tiers(3, 4, 8), Tiers(2, 64, 1000), Tiers()])


class Oracle:
    """For each key its time, what its run last_offsets and the most that may be claimed for it; and its failures."""

    def __init__(self):
        self.done, self.failed, self.positions = {}, {}, (-1, -1)

    def commit(self, number, commit):
        if commit["fresh"]:
            self.done, self.failed = {}, {}
        self.positions = commit["positions"]
        for key in commit["done"] | commit["failing"]:
            self.done[key] = (1000 * number, commit["last_offsets"], commit["last_offsets"])
            since = self.failed.pop(key, (number,))[0]
            if key in commit["failing"]:
                self.failed[key] = (since, number)
        for key, (at, last_offsets, most) in self.done.items():
            self.done[key] = (at, last_offsets, tuple(map(max, most, self.positions)))


def check(meta, oracle):
    found = meta.find(hashes(ALL), INPUTS)
    for key in ALL:
        assert found.seen[key] == (key in oracle.done)
        claim = tuple(found.last_offsets[key])
        if key not in oracle.done:
            assert claim == (NEVER, NEVER)
            continue
        at, last_offsets, most = oracle.done[key]
        assert found.process_ts[key] == at
        assert all(p <= c <= m for p, c, m in zip(last_offsets, claim, most, strict=True))
        if any(p > position for p, position in zip(last_offsets, oracle.positions, strict=True)):
            assert meta.is_ahead(INPUTS)
    assert meta.keys == len(oracle.done)
    failed = meta.failed()
    if meta.version is None:
        assert failed.num_rows == 0
        return
    since, last = (failed_column(failed, name).cast("int64").to_pylist() for name in ("since", "last"))
    keys = failed_keys(failed)["type"].to_pylist()
    assert dict(zip(keys, zip(since, last, strict=True), strict=True)) == oracle.failed
    assert len(keys) == len(oracle.failed)


def check_table(meta, oracle):
    by_low = {int(low): key for key, low in zip(ALL, hashes(ALL).low, strict=True)}
    rows = meta.to_table().to_pylist()
    assert [(r["high"], r["low"]) for r in rows] == sorted((r["high"], r["low"]) for r in rows)
    said = {by_low[r["low"]]: (r["process_ts"].timestamp() * 1000, r["is_success"]) for r in rows}
    assert said == {key: (at, key not in oracle.failed) for key, (at, _, _) in oracle.done.items()}
    assert len(rows) == len(said)


@settings(max_examples=examples(20))
@given(st.lists(COMMIT, max_size=14), TIERS)
def test_meta_says_after_any_history_what_a_dictionary_says(history, tiers):
    objects, oracle = objects_in_memory(), Oracle()
    meta = TransformMeta.load(objects, None, tiers)
    check(meta, oracle)
    for number, commit in enumerate(history, 1):
        step = meta.fresh if commit["fresh"] else meta.after
        failing = failures(commit["failing"], now=number)
        positions = dict(zip(INPUTS, commit["positions"], strict=True))
        draft = step(run(number, *commit["last_offsets"]), [hashes(commit["done"])], failing, positions, "v")
        oracle.commit(number, commit)
        meta = committed(draft, objects)
        assert meta.manifest == draft.meta.manifest
        assert meta.manifest.referred == set(meta.manifest.runs)
        check(meta, oracle)
    check_table(meta, oracle)


@pytest.mark.parametrize("fan_in", [2, 8])
def test_runs_are_told_apart_only_while_it_matters(fan_in):
    objects = objects_in_memory()
    meta = TransformMeta.load(objects, None, Tiers(fan_in, 4, 1000))
    for number in range(1, 120):
        done, at = [hashes({number % 40, number * 7 % 40})], {"a": number}
        meta = committed(meta.after(run(number, number), done, empty_failed_keys(KEYS), at, "v"), objects)
        assert not meta.is_ahead(INPUTS)
        assert len(meta.manifest.runs) <= 3 * fan_in
        assert len(meta.manifest.segments) <= 3 * fan_in


def test_runs_that_never_move_a_position_do_not_fill_the_manifest():
    objects = objects_in_memory()
    meta = TransformMeta.load(objects, None, Tiers(2, 4, 1000))
    for number in range(300):
        meta = committed(meta.after(run(number, number), [hashes({number})], empty_failed_keys(KEYS), {}, "v"), objects)
        assert len(meta.manifest.runs) <= MOST_RUNS * len(meta.manifest.segments)
    assert len(meta.manifest.runs) < 150
    assert meta.is_ahead(INPUTS)
    assert meta.keys == 300
    assert (meta.find(hashes(range(300)), ["a"]).last_offsets[:, 0] <= list(range(300))).all()
