"""Write the stored lake of tests/formats again: `python tools/format_lake.py`.

Do this only when a format changed on purpose, together with a reader for lakes of the format before.
"""

from __future__ import annotations

import importlib
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import floodmark as fm

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
kinds: Any = importlib.import_module("formats.kinds")


def main() -> None:
    """Build the lake, pack it, and store what it answers."""
    with tempfile.TemporaryDirectory() as folder:
        lake = fm.Lake(Path(folder) / "lake")
        kinds.build(lake)
        pack(Path(folder) / "lake", kinds.LAKE)
        kinds.EXPECTED.write_text(json.dumps(kinds.answers(lake), indent=1, sort_keys=True) + "\n", "utf-8")
    print(f"{kinds.LAKE.name}: {kinds.LAKE.stat().st_size:,} bytes; {kinds.EXPECTED.stat().st_size:,} bytes expected")


def pack(folder: Path, target: Path) -> None:
    """All files of a folder as one archive."""
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, path.relative_to(folder), filter=_without_owner)


def _without_owner(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.uid, file.gid, file.uname, file.gname, file.mtime, file.mode = 0, 0, "", "", 0, 0o644
    return file


if __name__ == "__main__":
    main()
