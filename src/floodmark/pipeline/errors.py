"""What can go wrong with a pipeline and the file that declares it."""

from __future__ import annotations

from floodmark.errors import FloodmarkError


class PipelineError(FloodmarkError):
    """A pipeline could not be declared, found or loaded."""


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
