"""Where Floodmark keeps small things that it can always make again, such as a start-up archive for Java."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's cache folder for Floodmark; it need not exist yet."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path is to be ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "floodmark"
    home = environ.get("HOME") or str(Path("~").expanduser())
    return Path(home) / ".cache" / "floodmark"


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put ``content`` at ``path`` so that another process sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
