"""The crash states of a recording are exactly those that its fsyncs allow."""

from __future__ import annotations

import pytest

from faults.crash_states import FULL, crash_states, sampled_states
from faults.recording import RecordingFileSystem, failing, fsync_calls, without


@pytest.fixture
def fs(tmp_path):
    (tmp_path / "old").write_bytes(b"old!")
    return RecordingFileSystem(tmp_path)


def states_of(fs, acknowledged=()):
    """The states with these acknowledgements, without the file that is always there."""
    return [
        {path: data for path, data in state.files.items() if path != "old"}
        for state in crash_states(fs.recording)
        if state.acknowledged == list(acknowledged)
    ]


def test_unsynced_file_may_be_missing_whole_empty_cut_or_zeroed(fs, tmp_path):
    fs.write_new(tmp_path / "a", b"1234")
    states = states_of(fs)
    for expected in ({}, {"a": b"1234"}, {"a": b""}, {"a": b"12"}, {"a": b"12\0\0"}):
        assert states.count(expected) == 1
    assert len(states) == 5


def test_synced_content_without_its_name_may_be_missing_but_not_torn(fs, tmp_path):
    fs.write_new(tmp_path / "a", b"1234")
    fs.fsync_file(tmp_path / "a")
    fs.mark("synced")
    assert states_of(fs, ["synced"]) == [{}, {"a": b"1234"}]


def test_synced_name_without_its_content_is_there_but_may_be_torn(fs, tmp_path):
    fs.write_new(tmp_path / "a", b"1234")
    fs.fsync_dir(tmp_path)
    fs.mark("synced")
    assert {} not in states_of(fs, ["synced"])
    assert {"a": b""} in states_of(fs, ["synced"])


def test_both_synced_is_durable(fs, tmp_path):
    fs.write_new(tmp_path / "a", b"1234")
    fs.fsync_file(tmp_path / "a")
    fs.fsync_dir(tmp_path)
    fs.mark("synced")
    assert states_of(fs, ["synced"]) == [{"a": b"1234"}]


def test_file_in_an_unsynced_folder_goes_with_it(fs, tmp_path):
    fs.mkdir(tmp_path / "folder")
    fs.write_new(tmp_path / "folder" / "a", b"1234")
    fs.fsync_file(tmp_path / "folder" / "a")
    fs.fsync_dir(tmp_path / "folder")
    fs.mark("synced")
    assert states_of(fs, ["synced"]) == [{}, {"folder": None, "folder/a": b"1234"}]


def test_rename_in_a_folder_is_one_step(fs, tmp_path):
    fs.rename(tmp_path / "old", tmp_path / "new")
    assert [set(state.files) for state in crash_states(fs.recording)] == [{"old"}, {"new"}]


def test_rename_across_folders_is_two_steps(fs, tmp_path):
    fs.mkdir(tmp_path / "folder")
    fs.fsync_dir(tmp_path)
    fs.mark("folder")
    fs.rename(tmp_path / "old", tmp_path / "folder" / "new")
    names = [set(s.files) - {"folder"} for s in crash_states(fs.recording) if s.acknowledged]
    assert sorted(map(sorted, names)) == [[], ["folder/new"], ["folder/new", "old"], ["old"]]


def test_removed_name_may_come_back_until_it_is_synced(fs, tmp_path):
    fs.unlink(tmp_path / "old")
    fs.mark("removed")
    fs.fsync_dir(tmp_path)
    fs.mark("synced")
    found = [("old" in s.files, s.acknowledged) for s in crash_states(fs.recording)]
    assert (True, ["removed"]) in found
    assert (False, ["removed"]) in found
    assert (True, ["removed", "synced"]) not in found


def test_overwritten_file_may_be_old_new_or_torn(fs, tmp_path):
    fs.overwrite(tmp_path / "old", b"new!")
    contents = sorted(state.files["old"] for state in crash_states(fs.recording))
    assert contents == sorted([b"old!", b"new!", b"ne", b"ne\0\0"])


def test_file_written_by_others_is_not_durable_until_it_is_synced(fs, tmp_path):
    (tmp_path / ".staging").mkdir()
    (tmp_path / ".staging" / "b").write_bytes(b"1234")
    fs.link(tmp_path / ".staging" / "b", tmp_path / "b")
    fs.fsync_dir(tmp_path)
    fs.mark("named")
    assert {"b": b"12"} in states_of(fs, ["named"])
    fs.fsync_file(tmp_path / "b")
    fs.mark("synced")
    assert states_of(fs, ["named", "synced"]) == [{"b": b"1234"}]


