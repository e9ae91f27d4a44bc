"""State machines over lakes: rules that are applied by chance, a check after each, and how many histories a run lives.

Hypothesis has such machines, too, but leaves out some rules in each history. That needs many histories, and `make test`
has time for few. So here every rule that is possible is as likely as any other.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

import floodmark as fm
from profiles import IN_FULL, seeds

Method = TypeVar("Method", bound=Callable[..., None])


def rule(**arguments: st.SearchStrategy[Any]) -> Callable[[Method], Method]:
    """A method that may be called at any step, with arguments of these strategies."""
    return _mark("rule", arguments)


def precondition(true: Callable[[Any], Any]) -> Callable[[Method], Method]:
    """A rule is possible only while this is true of its machine."""
    return _mark("precondition", true)


def begins(**arguments: st.SearchStrategy[Any]) -> Callable[[Method], Method]:
    """The method that makes the world, before all rules."""
    return _mark("begins", arguments)


def _mark(name: str, value: Any) -> Callable[[Method], Method]:
    def mark(method: Method) -> Method:
        setattr(method, name, value)
        return method

    return mark


class Machine:
    """A machine with a folder of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="floodmark-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name)

    def check(self) -> None:
        """What must be true after each step."""

    def check_end(self) -> None:
        """What must be true after the last step."""

    def close(self) -> None:
        self._folder.cleanup()


def run_histories(machine: type[Machine], *, ci: int, steps: int, **fixed: object) -> None:
    """Live `ci` histories of `steps` steps, under `soak` more and longer ones; `fixed` are attributes of the class.

    Failures are not shrunk: the steps can be read as they are, and shrinking takes minutes.
    """
    kind = type(machine.__name__, (machine,), fixed)
    steps = 2 * steps if IN_FULL else steps

    @settings(max_examples=1 + len(seeds(ci)), phases=[Phase.explicit, Phase.generate])
    @given(st.integers(0, 1 << 32), st.data())
    def live(seed: int, data: st.DataObject) -> None:
        if seed:  # Hypothesis always begins with the simplest history, which is of no use
            _live(kind(), Random(f"{seed} {fixed}"), data, steps)

    live()


def _live(machine: Machine, chance: Random, data: st.DataObject, steps: int) -> None:
    methods = dict(inspect.getmembers(type(machine), inspect.isfunction))
    [begin] = [getattr(machine, name) for name, method in methods.items() if hasattr(method, "begins")]
    rules = [getattr(machine, name) for name, method in methods.items() if hasattr(method, "rule")]

    def call(method: Callable[..., None], strategies: dict[str, st.SearchStrategy[Any]]) -> None:
        arguments = {name: data.draw(strategy) for name, strategy in strategies.items()}
        note(f"{method.__name__}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
        method(**arguments)
        machine.check()

    try:
        call(begin, begin.begins)
        for _ in range(steps):
            chosen = chance.choice(
                [one for one in rules if not hasattr(one, "precondition") or one.precondition(machine)]
            )
            call(chosen, chosen.rule)
        machine.check_end()
    finally:
        machine.close()


# What changes no row


def fold_all(lake: fm.Lake) -> None:
    for dataset in lake:
        if dataset.schema is not None:
            dataset.fold()


def reopened(lake: fm.Lake) -> fm.Lake:
    """The lake as another process sees it."""
    return fm.Lake(lake.store, runtime=lake.runtime)
