"""Write the files of the example: two days of readings, one of them invalid, and a correction."""

from __future__ import annotations

import random
import sys
from pathlib import Path

STATIONS = (1, 2, 3)


def readings(random_source: random.Random, day: int, broken: str) -> list[str]:
    """A reading per station and hour, in degrees Fahrenheit as text. That of station 2 at noon is invalid."""
    lines = []
    for station in STATIONS:
        for hour in range(24):
            warm = 50 + 3 * station + 10 * (hour / 12 if hour < 12 else 2 - hour / 12)
            raw = broken if (station, hour) == (2, 12) else f"{warm + random_source.random():.1f}"
            lines.append(f"{station},2026-11-{day:02}T{hour:02}:00:00Z,{raw}")
    return lines


def main(folder: Path) -> None:
    """Write two days, and a correction of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    random_source = random.Random(2026)
    files = {
        "day1.csv": readings(random_source, 1, "n/a"),
        "day2.csv": [line for line in readings(random_source, 2, "55.0") if line.startswith("3,")],
        "correction.csv": ["2,2026-11-01T12:00:00Z,99.5"],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(["station,at,raw", *lines]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "files"))
