"""What floodmark.toml says besides the lake and the pipeline: settings of Spark, and defaults."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from floodmark.pipeline.errors import BadPipelineFile, UnreadableToml

TOML = "floodmark.toml"
_ENTRIES = ("lake", "pipeline", "defaults", "spark")


@dataclass(frozen=True)
class Defaults:
    """The [defaults] of a project.

    `workers` nodes run at a time; a checkpoint takes about `checkpoint_seconds`; a keyed dataset is folded after a
    write when the part `fold_at` of its records is dead.
    """

    workers: int | None = None
    checkpoint_seconds: float | None = None
    fold_at: float | None = None


@dataclass(frozen=True)
class Project:
    """The settings of a project. Those of Spark are its own, by name: spark.master, spark.driver.memory, …"""

    spark: Mapping[str, str] = field(default_factory=dict)
    defaults: Defaults = field(default_factory=Defaults)


def project_of(folder: Path) -> Project:
    """The settings for work in a folder: those of the nearest floodmark.toml, in it or above, that has any."""
    for parent in (folder, *folder.parents):
        if (path := parent / TOML).is_file():
            content = _content(path)
            if "spark" in content or "defaults" in content:
                return Project(_spark(path, content.get("spark", {})), _defaults(path, content.get("defaults", {})))
    return Project()


def _content(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        said = f"{path} cannot be read: {error}"
        raise UnreadableToml(said, hint="mend it", path=str(path), line=None) from error
    if (unknown := unknown_entry(content)) is not None:
        raise _bad(path, *unknown)
    return content


def unknown_entry(content: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with an entry of a floodmark.toml that nobody reads, and what to do; None if there is none.

    A mistyped `lake` would be passed over otherwise, and another lake be written to.
    """
    for name in content:
        if name not in _ENTRIES:
            near = difflib.get_close_matches(name.lower(), _ENTRIES, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_ENTRIES)}"
            return f"there is no entry {name!r}", hint
    return None


def _spark(path: Path, given: Any) -> dict[str, str]:
    """Settings by their full names; [spark] executor.memory and "spark.executor.memory" are the same."""
    if not isinstance(given, Mapping):
        raise _bad(
            path, f"`spark` is {given!r}, not a table", 'write [spark], and below it "spark.master" = "local[4]"'
        )
    found: dict[str, str] = {}
    for name, value in _flat("", given):
        if not isinstance(value, str | int | float):
            raise _bad(path, f"the setting {name!r} of [spark] is {value!r}", "give a text, a number, true or false")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found[name if name.startswith("spark.") else f"spark.{name}"] = text
    return found


def _flat(before: str, given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in given.items():
        full = f"{before}.{name}" if before else name
        found += _flat(full, value) if isinstance(value, Mapping) else [(full, value)]
    return found


def _defaults(path: Path, given: Any) -> Defaults:
    known = [one.name for one in fields(Defaults)]
    if not isinstance(given, Mapping):
        raise _bad(path, f"`defaults` is {given!r}, not a table", "write [defaults], and below it workers = 4")
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise _bad(path, f"[defaults] has no {name!r}", hint)
        wanted = (int,) if name == "workers" else (int, float)
        if not isinstance(value, wanted) or isinstance(value, bool) or value <= 0:
            raise _bad(path, f"{name} = {value!r} in [defaults] is no number above 0", "give one, or leave it out")
    return Defaults(**given)


def _bad(path: Path, said: str, hint: str) -> BadPipelineFile:
    return BadPipelineFile(f"{path}: {said}", hint=hint, path=str(path), line=None)
