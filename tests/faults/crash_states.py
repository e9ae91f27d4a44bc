"""What a disk may hold after a crash: every state that a recording of file-system calls allows.

At each moment some operations are durable and the others are pending. A crash keeps any of the pending ones:
names of a folder and contents of files survive independently of each other and of their order, and a file's
content may be cut or end in zeros. Up to `FULL` pending operations every subset is tried; beyond that all
kept but one or two, and none kept but one or two.

All of these states are tried under `soak`. Other profiles try a sample, which is chosen before any state is built.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, islice
from pathlib import Path, PurePosixPath

from faults.recording import ROOT, Entries, FsyncDir, FsyncFile, Mark, Operation, Recording, Write
from profiles import IN_FULL, examples

FULL = 10
VOLATILE = (".staging",)  # nothing reads these folders after a crash
Pending = Write | Entries
Tree = dict[str, bytes | None]  # path → content; None is a folder


@dataclass(frozen=True)
class CrashState:
    """One state that the disk may be in after a crash, and what had been acknowledged before it."""

    files: Tree
    acknowledged: list[str]
    story: str = field(compare=False)  # where the crash was and what became of the pending operations

    @property
    def digest(self) -> str:
        """The same for states with the same files, whatever was acknowledged: a key to keep results under."""
        digest = hashlib.sha256()
        for path, data in sorted(self.files.items()):
            digest.update(f"{path} {None if data is None else len(data)} ".encode())
            digest.update(data or b"")
        return digest.hexdigest()

    def materialise(self, folder: Path) -> Path:
        """Write the state into a folder, made if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in sorted(self.files.items()):
            if data is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(data)
        return folder


@dataclass(frozen=True)
class Part:
    """A part of an enumeration that is too long for one test."""

    number: int = 0
    of: int = 1

    def __str__(self) -> str:
        return f"{self.number + 1}-of-{self.of}"


WHOLE = Part()


def parts(soak: int) -> list[Part]:
    """So many parts under `soak`; a sample is one part."""
    return [Part(number, soak) for number in range(soak)] if IN_FULL else [WHOLE]


def chosen_states(
    recording: Recording, ci: int, part: Part = WHOLE, volatile: Iterable[str] = VOLATILE
) -> Iterator[CrashState]:
    """Under `soak` all states of the part; in other profiles a sample of about `ci` states."""
    if IN_FULL:
        return islice(crash_states(recording, volatile), part.number, None, part.of)
    return sampled_states(recording, examples(ci), volatile)


def sampled_states(recording: Recording, count: int, volatile: Iterable[str] = VOLATILE) -> Iterator[CrashState]:
    """Some states, the same each time: those of `_required_fates`, and random ones until there are `count`."""
    moments = _moments(recording, frozenset(volatile))
    chance = random.Random(len(moments))
    fates = list(_required_fates(recording, moments))
    fates += [_random_fate(moments, chance) for _ in range(count - len(fates))]
    by_step: dict[int, list[_Fate]] = {}
    for fate in dict.fromkeys(fates):
        by_step.setdefault(fate.step, []).append(fate)
    disk, seen = _Disk(recording, frozenset(volatile)), set()
    acknowledged: list[str] = []
    for step, (operation, pending) in enumerate(moments):
        if isinstance(operation, Mark):
            acknowledged.append(operation.name)
        elif operation is not None:
            disk.apply(operation)
        for fate in by_step.get(step, ()):
            kept = [op for index, op in enumerate(pending) if index not in fate.lost]
            torn = None if fate.torn is None else pending[fate.torn]
            assert not isinstance(torn, Entries)
            files = disk.outcome(kept, torn, fate.zeroed)
            key = (frozenset(files.items()), len(acknowledged))
            if key not in seen:
                seen.add(key)
                yield CrashState(files, list(acknowledged), _story(step, operation, pending, kept, torn))


@dataclass(frozen=True)
class _Fate:
    """What a crash after a step does to the operations that are pending then, by their indexes."""

    step: int
    lost: frozenset[int] = frozenset()
    torn: int | None = None
    zeroed: bool = False  # the torn half is zeros, and not cut off


_Moment = tuple[Operation | None, list[Pending]]


def _moments(recording: Recording, volatile: frozenset[str]) -> list[_Moment]:
    """After each operation, and before the first one, what is pending."""
    disk = _Disk(recording, volatile)
    found: list[_Moment] = [(None, disk.pending())]
    for operation in recording.operations:
        disk.apply(operation)
        found.append((operation, disk.pending()))
    return found


def _required_fates(recording: Recording, moments: list[_Moment]) -> Iterator[_Fate]:
    """The first and the last state; around each acknowledgement the ends; for each kind of operation its loss.

    An operation is lost, or torn, alone and as late as possible: then most depends on it.
    """
    last = len(moments) - 1
    yield _Fate(0)
    yield _Fate(last)
    for step, (operation, pending) in enumerate(moments):
        if isinstance(operation, Mark):
            yield _Fate(step - 1)
            yield _Fate(step, lost=frozenset(range(len(pending))))
    names = {n: op.path for op in recording.operations if isinstance(op, Entries) for _, n in op.changes if n}
    kinds: dict[object, _Fate] = {}
    for step, (_, pending) in enumerate(moments):
        for index, op in enumerate(pending):
            kinds["lost", _kind(op, names)] = _Fate(step, lost=frozenset([index]))
            if isinstance(op, Write):
                kinds["cut", _kind(op, names)] = _Fate(step, torn=index)
                kinds["zeroed", _kind(op, names)] = _Fate(step, torn=index, zeroed=True)
    yield from kinds.values()


