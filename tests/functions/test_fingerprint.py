"""A function's version changes with what it computes, and with nothing else."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from floodmark.errors import NoVersion
from floodmark.functions.fingerprint import compute_fingerprint
from functions.functions_in_files import Versions

PLAIN = """
def f(x):
    return x * 2 + 1
"""

SAME = {
    "comments": "# note\ndef f(x):\n    # double\n    return x * 2 + 1  # and one\n",
    "formatting": "def f(\n    x,\n):\n\n    return ((x * 2)\n        + 1)\n",
    "docstring": 'def f(x):\n    """Doubles."""\n    return x * 2 + 1\n',
    "annotations": "def f(x: 'int') -> int:\n    return x * 2 + 1\n",
    "spelling of constants": "def f(x):\n    return x * 0x2 + 0b1\n",
    "other lines of the file": "import os\n\nA = 1\n\n\ndef g(): ...\n\n\ndef f(x):\n    return x * 2 + 1\n",
    "an unused import of a library": "import json\ndef f(x):\n    return x * 2 + 1\n",
    "a statement without effect": "def f(x):\n    pass\n    return x * 2 + 1\n",
    "udf itself": """
        from floodmark.functions.udf import udf

        @udf(returns='int64', max_checkpoint_size=7)
        def f(x):
            return x * 2 + 1

        f = f.function
    """,
}

DIFFERENT = {
    "an operator": "def f(x):\n    return x * 2 - 1\n",
    "a constant": "def f(x):\n    return x * 2 + 2\n",
    "a constant's type": "def f(x):\n    return x * 2 + 1.0\n",
    "grouping": "def f(x):\n    return x * (2 + 1)\n",
    "order": "def f(x):\n    return 1 + x * 2\n",
    "a default": "def f(x, y=0):\n    return x * 2 + 1\n",
    "a decorator": "import functools\n\n@functools.cache\ndef f(x):\n    return x * 2 + 1\n",
    "async": "async def f(x):\n    return x * 2 + 1\n",
    "lambda": "f = lambda x: x * 2 + 1\n",
}


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


@pytest.mark.parametrize("change", SAME)
def test_version_stays_when_only_the_look_of_the_code_changes(versions: Versions, change: str):
    assert versions(SAME[change]) == versions(PLAIN)


@pytest.mark.parametrize("change", DIFFERENT)
def test_version_changes_with_the_code(versions: Versions, change: str):
    assert versions(DIFFERENT[change]) != versions(PLAIN)


def test_kind_of_call_is_part_of_the_version(versions: Versions):
    with versions.loaded(PLAIN) as f:
        assert compute_fingerprint(f, "f", "scalar") != compute_fingerprint(f, "f", "array")


@pytest.mark.parametrize(
    ("job", "path"),
    [
        ("import tools\ndef f(x): return tools.g(x)\n", "tools"),
        ("from tools import g\ndef f(x): return g(x)\n", "tools"),
        ("import pack.tools\ndef f(x): return pack.tools.g(x)\n", "pack.tools"),
        ("from pack import tools as t\ndef f(x): return t.g(x)\n", "pack.tools"),
        ("def f(x):\n    import tools\n    return tools.g(x)\n", "tools"),
        ("def f(x):\n    from tools import g as h\n    return h(x)\n", "tools"),
        ("def f(x):\n    import pack.tools\n    return pack.tools.g(x)\n", "pack.tools"),
        ("def f(x):\n    from pack import tools\n    return tools.g(x)\n", "pack.tools"),
        ("from pack.job import f\n", "pack.tools"),
    ],
)
def test_version_follows_functions_into_other_files_of_the_project(versions: Versions, job: str, path: str):
    others = {"pack.__init__": "", "pack.job": "def f(x):\n    from .tools import g\n    return g(x)\n"}
    before, reworded, after = (
        versions(job, **others, **{path: f"UNUSED = {unused}\ndef g(x): return x + {added}\n"})
        for unused, added in ((0, 1), (5, 1), (0, 2))
    )
    assert before == reworded
    assert before != after


def test_order_in_dicts_and_sets_does_not_matter(versions: Versions):
    one = versions("A = {'x': 1, 'y': lambda: 2}\nB = {'p', 'q', 'r'}\ndef f(x): return A, B\n")
    two = versions("A = {'y': lambda: 2, 'x': 1}\nB = {'r', 'q', 'p'}\ndef f(x): return A, B\n")
    assert one == two


@pytest.mark.process
def test_name_of_the_module_does_not_matter(versions: Versions, tmp_path: Path):
    text = """\
