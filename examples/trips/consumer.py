"""A consumer that adds up the fares per zone, and reads every record once.

Its state is one file: the offset up to which it has read, and the sums.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import floodmark as fm


def main(lake: str, state_file: Path) -> None:
    """Read the new records, add them up, and store the new offset."""
    state: dict[str, Any] = json.loads(state_file.read_text()) if state_file.exists() else {"offset": -1, "fares": {}}
    trips = fm.Lake(lake)["trips"]
    since, until = state["offset"], trips.last_offset
    new = trips.changes_arrow(since=since, until=until)
    for row in new.group_by("zone").aggregate([("fare", "sum")]).to_pylist():
        state["fares"][row["zone"]] = round(state["fares"].get(row["zone"], 0.0) + row["fare_sum"], 2)
    state["offset"] = until
    unfinished = state_file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(state))
    os.replace(unfinished, state_file)  # noqa: PTH105 -- the sums and the offset change atomically
    print(f"had read up to offset {since}; read {new.num_rows:,} records; now at offset {until}")
    print(f"fares so far: {sum(state['fares'].values()):,.2f}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
