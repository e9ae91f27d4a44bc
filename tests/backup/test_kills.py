"""A backup or restore that is killed at any change is finished by the same call, and never leaves a false state."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

import floodmark as fm
from backup.stores import CHANGES, ActingStore, Killed, content, copied, kill, problems
from backup.worlds import World, open_lake, wrong
from faults.recording import WatchedFileSystem
from floodmark.backup.restore import restore_backup
from floodmark.backup.verify import find_backup_problems
from floodmark.errors import BadBackup
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from profiles import sample


def killed(store: ActingStore, nth: int, act: Any) -> None:
    """Call something in a process that is killed before its nth change of the store."""
    store.before(nth, kill, CHANGES)
    with pytest.raises(Killed):
        act()
    store.count(())


def changes_of(store: ActingStore, act: Any) -> int:
    store.count(CHANGES)
    act()
    return store.calls


@pytest.mark.soak
def test_killed_backup_leaves_the_last_one_and_the_next_continues():
    world, template = World().build(), ActingStore()
    world.lake.backup(template)
    before = content(open_lake(copied(template)))
    world.purge_and_run()
    world.lake.drop("log")
    after = content(world.lake)
    count = changes_of(copy := copied(template), lambda: world.lake.backup(copy))
    for nth in sample(range(count), 25):
        copy = copied(template)
        killed(copy, nth, lambda copy=copy: world.lake.backup(copy))
        restored = MemoryStore()
        open_lake(restored).restore(copy)
        assert content(open_lake(restored)) in (before, after), nth
        done = world.lake.backup(copy)
        assert content(open_lake(copy)) == after, nth
        assert problems(open_lake(copy)) == [], nth
        assert done.copied_objects <= count


@pytest.mark.soak
def test_killed_first_backup_is_not_taken_for_a_backup_and_is_continued():
    world = World().build()
    count = changes_of(copy := ActingStore(), lambda: world.lake.backup(copy))
    for nth in sample(range(count), 15):
        copy = ActingStore()
        killed(copy, nth, lambda copy=copy: world.lake.backup(copy))
        if copy.stat("backup/manifest") is None:
            with pytest.raises(BadBackup, match="not a finished backup"):
                open_lake(MemoryStore()).restore(copy)
        there = sum(1 for _ in copy.list("datasets"))
        again = world.lake.backup(copy)
        assert there == 0 or again.copied_objects < again.objects
        assert content(open_lake(copy)) == content(world.lake)
        assert problems(open_lake(copy)) == []


@pytest.mark.soak
@pytest.mark.parametrize("after", ["nothing", "a newer lake", "an older lake"])
def test_killed_restore_leaves_each_dataset_old_or_new_and_the_next_finishes(after):
    world, backup = World().build(), MemoryStore()
    lake = ActingStore() if after == "nothing" else copied(world.store)
    if after == "an older lake":
        world.write_and_run()
    world.lake.backup(backup)
    new = content(open_lake(backup))
    if after == "a newer lake":
        newer = World(lake)
        newer.batches = 2
        newer.write_and_run()
    old = content(open_lake(lake))
    count = changes_of(trial := copied(lake), lambda: restore_backup(trial, backup, (), replace_newer=True))
    for nth in sample(range(count), 20):
        trial = copied(lake)
        killed(trial, nth, lambda trial=trial: restore_backup(trial, backup, (), replace_newer=True))
        found = content(open_lake(trial))
        assert all(found[name] in (old.get(name), new.get(name)) for name in found), nth
        restore_backup(trial, backup, (), replace_newer=True)
        assert content(open_lake(trial)) == new, nth
        assert problems(open_lake(trial)) == [], nth
        assert not list(wrong(open_lake(trial)))


def full_from(nth: int) -> Any:
    def before(number: int, name: str) -> None:
        if number >= nth and name in ("write_new", "copy_new", "mkdir", "link", "rename", "fsync_file", "fsync_dir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return before


@pytest.mark.soak
def test_full_disk_ends_a_backup_with_an_error_and_the_next_continues(tmp_path):
    world = World().build()
    fs = WatchedFileSystem()
    world.lake.backup(LocalStore(tmp_path / "complete", fs))
    for nth in sample(range(len(fs.calls)), 10):
        folder = tmp_path / f"{nth}"
        try:
            world.lake.backup(LocalStore(folder, WatchedFileSystem(full_from(nth))))
        except fm.FloodmarkError as error:
            assert error.hint  # noqa: PT017
            if (folder / "backup" / "manifest").exists():
                assert {one.kind for one in find_backup_problems(LocalStore(folder))} <= {"backup"}
        world.lake.backup(folder)
        assert content(open_lake(LocalStore(folder))) == content(world.lake)
        assert problems(open_lake(LocalStore(folder))) == []
