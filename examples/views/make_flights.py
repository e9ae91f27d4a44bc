"""Write the files of the example: flights of two days, a correction, and weather that is late for one airport."""

from __future__ import annotations

import random
import sys
from pathlib import Path

CARRIERS = ("AA", "DL", "UA")
ORIGINS = ("JFK", "LGA")


def flights(random_source: random.Random, day: int) -> list[str]:
    """Ten flights per carrier. One of them has no delay."""
    lines = []
    for number, carrier in enumerate(CARRIERS):
        for flight in range(10):
            delay = "" if (number, flight) == (1, 3) else f"{random_source.gauss(10 + 4 * number, 12):.0f}"
            lines.append(f"{1000 * day + 100 * number + flight},{carrier},{ORIGINS[flight % 2]},{day},{delay}")
    return lines


def main(folder: Path) -> None:
    """Write the deliveries, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    random_source = random.Random(2026)
    first, second = flights(random_source, 1), flights(random_source, 2)
    head, weather = "id,carrier,origin,day,delay", "origin,day,wind"
    files = {
        "day1.csv": [head, *first],
        "weather1.csv": [weather, "JFK,1,12.5"],
        "day2.csv": [head, *(line for line in second if ",DL," in line)],
        "correction.csv": [head, "1000,AA,JFK,1,95"],
        "weather2.csv": [weather, "LGA,1,31.0"],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("files"))
