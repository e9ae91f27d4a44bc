"""Functions from the text of a module, loaded from a file as a user's would be."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from floodmark.functions.fingerprint import compute_fingerprint


@contextmanager
def project(folder: Path, modules: Mapping[str, str]) -> Iterator[None]:
    """A project of these modules that can be imported; afterwards nothing of it is left."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in modules.items():
        path = folder / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        tops = {name.partition(".")[0] for name in modules}
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in tops:
                del sys.modules[name]


class Versions:
    """Fingerprints of `f` in modules given as text, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(self, text: str, **others: str) -> str:
        with self.loaded(text, **others) as f:
            return compute_fingerprint(f, "f", "scalar")

    @contextmanager
    def loaded(self, text: str, **others: str) -> Iterator[Any]:
        self._count += 1
        with project(self._folder / str(self._count), {"the_job": text, **others}):
            yield importlib.import_module("the_job").f
