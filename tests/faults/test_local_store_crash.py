"""After a crash at any moment the local store has all that it acknowledged, and nothing half.

The promise is also broken on purpose: without any one of its fsyncs, or with a file written in place, some
crash state must show it, or the promise would not be tested.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.crash_states import CrashState, chosen_states
from faults.recording import HastyFileSystem, RecordingFileSystem, fsync_calls, without
from floodmark.storage.local import LocalStore

CONTENTS = {f"{folder}/{name}": f"the content of {name}".encode() * 3 for folder in ("a", "b/c") for name in "xyz"}
HEADS = [b"", b"a/x a/y b/c/z", b"a/x a/y b/c/z a/z b/c/x"]
Scenario = Callable[[Path, Any, RecordingFileSystem], None]


def everyday(root: Path, fs: Any, recorder: RecordingFileSystem) -> None:
    """Objects, files and a head that names them, twice, with a cache and a delete."""
    store = LocalStore(root / "new" / "lake", fs)

    def put(key: str) -> None:
        store.put_if_absent(key, CONTENTS[key])
        recorder.mark(key)

    def put_file(key: str) -> None:
        path = store.staging() / key.replace("/", "-")
        path.write_bytes(CONTENTS[key])
        store.put_file(key, path)
        recorder.mark(key)

    put("a/x")
    put("a/y")
    put_file("b/c/z")
    store.compare_and_swap("refs/head", None, HEADS[1])
    recorder.mark("head 1")
    store.put_derived("a/cache", b"can be lost")
    put_file("a/z")
    put("b/c/x")
    store.compare_and_swap("refs/head", HEADS[1], HEADS[2])
    recorder.mark("head 2")
    put("b/c/y")
    recorder.mark("to be deleted")
    store.delete("b/c/y")


def after_a_writer_that_died(root: Path, fs: Any, recorder: RecordingFileSystem) -> None:
    """What another writer has made, but not lived to sync, is durable once a store has acknowledged it."""
    lake = root / "lake"

    def leave_staged(data: bytes) -> Path:
        staged = LocalStore(lake, fs).staging() / "dead"
        fs.write_new(staged, data)
        fs.fsync_file(staged)
        return staged

    fs.mkdir(lake)
    fs.mkdir(lake / "a")
    LocalStore(lake, fs).put_if_absent("a/x", CONTENTS["a/x"])
    recorder.mark("a/x")

    fs.link(leave_staged(CONTENTS["a/y"]), lake / "a" / "y")
    path = lake / ".staging" / "y"
    path.write_bytes(CONTENTS["a/y"])
    LocalStore(lake, fs).put_file("a/y", path)
    recorder.mark("a/y")

    LocalStore(lake, fs).put_if_absent("b/c/z", CONTENTS["b/c/z"])
    recorder.mark("b/c/z")
    fs.unlink(lake / ".staging" / "dead")
    fs.mkdir(lake / "refs")
    fs.rename(leave_staged(HEADS[1]), lake / "refs" / "head")
    LocalStore(lake, fs).compare_and_swap("refs/head", HEADS[1], HEADS[1])
    recorder.mark("head 1")


def head_copied_by_another_tool(root: Path, fs: Any, recorder: RecordingFileSystem) -> None:
    """A head that no store has written is durable once it was confirmed."""
    store = LocalStore(root / "lake", fs)
    for key in HEADS[1].decode().split():
        store.put_if_absent(key, CONTENTS[key])
        recorder.mark(key)
    (root / "lake" / "refs").mkdir()
    (root / "lake" / "refs" / "head").write_bytes(HEADS[1])
    recorder.mark("copied")
    store.compare_and_swap("refs/head", HEADS[1], HEADS[1])
    recorder.mark("head 1")


def file_from_another_disk(root: Path, fs: Any, recorder: RecordingFileSystem) -> None:
    """A file that no link can reach is copied, and as durable."""

    class TwoDisks:
        def __getattr__(self, name: str) -> Any:
            return getattr(fs, name)

        def link(self, source: Path, target: Path) -> None:
            if source.parent.name != ".staging":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            fs.link(source, target)

    (root / ".other").mkdir()
    (root / ".other" / "x").write_bytes(CONTENTS["a/x"])
    LocalStore(root / "lake", TwoDisks()).put_file("a/x", root / ".other" / "x")
    recorder.mark("a/x")


SCENARIOS = [everyday, after_a_writer_that_died, head_copied_by_another_tool, file_from_another_disk]


def problem_of(state: CrashState, folder: Path) -> str | None:
    """What is wrong after reopening, or None."""
    [lake] = [path for path in ("new/lake", "lake") if path in state.files] or ["lake"]
    store = LocalStore(state.materialise(folder) / lake, HastyFileSystem())
    there = {info.key: store.get(info.key) for info in store.list("")}
    half = [key for key, data in there.items() if key in CONTENTS and data != CONTENTS[key]]
    if half:
        return f"half an object: {half}"
    head = there.get("refs/head", b"")
    copied = "copied" in state.acknowledged and "head 1" not in state.acknowledged
    if head not in HEADS:
        return None if copied else f"half a head: {head!r}"
    missing = [key for key in head.decode().split() if key not in there]
    if missing:
        return f"the head names what is missing: {missing}"
    acknowledged = [int(name[5:]) for name in state.acknowledged if name.startswith("head")]
    if HEADS.index(head) < max(acknowledged, default=0):
        return f"the head went back to {head!r}"
    deleted = {"b/c/y"} if "to be deleted" in state.acknowledged else set()
    lost = [name for name in state.acknowledged if name in CONTENTS and name not in deleted | there.keys()]
    if lost:
        return f"acknowledged and lost: {lost}"
    store.put_if_absent("next/object", b"next")
    if not store.compare_and_swap("refs/head", there.get("refs/head"), b"next"):
        return "the next swap does not work"
    return None


def first_problem(recorder: RecordingFileSystem, folder: Path) -> str | None:
    for number, state in enumerate(chosen_states(recorder.recording, 60)):
        problem = problem_of(state, folder / str(number))
        shutil.rmtree(folder / str(number))
        if problem:
            return f"{problem}\n{state.story}\nacknowledged: {state.acknowledged}"
    return None


def recorded(scenario: Scenario, root: Path, alter: Callable[[Any], Any]) -> RecordingFileSystem:
    root.mkdir()
    recorder = RecordingFileSystem(root)
    scenario(root, alter(recorder), recorder)
    return recorder


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_crash_leaves_what_was_acknowledged_and_nothing_half(scenario, tmp_path):
    recorder = recorded(scenario, tmp_path / "run", lambda fs: fs)
    assert first_problem(recorder, tmp_path / "states") is None
    states = list(chosen_states(recorder.recording, 60))
    assert len(states) > 5
    assert {len(state.acknowledged) for state in states} == set(range(len(states[-1].acknowledged) + 1))


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_fsync_is_needed(scenario, tmp_path):
    calls = fsync_calls(recorded(scenario, tmp_path / "run", lambda fs: fs).recording)
    assert calls
    harmless = []
    for number, (call, nth, path) in enumerate(calls):
        recorder = recorded(scenario, tmp_path / f"run {number}", lambda fs, c=call, n=nth: without(fs, c, n))
        if first_problem(recorder, tmp_path / f"states {number}") is None:
            harmless.append((call, nth, path))
    assert harmless == []


class InPlace:
    """A file system on which one call writes into the target as it lies there, even if synced at once."""

    def __init__(self, inner: RecordingFileSystem, call: str) -> None:
        self._inner = inner
        setattr(self, call, self._copy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _copy(self, source: Path, target: Path) -> None:
        data = self._inner.read(source)
        if target.exists():
            self._inner.overwrite(target, data)
        else:
            self._inner.write_new(target, data)
        self._inner.fsync_file(target)
        if source.parent.name == ".staging" and "rename" in self.__dict__:
            self._inner.unlink(source)


@pytest.mark.parametrize(("call", "problem"), [("rename", "half a head"), ("link", "half an object")])
def test_writing_in_place_shows_half_of_it(call, problem, tmp_path):
    recorder = recorded(everyday, tmp_path / "run", lambda fs: InPlace(fs, call))
    assert problem in (first_problem(recorder, tmp_path / "states") or "")


def test_head_before_its_objects_shows_a_head_without_them(tmp_path):
    def wrong_order(root: Path, fs: Any, recorder: RecordingFileSystem) -> None:
        store = LocalStore(root / "lake", fs)
        store.compare_and_swap("refs/head", None, HEADS[1])
        for key in HEADS[1].decode().split():
            store.put_if_absent(key, CONTENTS[key])

    recorder = recorded(wrong_order, tmp_path / "run", lambda fs: fs)
    assert "names what is missing" in (first_problem(recorder, tmp_path / "states") or "")
