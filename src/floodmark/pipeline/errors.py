"""What can go wrong with a pipeline, the file that declares it, and running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.errors import FloodmarkError
from floodmark.transform.place import Place


class PipelineError(FloodmarkError):
    """A pipeline could not be declared, found, loaded or run."""


class UnknownStep(PipelineError):
    """A pipeline has no step of this name."""

    name: str


class NoPipeline(PipelineError):
    """There is no pipeline file where one was looked for."""

    path: str


class BadPipelineFile(PipelineError):
    """A pipeline file, or the floodmark.toml that names it, that cannot be used."""

    path: str
    line: int | None


class UnreadableToml(BadPipelineFile):
    """A floodmark.toml that is no TOML."""


class BadDeclaration(PipelineError):
    """A declaration that says nothing, too much, or what cannot be."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one declaration, where that is, and what to do about it."""

    message: str
    hint: str
    place: Place | None = None

    def __str__(self) -> str:
        return self.message if self.place is None else f"{self.place}: {self.message}"


class BadPipeline(PipelineError):
    """Declarations that do not go together, or not with what the lake has. Found before anything runs."""

    problems: tuple[Problem, ...]
    path: str | None
    line: int | None

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> BadPipeline:
        """One error for all of them, which names the file and line of each."""
        first = problems[0]
        place = {"path": None, "line": None} if first.place is None else _facts(first.place)
        if len(problems) == 1:
            return cls(str(first), hint=first.hint, problems=tuple(problems), **place)
        said = "\n".join(f"  {problem}\n    {problem.hint}".rstrip() for problem in problems)
        hint = "nothing has run: mend these, and run it again"
        return cls(f"{len(problems)} things are wrong:\n{said}", hint=hint, problems=tuple(problems), **place)


def _facts(place: Place) -> dict[str, str | int]:
    return {"path": place.file, "line": place.line}


class FileChanged(PipelineError):
    """A file whose rows are in an append-only dataset has other content now."""

    path: str


class Busy(PipelineError):
    """Somebody else is running the pipelines of this lake."""

    pid: int | None
    host: str | None
    since: str | None
