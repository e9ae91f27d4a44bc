"""Count the Floodmark modules that a small operation calls in the driver: `python tools/module_trace.py [--names]`.

Each operation runs twice in a lake of a few rows, and the second run is counted. A module counts if one of its
functions is called; imports do not count. `--source PATH` traces another checkout of Floodmark.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

IMPORT_TIME = ("<module>", "<lambda>", "<listcomp>", "<dictcomp>")


def main() -> None:
    options = parse_arguments()
    if options.source:
        sys.path.insert(0, str(options.source))
    import floodmark

    package = Path(floodmark.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        for name, operation in operations(Path(folder)):
            operation()
            with traced(package) as modules:
                operation()
            print(f"{name:<16}{len(modules):>5}", flush=True)
            for module in sorted(modules) if options.names else ():
                print(f"    {module}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="the `src` folder to trace (default: the installed one)")
    parser.add_argument("--names", action="store_true", help="list the modules")
    return parser.parse_args()


def operations(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """One small operation of each kind; each call has new rows to work on."""
    import pandas as pd

    import floodmark as fm

    lake = fm.Lake(folder / "lake")
    numbers = iter(range(1_000_000))
    events, people = lake.create("events"), lake.create("people", key="id")

    def rows(first: int = 0) -> pd.DataFrame:
        return pd.DataFrame({"id": [first, first + 1, first + 2], "value": [next(numbers) for _ in range(3)]})

    yield "append", lambda: events.write(rows())
    yield "upsert", lambda: people.write(rows())

    def double(people: pd.DataFrame) -> pd.DataFrame:
        return people.assign(value=people["value"] * 2)

    step = fm.BatchTransform(double, inputs=["people"], outputs=["doubled"], transform_keys=["id"], version="1")
    yield "run of a step", after(lambda: people.write(rows()), lambda: step.run(lake))

    twice = fm.udf(returns="int64", version="1")(lambda value: value * 2)
    people.add_column("twice", twice, ["value"])
    yield "backfill", after(lambda: people.write(rows()), lambda: people.backfill("twice", udf=twice))

    view = lake.view("large", sql="select id, value from people where value > 3")
    yield "refresh", after(lambda: people.write(rows()), lambda: view.refresh())


def after(change: Callable[[], Any], operation: Callable[[], Any]) -> Callable[[], Any]:
    """The operation on new rows. The write that brings them is not traced."""

    def call() -> Any:
        profile = sys.getprofile()
        sys.setprofile(None)
        change()
        sys.setprofile(profile)
        return operation()

    return call


@contextmanager
def traced(package: Path) -> Iterator[set[str]]:
    """Collect the modules below a package whose functions are called, in all threads of this process."""
    files: set[str] = set()
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename not in files and code.co_name not in IMPORT_TIME:
            files.add(code.co_filename)
            path = Path(code.co_filename)
            if path.is_relative_to(package):
                modules.add(".".join(path.relative_to(package).with_suffix("").parts))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield modules
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


if __name__ == "__main__":
    main()
