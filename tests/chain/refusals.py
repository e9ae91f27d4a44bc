"""Blocks that are refused by a rule."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from floodmark.errors import Rule, RuleBroken


@contextmanager
def refused(rule: Rule, match: str | None = None) -> Iterator[pytest.ExceptionInfo[RuleBroken]]:
    """Expect that this rule is broken, and no other."""
    with pytest.raises(RuleBroken, match=match) as raised:
        yield raised
    assert raised.value.rule is rule
