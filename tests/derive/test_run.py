"""The loop of derived things, shown with one that counts what is done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from floodmark.derive.run import Derivation, run_derivation
from floodmark.errors import FloodmarkError, LostRace, StorageError, Unreadable


@dataclass
class World:
    """A source that is copied record by record, and the copy."""

    source: int = 0
    copy: int | None = None  # it has to be created first
    version: int = 0  # of the copy, with every change

    def change(self, copy: int) -> None:
        self.copy = copy
        self.version += 1


@dataclass(frozen=True)
class Heads:
    source: int
    copy: int | None
    version: int


@dataclass
class Copying(Derivation[Heads, str]):
    """Copies what is missing; before each attempt the next of `troubles` happens."""

    world: World
    troubles: list[Callable[[Heads], None]] = field(default_factory=list)
    while_waiting: Callable[[], None] = lambda: None
    log: list[str] = field(default_factory=list)

    def take_snapshot(self) -> Heads:
        self.log.append("snapshot")
        return Heads(self.world.source, self.world.copy, self.world.version)

    def idle(self, state: Heads) -> str | None:
        return f"done with {state.copy}" if state.copy == state.source else None

    def prepare(self, state: Heads) -> bool:
        if state.copy is None and self.world.copy is None:
            self.log.append("create")
            self.world.change(0)
        return state.copy is None

    @contextmanager
    def turn(self, state: Heads) -> Iterator[None]:
        self.while_waiting()
        self.log.append("turn")
        yield
        self.log.append("end of turn")

    def attempt(self, state: Heads) -> str:
        self.log.append(f"attempt {state.copy}→{state.source}")
        if self.troubles:
            self.troubles.pop(0)(state)
        self.world.change(state.source)
        return f"copied {state.source}"

    def moved(self, state: Heads) -> bool:
        return state.version != self.world.version

    def inputs_moved(self, state: Heads) -> bool:
        return state.source != self.world.source


def raising(error: Exception) -> Callable[[Heads], None]:
    def trouble(_: Heads) -> None:
        raise error

    return trouble


def test_an_idle_run_takes_no_turn() -> None:
    copying = Copying(World(3, 3))

    assert run_derivation(copying) == "done with 3"
    assert copying.log == ["snapshot"]


def test_a_run_takes_one_snapshot_and_attempts_under_the_turn() -> None:
    copying = Copying(World(3, 1))

    assert run_derivation(copying) == "copied 3"
    assert copying.log == ["snapshot", "turn", "attempt 1→3", "end of turn"]


def test_what_is_created_is_in_the_snapshot_of_the_attempt() -> None:
    copying = Copying(World(3))

    assert run_derivation(copying) == "copied 3"
    assert copying.log == ["snapshot", "create", "snapshot", "turn", "attempt 0→3", "end of turn"]


def test_a_run_that_waited_finds_the_work_done() -> None:
    world = World(3, 1)
    copying = Copying(world, while_waiting=lambda: world.change(3))

    assert run_derivation(copying) == "done with 3"
    assert copying.log == ["snapshot", "turn", "snapshot", "end of turn"]


def test_a_lost_race_takes_another_snapshot() -> None:
    world = World(3, 1)

    def lose(_: Heads) -> None:
        world.change(2)
        raise LostRace("another run was first")

    copying = Copying(world, [lose])

    assert run_derivation(copying) == "copied 3"
    assert copying.log == ["snapshot", "turn", "attempt 1→3", "snapshot", "attempt 2→3", "end of turn"]


def test_a_run_that_loses_to_one_that_did_the_work_is_done() -> None:
    world = World(3, 1)

    def lose(_: Heads) -> None:
        world.change(3)
        raise LostRace("another run was first")

    assert run_derivation(Copying(world, [lose])) == "done with 3"


def test_what_was_committed_before_a_lost_race_is_reported_although_nothing_is_left() -> None:
    world = World(3, 1)

    @dataclass
    class Counting(Copying):
        commits: int = 0

        def idle(self, state: Heads) -> str | None:
            return f"{self.commits} commits" if state.copy == state.source else None

        def attempt(self, state: Heads) -> str:
            self.commits += 1
            world.change(2)
            world.change(3)  # by another run
            raise LostRace("another run was first")

    assert run_derivation(Counting(world)) == "1 commits"


def test_the_last_lost_race_is_raised_when_the_tries_are_used_up() -> None:
    copying = Copying(World(3, 1), [raising(LostRace(f"race {number}")) for number in range(9)])

    with pytest.raises(LostRace, match="race 3"):
        run_derivation(copying, tries=4)
    assert copying.log.count("attempt 1→3") == 4


def test_what_cannot_be_read_is_repaired_once_then_raised() -> None:
    copying = Copying(World(3, 1), [raising(Unreadable("damaged")) for _ in range(9)])

    with pytest.raises(Unreadable, match="damaged"):
        run_derivation(copying)
    assert copying.log.count("attempt 1→3") == 2


def test_what_was_replaced_while_it_was_read_needs_no_repair() -> None:
    world = World(3, 1)

    def replace(_: Heads) -> None:
        world.source += 1
        raise Unreadable("an input was replaced")

    assert run_derivation(Copying(world, [replace] * 5)) == "copied 8"


@pytest.mark.parametrize("error", [StorageError("the disk is full"), OSError("gone")])
def test_a_storage_error_is_raised_at_once(error: Exception) -> None:
    copying = Copying(World(3, 1), [raising(error)])

    with pytest.raises(type(error)):
        run_derivation(copying)
    assert copying.log.count("attempt 1→3") == 1


def test_a_storage_error_counts_only_while_the_thing_has_not_moved() -> None:
    world = World(3, 1)

    def remove(_: Heads) -> None:
        world.change(2)
        raise StorageError("another run removed stored results")

    assert run_derivation(Copying(world, [remove])) == "copied 3"


@pytest.mark.parametrize("error", [FloodmarkError("a bad function"), ValueError(), KeyboardInterrupt()])
def test_other_errors_are_not_retried(error: BaseException) -> None:
    world = World(3, 1)

    def fail(_: Heads) -> None:
        world.change(2)
        raise error

    copying = Copying(world, [fail])
    with pytest.raises(type(error)):
        run_derivation(copying)
    assert copying.log.count("attempt 1→3") == 1


def test_a_run_takes_another_snapshot_under_the_turn_if_it_is_stale_although_nothing_was_committed() -> None:
    class Careful(Copying):
        def is_stale(self, state: Heads) -> bool:
            return True

    thing = Careful(World(source=3, copy=0))
    run_derivation(thing)
    assert thing.log[:2] == ["snapshot", "turn"]
    assert thing.log.count("snapshot") == 2
