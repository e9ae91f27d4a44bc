"""A real Spark cluster on this machine: a master and some workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from floodmark.engine.java import find_java, spark_java_home
from floodmark.engine.spark_launch import spark_home
from floodmark.storage.file_cache import user_cache
from waiting import PATIENCE

DRIVER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",  # starts fastest
}
"""What a session on such a cluster needs beside ``spark.master``."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs: the master's URL, and the process of each worker. Worker n works in folder/worker-n."""

    url: str
    folder: Path
    workers: Sequence[subprocess.Popen[bytes]]

    def worker_of(self, folder: Path) -> int:
        """Whose folder this is: a task's current folder is below its worker's."""
        return int(folder.relative_to(self.folder).parts[0].removeprefix("worker-"))

    def kill(self, number: int) -> None:
        """Have a worker die as its machine would: the daemon, its executor, and the Python processes of that."""
        worker = self.workers[number]
        for process in [worker.pid, *_descendants(worker.pid)]:
            with contextlib.suppress(ProcessLookupError):  # one that ended with the one that started it
                os.kill(process, signal.SIGKILL)
        worker.wait(PATIENCE)


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a master and workers on loopback with one core each; all end with the block."""
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        processes.append(_start(folder, "master", *master))
        _wait_for(folder / "master.log", "I have been elected leader", processes)
        for number in range(workers):
            name = f"worker-{number}"
            options = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "512m"]
            options += ["--work-dir", str(folder / name)]
            processes.append(_start(folder, name, "worker.Worker", *options, url))
        for number in range(workers):
            _wait_for(folder / f"worker-{number}.log", "Successfully registered with master", processes)
        yield Cluster(url, folder, processes[1:])
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(folder: Path, name: str, *command: str) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    java = spark_java_home(find_java(), user_cache())
    variables = {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / f"{name}-local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
        **({"JAVA_HOME": str(java)} if java else {}),
    }
    with (folder / f"{name}.log").open("wb") as log:
        # The script execs Java, so the process that we end is Java itself.
        return subprocess.Popen(
            [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{command[0]}", *command[1:]],
            env=variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _wait_for(log: Path, text: str, processes: list[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + PATIENCE
    while text not in log.read_text(errors="replace"):
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            raise RuntimeError(f"the cluster did not start; {log.name} says:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)


def _descendants(process: int) -> list[int]:
    listed = subprocess.run(["ps", "axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        one, parent = map(int, line.split())
        children.setdefault(parent, []).append(one)
    found = list(children.get(process, ()))
    for one in found:  # grows while it is walked
        found += children.get(one, ())
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