import contextlib, enum, functools
LIMIT = 3
class C(enum.Enum):
    A = 1
class D:
    def __call__(self, x): return x
class P:
    def __init__(self, g): functools.update_wrapper(self, g)
@P
@functools.cache
def g(x): return x
@contextlib.contextmanager
def h(): yield D()
MEMBER = C.A
def f(x):
    with h() as d:
        return d(g(x)), MEMBER, C if x > LIMIT else f(x - 1)
"""
    script = tmp_path / "script.py"
    script.write_text(
        f"{text}from floodmark.functions.fingerprint import compute_fingerprint\n"
        "print(compute_fingerprint(f, 'f', 'scalar'))"
    )
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == versions(text)


@pytest.mark.process
def test_function_of_the_script_counts_in_that_of_a_module(tmp_path: Path):
    (tmp_path / "tools.py").write_text("def make(g): return lambda x: g(x)\n")
    script = tmp_path / "script.py"
    script.write_text(
        "from floodmark.functions.fingerprint import compute_fingerprint\nfrom tools import make\n"
        "print(*(compute_fingerprint(make(g), 'f', 'scalar') for g in (lambda x: x + 1, lambda x: x + 2)))"
    )
    one, other = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.split()
    assert one != other


def test_installed_package_counts_by_name_unless_the_function_is_part_of_it(
    versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("floodmark.engine.task._installed", lambda: (f"{tmp_path}{os.sep}",))

    def version(added: int, job: str) -> str:
        tools = f"def g(x): return x + {added}\n"
        package = {
            "pack.__init__": "",
            "pack.tools": tools,
            "pack.job": "from pack import tools\nf = lambda x: tools.g(x)\n",
        }
        return versions(job, **package)

    outside = "from pack.tools import g\ndef f(x): return g(x)\n"
    assert version(1, outside) == version(2, outside)
    inside = "from pack.job import f\n"
    assert version(1, inside) != version(2, inside)


def test_annotation_imported_for_type_checkers_only_is_no_hindrance(versions: Versions):
    head = "from __future__ import annotations\n"
    assert versions(head + "def f(x: Nowhere) -> Nothing:\n    y: Elsewhere = x\n    return y\n") == versions(
        "def f(x):\n    y = x\n    return y\n"
    )


def test_loggers_and_type_variables_do_not_matter(versions: Versions):
    text = "import logging, typing\nlog = logging.getLogger({!r})\nT = typing.TypeVar('T')\n"
    text += "def f(x):\n    log.info(x)\n    return typing.cast(T, x)\n"
    assert versions(text.format("a")) == versions(text.format(None))


def test_local_name_is_not_taken_for_a_global_of_the_same_name(versions: Versions):
    text = "import threading\nlock = threading.Lock()\ndef f(x):\n    lock = x\n    return [lock for lock in lock]\n"
    assert versions(text) == versions(text.replace("threading.Lock()", "7"))


def test_two_lambdas_on_a_line_are_told_apart(versions: Versions):
    text = "fs = [lambda x: x + 1, lambda x: x + 2, lambda x: (lambda y: y + 1)(x)]\nf = fs[{}]\n"
    plain = versions("f = lambda x: x + 2\n")
    assert versions(text.format(1)) == plain
    assert len({versions(text.format(n)) for n in range(3)}) == 3
    nested = "fs = lambda x: (lambda x: x + 2)\nf = fs(0)\n"
    assert versions(nested) == plain


RICH = """
import math
K = {'a': (1, 2.5, None, True, b'x')}

