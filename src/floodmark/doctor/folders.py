"""Folders beside the lake: where temporary files go, Spark's too, and the user's cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from floodmark.doctor.finding import Finding
from floodmark.storage.file_cache import user_cache


def check_temporary(
    environ: Mapping[str, str] = os.environ, folder: Callable[[], str] = tempfile.gettempdir
) -> Finding:
    """Where tasks and Spark keep what they are at: a folder that can be written."""
    what = "temporary files"
    remedy = "set TMPDIR to a folder that this user may write to, with room for what Spark sorts"
    try:
        chosen = Path(folder())  # none at all is a FileNotFoundError
        _write(chosen)
    except OSError as error:
        return Finding(what, "bad", f"cannot be written: {error}", remedy)
    wanted = environ.get("TMPDIR")
    if wanted and Path(wanted).absolute() != chosen.absolute():
        return Finding(what, "warn", f"TMPDIR={wanted} cannot be written; they go to {chosen}", remedy)
    return Finding(what, "ok", str(chosen))


def check_cache(environ: Mapping[str, str] = os.environ) -> Finding:
    """Where copies of remote indexes are kept, and what lets Java start fast: it works without, but slower."""
    what, folder = "cache", user_cache(environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder)
    except OSError as error:
        return Finding(what, "warn", f"cannot be written: {error}", "set XDG_CACHE_HOME to a folder that can be")
    return Finding(what, "ok", str(folder))


def _write(folder: Path) -> None:
    handle, name = tempfile.mkstemp(prefix="floodmark-doctor-", dir=folder)
    try:
        os.write(handle, b"floodmark")
    finally:
        os.close(handle)
        with suppress(FileNotFoundError):
            Path(name).unlink()
