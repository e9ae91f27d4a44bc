"""Retries: the attempts after a lost race, and reads that repeat while others replace what is read."""

from __future__ import annotations

import pytest

from floodmark.storage.pointer import attempt_numbers, read_consistently


class Replaced(Exception):
    """What was read is not there any more."""


class State:
    """A counter that others move; `asked` are the states that were read."""

    def __init__(self, moves: int) -> None:
        self.now, self.moves, self.asked = 0, moves, []

    def pin(self) -> int:
        return self.now

    def moved(self, before: int) -> bool:
        if self.moves:
            self.moves -= 1
            self.now += 1
        return self.now != before

    def fail(self, state: int) -> int:
        self.asked.append(state)
        raise Replaced(state)

    def answer(self, state: int) -> int:
        self.asked.append(state)
        return state


def test_first_repeat_comes_at_once_and_the_later_ones_after_a_pause():
    paused: list[int] = []
    assert list(attempt_numbers(4, paused.append)) == [0, 1, 2, 3]
    assert paused == [1, 2]
    assert list(attempt_numbers(2)) == [0, 1]


def test_error_of_a_state_that_is_current_is_raised_at_once():
    state = State(moves=0)
    with pytest.raises(Replaced):
        read_consistently(state.pin, state.fail, state.moved, replaced=(Replaced,))
    assert state.asked == [0]


def test_error_of_a_state_that_moved_is_asked_again():
    state = State(moves=2)
    with pytest.raises(Replaced):
        read_consistently(state.pin, state.fail, state.moved, replaced=(Replaced,))
    assert state.asked == [0, 1, 2]


def test_other_errors_are_not_asked_again():
    state = State(moves=2)
    with pytest.raises(Replaced):
        read_consistently(state.pin, state.fail, state.moved, replaced=(KeyError,))
    assert state.asked == [0]


def test_answer_that_is_doubted_counts_when_the_state_is_current():
    state = State(moves=3)
    assert read_consistently(state.pin, state.answer, state.moved, doubted=lambda _: True) == 3
    assert state.asked == [0, 1, 2, 3]


def test_answer_without_doubt_is_not_compared_with_the_state():
    state = State(moves=3)
    assert read_consistently(state.pin, state.answer, state.moved) == 0
    assert state.moves == 3


def test_state_that_always_moves_ends_after_the_last_try():
    state = State(moves=100)
    assert read_consistently(state.pin, state.answer, state.moved, doubted=lambda _: True, tries=4) == 3
    with pytest.raises(Replaced):
        read_consistently(state.pin, state.fail, state.moved, replaced=(Replaced,), tries=4)