def test_volatile_folder_is_left_out(fs, tmp_path):
    fs.mkdir(tmp_path / ".staging")
    for number in range(20):
        fs.write_new(tmp_path / ".staging" / str(number), b"litter")
    assert states_of(fs) == [{}]


def test_every_subset_of_a_few_pending_operations_is_tried(fs, tmp_path):
    for number in range(5):
        fs.write_new(tmp_path / str(number), b"")
    assert len(states_of(fs)) == 2**5


def test_of_many_pending_operations_singles_and_pairs_are_lost_or_kept(fs, tmp_path):
    for number in range(FULL + 4):
        fs.write_new(tmp_path / str(number), b"1234")
        fs.fsync_file(tmp_path / str(number))
    fs.mark("written")
    sizes = [len(state) for state in states_of(fs, ["written"])]
    assert {size: sizes.count(size) for size in sizes} == {0: 1, 1: 14, 2: 91, 12: 91, 13: 14, 14: 1}


def test_state_materialises_as_it_is(fs, tmp_path_factory, tmp_path):
    fs.mkdir(tmp_path / "folder")
    fs.write_new(tmp_path / "folder" / "a", b"1234")
    for number, state in enumerate(crash_states(fs.recording)):
        again = RecordingFileSystem(state.materialise(tmp_path_factory.mktemp(f"state{number}")))
        assert [s.digest for s in crash_states(again.recording)] == [state.digest]


def test_fsync_can_be_taken_out_by_its_number(fs, tmp_path):
    altered = without(fs, "fsync_file", 1)
    for name in "abc":
        altered.write_new(tmp_path / name, b"1234")
        altered.fsync_file(tmp_path / name)
    altered.fsync_dir(tmp_path)
    altered.fsync_dir(tmp_path)
    assert fsync_calls(fs.recording) == [("fsync_file", 0, "a"), ("fsync_file", 1, "c"), ("fsync_dir", 0, ".")]


def test_call_can_be_made_to_fail_by_its_number(fs, tmp_path):
    altered = failing(fs, "write_new", 1)
    altered.write_new(tmp_path / "a", b"1234")
    with pytest.raises(OSError, match="Input/output error"):
        altered.write_new(tmp_path / "b", b"1234")
    altered.write_new(tmp_path / "c", b"1234")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "old"]


@pytest.fixture
def publishing(fs, tmp_path):
    """Two files that are synced and acknowledged, and one that is not synced."""
    fs.mkdir(tmp_path / "data")
    for name in ("a", "b"):
        fs.write_new(tmp_path / "data" / name, name.encode() * 4)
        fs.fsync_file(tmp_path / "data" / name)
        fs.fsync_dir(tmp_path / "data")
        fs.fsync_dir(tmp_path)
        fs.mark(name)
    fs.write_new(tmp_path / "cache", b"1234")
    return fs.recording


def test_every_state_of_a_sample_is_a_state_of_the_enumeration(publishing):
    def key(state):
        return state.digest, len(state.acknowledged)

    every = {key(state) for state in crash_states(publishing)}
    found = [key(state) for state in sampled_states(publishing, 50)]
    assert len(found) == len(set(found))
    assert set(found) <= every
    assert 10 < len(found) <= 50


def test_sample_holds_the_first_state_the_last_and_each_acknowledgement(publishing):
    states = list(sampled_states(publishing, 0))
    assert set(states[0].files) == {"old"}
    assert set(states[-1].files) == {"old", "data", "data/a", "data/b", "cache"}
    assert {len(state.acknowledged) for state in states} == {0, 1, 2}


def test_sample_loses_and_tears_each_kind_of_operation_as_late_as_possible(publishing):
    found = [(state.files, state.acknowledged) for state in sampled_states(publishing, 0)]
    both = {"old": b"old!", "data": None, "data/a": b"aaaa", "data/b": b"bbbb"}
    for torn in ({}, {"cache": b""}, {"cache": b"12"}, {"cache": b"12\0\0"}):
        assert ({**both, **torn}, ["a", "b"]) in found
    one = {"old": b"old!", "data": None, "data/a": b"aaaa"}
    for torn in ({}, {"data/b": b""}, {"data/b": b"bb"}, {"data/b": b"bb\0\0"}):
        assert ({**one, **torn}, ["a"]) in found