def _kind(operation: Pending, names: dict[int, str]) -> tuple[str, ...]:
    """What an operation does and in which folder, without names that are hashes or numbers."""
    if isinstance(operation, Write):
        what, path = "write", names.get(operation.node, operation.path)
    else:
        what, path = "/".join("unlink" if node is None else "name" for _, node in operation.changes), operation.path
    return what, *("#" if len(part) > 16 or any(map(str.isdigit, part)) else part for part in PurePosixPath(path).parts)


def _random_fate(moments: list[_Moment], chance: random.Random) -> _Fate:
    """All kept, all lost, one or two lost, or any of them lost; sometimes one that is kept is torn."""
    step = chance.randrange(len(moments))
    pending = moments[step][1]
    every = range(len(pending))
    lost = chance.choice(
        [
            [],
            every,
            chance.sample(every, min(len(every), chance.randint(1, 2))),
            [index for index in every if chance.random() < 0.5],
        ]
    )
    may_be_torn = [i for i in every if isinstance(pending[i], Write) and i not in lost]
    torn = chance.choice(may_be_torn) if may_be_torn and chance.random() < 0.3 else None
    return _Fate(step, frozenset(lost), torn, zeroed=torn is not None and chance.random() < 0.5)


def crash_states(
    recording: Recording, volatile: Iterable[str] = VOLATILE, thin_from: int | None = None
) -> Iterator[CrashState]:
    """Every distinct pair of files and acknowledgements that a crash can leave.

    Folders named in `volatile` are left out of the states: nothing reads them after a crash. While `thin_from`
    operations or more are pending, only all, none, the newest and the two newest of them are kept: where these only
    delete, the first and the last state of each operation are the same, and those between them are not made.
    """
    disk = _Disk(recording, frozenset(volatile))
    seen: set[tuple[frozenset[tuple[str, bytes | None]], int]] = set()
    acknowledged: list[str] = []
    before: list[Pending] | None = None  # what was pending when states were last given
    for step, operation in enumerate([None, *recording.operations]):
        if isinstance(operation, Mark):
            acknowledged.append(operation.name)
            before = None
        elif operation is not None:
            disk.apply(operation)
        pending = disk.pending()
        for kept, may_be_torn in _survivors(pending, before, thin_from):
            for files, torn in disk.outcomes(kept, may_be_torn):
                key = (frozenset(files.items()), len(acknowledged))
                if key not in seen:
                    seen.add(key)
                    story = _story(step, operation, pending, kept, torn)
                    yield CrashState(files, list(acknowledged), story)
        before = pending


