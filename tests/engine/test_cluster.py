import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cluster import DRIVER, standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_tasks_run_on_both_workers_of_a_cluster(tmp_path):
    script = Path(__file__).with_name("on_cluster.py")
    here = tmp_path / "driver"
    here.mkdir()
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
        settings = json.dumps({**DRIVER, "spark.master": cluster.url})
        answer = subprocess.run(
            [sys.executable, str(script), settings],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert [number for number, _ in result["seen"]] == list(range(8))
    folders = {Path(folder).relative_to(tmp_path / "cluster").parts[0] for _, folder in result["seen"]}
    assert folders == {"worker-0", "worker-1"}
    assert result["refused"] == 5
    assert list(here.iterdir()) == []


def test_cluster_leaves_no_process_behind_when_its_block_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), standalone_cluster(tmp_path, workers=1):
        1 / 0  # noqa: B018
    running = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in running
