"""A function with a state in a process that does not have the user's files: loaded once, whatever tasks come."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.engine.task import pickle_by_value
from floodmark.functions.on_error import Skip
from floodmark.functions.udf import udf

OFFSET = 10


class NotForMe(Exception):
    pass


@udf(returns="int64", on_error=[Skip(NotForMe)])
class Model:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: pa.Array) -> pa.Array:
        if 3 in x.to_pylist():
            raise NotForMe("three")
        self.calls += 1
        return pa.array([self.calls * OFFSET] * len(x))


WORKER = """
import json, pickle, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from floodmark.functions.column_call import ColumnCaller

found = []
for path in sys.argv[1:]:
    udf = pickle.loads(Path(path).read_bytes())
    caller = ColumnCaller(udf, pa.field("y", pa.int64()), ("x",))
    computed = caller.compute(pa.record_batch({"x": [2, 3]}), np.arange(2))
    found.append([computed.values.to_pylist(), [e.type for e in computed.errors], udf.version])
print(json.dumps(found))
"""


@pytest.mark.process
def test_model_is_loaded_once_in_a_worker_that_gets_it_with_every_task(tmp_path: Path):
    paths = [tmp_path / "first task", tmp_path / "second task"]
    for path in paths:
        with pickle_by_value() as pack:
            path.write_bytes(pack(Model))
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORKER), *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    first, second = json.loads(ran.stdout)
    error = f"{NotForMe.__module__}.NotForMe"
    assert first == [[10, None], [error], Model.version]
    assert second == [[20, None], [error], Model.version]
