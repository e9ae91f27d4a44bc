"""What becomes of keys that failed, by what `on_error` says."""

from __future__ import annotations

import pytest

from floodmark import Retry, Skip
from floodmark.errors import BadOption
from floodmark.functions.on_error import LONGEST_BACKOFF_MS, OnError, parse_on_error

NOW = 1_000


def test_default_tries_again_in_every_run_without_limit_or_pause():
    for given in (None, "retry", OnError.retry(), OnError()):
        assert parse_on_error(given).after(1_000_000, NOW) == ("retry", None)


def test_back_off_doubles_up_to_a_day():
    on_error = OnError.retry(backoff=2.0)
    assert [on_error.after(n, NOW) for n in (1, 2, 3)] == [("retry", NOW + ms) for ms in (2_000, 4_000, 8_000)]
    assert on_error.after(100_000, NOW) == ("retry", NOW + LONGEST_BACKOFF_MS)


def test_key_is_given_up_when_its_attempts_are_used_up():
    on_error = OnError.retry(attempts=3, backoff=1.0)
    assert [on_error.after(n, NOW)[0] for n in (1, 2, 3, 4)] == ["retry", "retry", "exhausted", "exhausted"]
    assert on_error.after(3, NOW)[1] is None


def test_skipped_keys_are_never_due():
    assert parse_on_error("skip").after(1, NOW) == ("skipped", None)
    assert OnError.skip().after(1, NOW) == ("skipped", None)


def test_handlers_skip_their_errors_and_leave_others_to_the_policy():
    on_error = parse_on_error([Skip(KeyError), OnError.retry(attempts=2)])
    assert on_error.after(1, NOW, KeyError()) == ("skipped", None)
    assert on_error.after(1, NOW, ValueError()) == ("retry", None)
    assert on_error.after(2, NOW, ValueError()) == ("exhausted", None)


def test_only_fail_fast_ends_the_run():
    error = ValueError()
    assert OnError.fail_fast().ends_run(error)
    assert not OnError.retry().ends_run(error)
    assert not OnError.skip().ends_run(error)
    assert not parse_on_error(["fail_fast", Skip(ValueError)]).ends_run(error)


def test_one_handler_needs_no_list():
    retry = Retry(TimeoutError)
    assert parse_on_error(retry) == parse_on_error([retry]) == OnError(handlers=(retry,))
    assert parse_on_error(retry).again(TimeoutError()) is retry
    assert parse_on_error(retry).again(ValueError()) is None


@pytest.mark.parametrize(
    "given", ["ignore", "", [], ["skip", "retry"], [ValueError], ValueError, 3, [Skip(ValueError), 3], True, {"a": 1}]
)
def test_nonsense_is_refused_with_what_there_is(given: object):
    with pytest.raises(BadOption):
        parse_on_error(given)


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"attempts": True},
        {"backoff": -1},
        {"backoff": float("inf")},
        {"backoff": "1"},
    ],
)
def test_numbers_without_meaning_are_refused(options: dict):
    with pytest.raises(BadOption):
        OnError.retry(**options)
