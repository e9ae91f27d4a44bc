"""A lake in a shared folder is written and read by the workers of a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cluster import DRIVER, standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_two_workers_write_and_read_a_lake(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    script = Path(__file__).with_name("on_cluster.py")
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
        answer = subprocess.run(
            [sys.executable, str(script), str(shared), json.dumps({**DRIVER, "spark.master": cluster.url})],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["intervals"] == [[0, 1000], [1000, 2500]]
    assert result["slices"] > 3
    total = sum(range(2500))
    assert result["native"] == result["tasks"] == [total, 2 * total, 2500]
    assert result["changes"] == list(range(1991, 2500))
    assert result["keyed"] == [[1000, 0, 0], [500, 250, 250], [1000, 250, 250]]
    assert result["people"] == [total, 2 * total + sum(range(501, 1000, 2)), 2500]
    assert (result["ok"], result["people_ok"], result["staging"]) == (True, True, [])
