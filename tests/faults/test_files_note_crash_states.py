"""After a crash of the machine at any moment of a run it is still known which file the rows of a dataset came from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from faults.crash_states import CrashState, chosen_states
from faults.recording import RecordingFileSystem
from floodmark.errors import UnreadableFile
from sources.test_ingest_files_faults import KEYED, PLAIN, Shop


def crashes(shop: Shop) -> list[CrashState]:
    """What the disk may hold after a crash during a run, or after it: of states with one head and note, the first."""
    recorder = RecordingFileSystem(shop.folder)
    assert not shop.run(recorder).nothing
    recorder.mark("run")
    found: dict[object, CrashState] = {}
    for state in chosen_states(recorder.recording, 60):
        told = [(path, data) for path, data in state.files.items() if path.endswith(("refs/head", "files.json"))]
        found.setdefault((tuple(told), tuple(state.acknowledged)), state)
    return list(found.values())


def after(shop: Shop, state: CrashState, folder: Path) -> Shop:
    """The files and the lake as the crash has left them."""
    shutil.rmtree(folder, ignore_errors=True)
    return Shop(state.materialise(folder), shop.declared, began=1_800_000_000)


@pytest.mark.soak
def test_file_that_becomes_again_what_it_was_after_a_crash_is_not_missed(tmp_path):
    """10, then 20 with a crash, then 10 again, whose hash is on the chain: only the note knows that it was 20."""
    shop = Shop(tmp_path / "shop", KEYED)
    shop.put("a", (1, 10))
    shop.run()
    shop.put("a", (1, 20))
    states = crashes(shop)
    acknowledged = 0
    for state in states:
        cut = after(shop, state, tmp_path / "cut")
        acknowledged += bool(state.acknowledged)
        assert cut.rows() in ([[(1, 20)]] if state.acknowledged else [[(1, 10)], [(1, 20)]]), state.story
        cut.put("a", (1, 10))
        cut.run()
        assert cut.rows() == [(1, 10)], state.story
        assert cut.run().nothing
    assert 0 < acknowledged < len(states)


@pytest.mark.soak
def test_file_that_became_again_what_it_was_before_a_crash_is_not_missed(tmp_path):
    shop = Shop(tmp_path / "shop", KEYED)
    for price in (10, 20):
        shop.put("a", (1, price))
        shop.run()
    shop.put("a", (1, 10))
    for state in crashes(shop):
        for price in (10, 20):
            cut = after(shop, state, tmp_path / "cut")
            cut.put("a", (1, price))
            cut.run()
            assert cut.rows() == [(1, price)], state.story
            assert cut.run().nothing


@pytest.mark.soak
def test_rows_of_a_file_that_grows_after_a_crash_are_not_there_twice(tmp_path):
    """Without a key only the note knows that the file has rows there: it is refused then, as without a crash."""
    shop = Shop(tmp_path / "shop", PLAIN)
    shop.put("a", (1, 10))
    shop.run()
    shop.put("b", (2, 20))
    outcomes = set()
    for state in crashes(shop):
        cut = after(shop, state, tmp_path / "cut")
        before = cut.rows()
        cut.put("b", (2, 20), (3, 30))
        if (2, 20) in before:
            with pytest.raises(UnreadableFile):
                cut.run()
            assert cut.rows() == before, state.story
        else:
            cut.run()
            assert cut.rows() == [(1, 10), (2, 20), (3, 30)], state.story
        outcomes.add(len(before))
    assert outcomes == {1, 2}