def g(x, *, k=K):
    return f'{x!r:>{4}} {k}' 'z'

def f(x):
    try:
        return [math.sqrt(y) for y in g(x) if (z := y)]
    except ValueError as e:
        match x:
            case {'a': 1, **rest} | [1, *rest]:
                return rest
            case _:
                raise
"""

OBJECT = """
class B:
    k: int = 3
    def g(self):
        return self.k

class M(B):
    def __init__(self, n=1):
        self.n = n
    def __call__(self, x):
        return super().g() + self.n

f = M(5)
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (PLAIN, "044f7018b0fc28b6fd2aec3a3422cdeb"),
        (RICH, "ef7435cab2759f658f8a34cc7f8051bb"),
        (OBJECT, "70de099442f12df03a6960363e5f0b2e"),
    ],
    ids=["plain", "rich", "object"],
)
def test_version_is_the_same_in_every_release(versions: Versions, text: str, version: str):
    """If these change, every column without a version of its own is computed again: on purpose or not at all."""
    assert versions(text) == version


@pytest.mark.process
@pytest.mark.parametrize("seed", ["1", "77"])
def test_version_is_the_same_in_another_process(versions: Versions, tmp_path: Path, seed: str):
    text = "A = {'x', 'y', 'z', 3}\nB = {'k': {'b', 'a'}, 'j': frozenset('qwe')}\ndef f(x): return x in A or B\n"
    path = tmp_path / "elsewhere"
    path.mkdir()
    (path / "job.py").write_text(text)
    program = (
        "import job; from floodmark.functions.fingerprint import compute_fingerprint\n"
        "print(compute_fingerprint(job.f, 'f', 'scalar'))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=path, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == versions(text)


def test_value_without_a_canonical_form_asks_for_a_version(versions: Versions):
    text = """
        import threading
        class C:
            def __init__(self):
                self.lock = threading.Lock()
        SHARED = C()
        def f(x):
            return SHARED
    """
    with versions.loaded(text) as f, pytest.raises(NoVersion, match=r"f → SHARED.lock, a _thread.lock") as caught:
        compute_fingerprint(f, "f", "scalar")
    assert "version=" in caught.value.hint
    assert caught.value.value_type == "_thread.lock"


def test_value_that_contains_itself_asks_for_a_version(versions: Versions):
    with pytest.raises(NoVersion, match="contains itself"):
        versions("A = []\nA.append(A)\ndef f(x): return A\n")


@pytest.mark.slow
def test_value_nested_too_deeply_asks_for_a_version(versions: Versions):
    with pytest.raises(NoVersion, match="nested too deeply"):
        versions("A = []\nfor _ in range(100_000): A = [A]\ndef f(x): return A\n")


def test_function_without_source_asks_for_a_version():
    namespace: dict[str, object] = {}
    exec("def f(x): return x", namespace)  # noqa: S102
    with pytest.raises(NoVersion, match="not available") as caught:
        compute_fingerprint(namespace["f"], "f", "scalar")  # type: ignore[arg-type]
    assert "version=" in caught.value.hint


def test_file_changed_since_it_was_loaded_is_not_believed(versions: Versions):
    with versions.loaded(PLAIN) as f:
        path = Path(f.__code__.co_filename)
        path.write_text(PLAIN.replace("+ 1", "- 10"))
        with pytest.raises(NoVersion, match="has changed since it was loaded"):
            compute_fingerprint(f, "f", "scalar")
        path.write_text(PLAIN)
        assert compute_fingerprint(f, "f", "scalar") == versions(PLAIN)


def test_library_functions_count_by_name():
    assert compute_fingerprint(math.sqrt, "f", "scalar") != compute_fingerprint(math.exp, "f", "scalar")
    assert compute_fingerprint(np.sqrt, "f", "scalar") == compute_fingerprint(np.sqrt, "f", "scalar")
    with pytest.raises(NoVersion):
        compute_fingerprint(np.random.default_rng(0).random, "f", "scalar")
