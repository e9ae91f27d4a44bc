"""A function's version changes with whatever of the project it uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from functions.functions_in_files import Versions


@dataclass(frozen=True)
class Change:
    """A module with a function `f`, and a piece of its text with another that takes its place."""

    old: str
    new: str
    text: str


USES = {
    "a global": Change(
        "3",
        "4",
        """
        LIMIT = 3
        def f(x):
            return x > LIMIT
        """,
    ),
    "a value inside a global": Change(
        "2]",
        "3]",
        """
        LIMITS = {'a': [1, 2]}
        def f(x):
            return LIMITS[x]
        """,
    ),
    "a default": Change(
        "= 3",
        "= 4",
        """
        LIMIT = 3
        def f(x, limit=LIMIT):
            return x > limit
        """,
    ),
    "a default by keyword": Change(
        "= 3",
        "= 4",
        """
        LIMIT = 3
        def f(x, *, limit=LIMIT):
            return x > limit
        """,
    ),
    "a closure": Change(
        "(3)",
        "(4)",
        """
        def make(n):
            def f(x):
                return x > n
            return f
        f = make(3)
        """,
    ),
    "a lambda's closure": Change(
        "(3)",
        "(4)",
        """
        def make(n):
            return lambda x: x > n
        f = make(3)
        """,
    ),
    "an argument of partial": Change(
        "3)",
        "4)",
        """
        import functools
        def g(n, x):
            return x > n
        f = functools.partial(g, 3)
        """,
    ),
    "a function it calls": Change(
        "+ 1",
        "+ 2",
        """
        def g(x):
            return x + 1
        def f(x):
            return g(x)
        """,
    ),
    "a function called in turn": Change(
        "+ 1",
        "+ 2",
        """
        def h(x):
            return x + 1
        def g(x):
            return h(x)
        def f(x):
            return [g(y) for y in x]
        """,
    ),
    "a function that calls back": Change(
        "+ 1",
        "+ 2",
        """
        def g(x):
            return f(x) + 1
        def f(x):
            return g(x) if x else 0
        """,
    ),
    "a lambda in a list": Change(
        "+ 1",
        "+ 2",
        """
        STEPS = [lambda x: x + 1]
        def f(x):
            return STEPS[0](x)
        """,
    ),
    "a class": Change(
        "+ 1",
        "+ 2",
        """
        class M:
            def __call__(self, x):
                return x + 1
        f = M
        """,
    ),
    "a base class": Change(
        "+ 1",
        "+ 2",
        """
        class B:
            def g(self, x):
                return x + 1
        class M(B):
            def __call__(self, x):
                return self.g(x)
        f = M
        """,
    ),
    "a base class from around": Change(
        "+ 1",
        "+ 2",
        """
        class B:
            def __call__(self, x):
                return x + 1
        def make(base):
            class M(base):
                pass
            return M
        f = make(B)
        """,
    ),
    "a class attribute": Change(
        "k = 3",
        "k = 4",
        """
        class M:
            k = 3
            def __call__(self, x):
                return x + self.k
        f = M
        """,
    ),
    "an object's state": Change(
        "(3)",
        "(4)",
        """
        class M:
            def __init__(self, k):
                self.k = k
            def __call__(self, x):
                return x + self.k
        f = M(3)
        """,
    ),
    "an object's slots": Change(
        "(3)",
        "(4)",
        """
        class M:
            __slots__ = ('k',)
            def __init__(self, k):
                self.k = k
            def __call__(self, x):
                return x
        f = M(3)
        """,
    ),
    "a class attribute from around": Change(
        "(3)",
        "(4)",
        """
        def make(n):
            class M:
                k = n
                def __call__(self, x):
                    return x + self.k
            return M
        f = make(3)
        """,
    ),
    "a method's default from around": Change(
        "(3)",
        "(4)",
        """
        def make(n):
            class M:
                def __call__(self, x, k=n):
                    return x + k
            return M
        f = make(3)
        """,
    ),
    "a bound method": Change(
        "+ 1",
        "+ 2",
        """
        class M:
            def g(self, x):
                return x + 1
        f = M().g
        """,
    ),
    "a data class": Change(
        "(3)",
        "(4)",
        """
        from dataclasses import dataclass
        @dataclass
        class C:
            k: int
        CONFIG = C(3)
        def f(x):
            return x + CONFIG.k
        """,
    ),
    "an enum's member": Change(
        "E.A",
        "E.B",
        """
        import enum
        class E(enum.Enum):
            A = 1
            B = 2
        MODE = E.A
        def f(x):
            return MODE
        """,
    ),
    "an enum's value": Change(
        "A = 1",
        "A = 5",
        """
        import enum
        class E(enum.Enum):
            A = 1
            B = 2
        MODE = E.A
        def f(x):
            return MODE.value
        """,
    ),
    "a tuple of the project": Change(
        "2))",
        "3))",
        """
        class P(tuple):
            pass
        P1 = P((1, 2))
        def f(x):
            return P1
        """,
    ),
    "a library function": Change(
        "sin",
        "cos",
        """
        from math import sin as g
        def f(x):
            return g(x)
        """,
    ),
    "a library": Change(
        "import math",
        "import cmath",
        """
        import math as m
        def f(x):
            return m.sin(x)
        """,
    ),
    "a decorator's closure": Change(
        "(3)",
        "(4)",
        """
        import functools
        def d(k):
            def wrap(g):
                @functools.wraps(g)
                def inner(x):
                    return g(x) + k
                return inner
            return wrap
        @d(3)
        def f(x):
            return x
        """,
    ),
    "a cached function": Change(
        "+ 1",
        "+ 2",
        """
        import functools
        def g(x):
            return x + 1
        g = functools.lru_cache(g)
        def f(x):
            return g(x)
        """,
    ),
    "an implementation of singledispatch": Change(
        "+ 1",
        "+ 2",
        """
        import functools
        @functools.singledispatch
        def g(x):
            return x
        @g.register
        def _(x: int):
            return x + 1
        def f(x):
            return g(x)
        """,
    ),
    "a decorator that is a class": Change(
        "+ 1",
        "+ 2",
        """
        import functools
        class Plus:
            def __init__(self, function):
                functools.update_wrapper(self, function)
                self.function = function
            def __call__(self, x):
                return self.function(x) + 1
        @Plus
        def g(x):
            return x
        def f(x):
            return g(x)
        """,
    ),
    "a function under a decorator that is a class": Change(
        "return x",
        "return -x",
        """
        import functools
        class Plus:
            def __init__(self, function):
                self.function = function
            def __call__(self, x):
                return self.function(x) + 1
        @Plus
        def f(x):
            return x
        """,
    ),
    "a generic class": Change(
        "+ 1",
        "+ 2",
        """
        import typing
        T = typing.TypeVar("T")
        class M(typing.Generic[T]):
            def __call__(self, x):
                return typing.cast(list[T], x) + 1
        f = M
        """,
    ),
    "a context manager": Change(
        "yield 1",
        "yield 2",
        """
        import contextlib
        @contextlib.contextmanager
        def g():
            yield 1
        def f(x):
            with g() as y:
                return y
        """,
    ),
    "an import inside": Change(
        "json",
        "csv",
        """
        def f(x):
            import json
            return json
        """,
    ),
    "a format": Change(
        ">4",
        ">5",
        """
        def f(x):
            return f'{x:>4}'
        """,
    ),
}


@pytest.mark.parametrize("use", USES)
def test_version_changes_with_what_the_function_uses(tmp_path: Path, use: str):
    versions, change = Versions(tmp_path), USES[use]
    assert change.old in change.text
    assert versions(change.text) == versions(change.text + "\n        UNUSED = 1\n")
    assert versions(change.text) != versions(change.text.replace(change.old, change.new, 1))