class _Disk:
    """The durable part of the disk, and the operations that wait for an fsync."""

    def __init__(self, recording: Recording, volatile: frozenset[str]) -> None:
        self._volatile = volatile
        self._entries = {node: dict(entries) for node, entries in recording.entries.items()}
        self._contents = dict(recording.contents)
        self._files = {op.node for op in recording.operations if isinstance(op, Write)} | set(self._contents)
        self._waiting: list[Pending] = []

    def apply(self, operation: Operation) -> None:
        """Do the next operation: it waits for an fsync, or is one."""
        match operation:
            case Write() | Entries():
                self._waiting.append(operation)
            case FsyncFile(node=node):
                for write in self._take(lambda op: isinstance(op, Write) and op.node == node):
                    assert isinstance(write, Write)
                    self._contents[node] = write.data
            case FsyncDir(folder=folder):
                for change in self._take(lambda op: isinstance(op, Entries) and op.folder == folder):
                    assert isinstance(change, Entries)
                    _change(self._entries.setdefault(folder, {}), change)

    def pending(self) -> list[Pending]:
        """The waiting operations that can make a difference outside the volatile folders."""
        folders = self._lasting_folders()
        named = {node for folder in folders for node in self._entries.get(folder, {}).values()}
        for op in self._waiting:
            if isinstance(op, Entries) and op.folder in folders:
                named.update(node for name, node in op.changes if node and name not in self._volatile)
        return [op for op in self._waiting if self._matters(op, folders, named)]

    def _matters(self, operation: Pending, folders: set[int], named: set[int]) -> bool:
        if isinstance(operation, Write):
            return operation.node in named
        lasting = any(name not in self._volatile for name, _ in operation.changes)
        return lasting and operation.folder in folders

    def outcomes(self, kept: list[Pending], may_be_torn: bool) -> Iterator[tuple[Tree, Write | None]]:
        """The files when these operations survive, whole, and with each one of the contents torn."""
        nodes, contents = self._surviving(kept)
        yield self._tree(nodes, contents), None
        visible = set(nodes.values()) if may_be_torn else set()
        for write in kept:
            if isinstance(write, Write) and write.node in visible:
                for zeroed in (False, True):
                    yield self._tree(nodes, {**contents, write.node: _torn(write.data, zeroed)}), write

    def outcome(self, kept: list[Pending], torn: Write | None, zeroed: bool) -> Tree:
        """The files when these operations survive, of which one may be torn."""
        nodes, contents = self._surviving(kept)
        if torn is not None:
            contents[torn.node] = _torn(torn.data, zeroed)
        return self._tree(nodes, contents)

    def _surviving(self, kept: list[Pending]) -> tuple[dict[str, int], dict[int, bytes]]:
        """The node of each path, and the content of each node."""
        entries, contents = dict(self._entries), dict(self._contents)
        for operation in kept:
            if isinstance(operation, Write):
                contents[operation.node] = operation.data
            else:
                entries[operation.folder] = dict(entries.get(operation.folder, {}))
                _change(entries[operation.folder], operation)
        return dict(self._walk(ROOT, "", entries)), contents

    def _tree(self, nodes: dict[str, int], contents: dict[int, bytes]) -> Tree:
        # A file whose content never reached the disk is empty.
        return {path: contents.get(node, b"") if node in self._files else None for path, node in nodes.items()}

    def _walk(self, folder: int, prefix: str, entries: dict[int, dict[str, int]]) -> Iterator[tuple[str, int]]:
        for name, node in entries.get(folder, {}).items():
            if name not in self._volatile:
                yield prefix + name, node
                if node not in self._files:
                    yield from self._walk(node, f"{prefix}{name}/", entries)

    def _lasting_folders(self) -> set[int]:
        """The folders that are, or may be, reached without passing a volatile name."""
        found, left = {ROOT}, [ROOT]
        while left:
            folder = left.pop()
            names = list(self._entries.get(folder, {}).items())
            names += [c for op in self._waiting if isinstance(op, Entries) and op.folder == folder for c in op.changes]
            for name, node in names:
                if name not in self._volatile and node not in (None, *found) and node not in self._files:
                    found.add(node)
                    left.append(node)
        return found

    def _take(self, wanted) -> list[Pending]:
        taken = [op for op in self._waiting if wanted(op)]
        self._waiting = [op for op in self._waiting if not wanted(op)]
        return taken


def _torn(data: bytes, zeroed: bool) -> bytes:
    half = len(data) // 2
    return data[:half] + bytes(len(data) - half if zeroed else 0)


def _change(entries: dict[str, int], operation: Entries) -> None:
    for name, node in operation.changes:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _survivors(
    pending: list[Pending], before: list[Pending] | None, thin_from: int | None
) -> Iterator[tuple[list[Pending], bool]]:
    """The sets of operations that may survive, and whether to tear their contents as well.

    Left out is what can give no state that the operations pending `before` have not given.
    """
    here = {id(op) for op in pending}
    gone = before is None or any(id(op) not in here for op in before)
    old = set() if before is None else {id(op) for op in before}
    added = {index for index, op in enumerate(pending) if id(op) not in old}
    thin = thin_from is not None and len(pending) >= thin_from
    for kept in _ends(len(pending)) if thin else _subsets(len(pending)):
        lost = len(pending) - len(kept)
        if before is None:
            new = True
        elif len(before) <= FULL and len(pending) <= FULL:
            new = bool(kept & added)  # an fsync only forbids states, if all of them have been given
        else:
            new = gone or bool(added)
        if new:
            # Beyond FULL a torn content counts as one of the two that have a fate of their own.
            yield [pending[index] for index in sorted(kept)], len(pending) <= FULL or lost < 2 or len(kept) <= 2


def _subsets(count: int) -> Iterator[set[int]]:
    if count <= FULL:
        for size in range(count + 1):
            yield from map(set, combinations(range(count), size))
        return
    few = [set(chosen) for size in range(3) for chosen in combinations(range(count), size)]
    yield from (set(range(count)) - chosen for chosen in few)
    yield from few


def _ends(count: int) -> Iterator[set[int]]:
    yield from (set(range(count)), set(), {count - 1}, {count - 2, count - 1})


def _story(
    step: int, operation: Operation | None, pending: list[Pending], kept: list[Pending], torn: Write | None
) -> str:
    lines = [f"crash after operation {step}: {_line(operation)}"]
    survived = set(map(id, kept))
    for op in pending:
        fate = "torn" if op is torn else "kept" if id(op) in survived else "lost"
        lines.append(f"  {fate}: {_line(op)}")
    return "\n".join(lines)


def _line(operation: Operation | None) -> str:
    match operation:
        case Write(data=data, path=path):
            return f"write {len(data)} bytes to {path}"
        case Entries(changes=changes, path=path):
            return f"{'/'.join('unlink' if node is None else 'name' for _, node in changes)} {path}"
        case FsyncFile(path=path) | FsyncDir(path=path):
            return f"fsync {path}"
        case Mark(name=name):
            return f"acknowledged {name!r}"
    return "the start"
