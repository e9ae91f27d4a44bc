"""A consumer that adds up the fares per zone, and reads every record once.

Its state is one file: the position up to which it has read, and the sums.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import floodmark as fm


def main(lake: str, state_file: Path) -> None:
    """Read the new records, add them up, and store the new position."""
    trips = fm.Lake(lake)["trips"]
    state: dict[str, Any] = json.loads(state_file.read_text()) if state_file.exists() else {"fares": {}}
    since = fm.Position.parse(state["read"]) if "read" in state else None
    until = trips.position()
    new = trips.changes_arrow(since=since, until=until)
    for row in new.group_by("zone").aggregate([("fare", "sum")]).to_pylist():
        state["fares"][row["zone"]] = round(state["fares"].get(row["zone"], 0.0) + row["fare_sum"], 2)
    state["read"] = str(until)  # with the dataset's id: it is refused if the dataset is created again
    unfinished = state_file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(state))
    os.replace(unfinished, state_file)  # noqa: PTH105 -- the sums and the position change atomically
    before = -1 if since is None else since.offset
    print(f"had read up to offset {before}; read {new.num_rows:,} records; now at offset {until.offset}")
    print(f"fares so far: {sum(state['fares'].values()):,.2f}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
