"""The command as the shell runs it: pipes that close, Ctrl-C, what an import costs."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
import floodmark.cli
from small_s3 import BUCKET, CREDENTIALS, small_s3
from waiting import PATIENCE, wait_until

# A shell that starts a job in the background has it ignore Ctrl-C; here it must not.
COMMAND = [
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from floodmark.cli import main; main()",
]

pytestmark = pytest.mark.process


def test_character_that_the_output_cannot_show_is_given_by_its_number(trips):
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    found = subprocess.run([*COMMAND, "log", "trips"], capture_output=True, timeout=PATIENCE, env=environment)
    assert found.returncode == 0
    assert b"offsets 0\\u20132" in found.stdout


def test_reader_that_stops_reading_ends_the_command_quietly(trips):
    query = "select range, repeat('x', 1000) from range(20000)"
    with subprocess.Popen([*COMMAND, "sql", query], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"range")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 141


def test_output_that_was_closed_before_is_the_same(trips):
    """A short answer meets the closed pipe only when it is flushed."""
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen([*COMMAND, "log", "trips"], stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 141


def open_when_read(fifo: Path) -> int:
    """The writing end of a FIFO, as soon as a process reads from it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def test_ctrl_c_in_an_ingest_exits_130_and_leaves_no_dataset(run, folder):
    run("init")
    os.mkfifo(folder / "slow.csv")
    with subprocess.Popen([*COMMAND, "ingest", "slow", "slow.csv"], stderr=subprocess.PIPE, text=True) as process:
        writer = open_when_read(folder / "slow.csv")
        process.send_signal(signal.SIGINT)
        os.close(writer)
        assert process.stderr is not None
        assert process.stderr.read().strip() == "error: interrupted"
        assert process.wait(PATIENCE) == 130
    assert run("list", "--json").json["datasets"] == []


def test_ctrl_c_in_a_query_does_not_wait_for_duckdb(folder, monkeypatch):
    """DuckDB cannot be interrupted while it waits for records: here for an answer of the store."""
    reading, end = threading.Event(), threading.Event()

    def stall(_: int, method: str, key: str) -> None:
        if method == "GET" and "/data/" in key:
            reading.set()
            end.wait()

    with small_s3() as s3:
        fm.Lake(s3.store()).create("trips").write(pa.table({"id": [1, 2]}))
        s3.reset(stall)
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(f"AWS_{name.upper()}", value)
        arguments = ["sql", "select sum(id) from trips", "--json", "--lake", f"s3://{BUCKET}/lake"]
        with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
            try:
                wait_until(lambda: reading.is_set() or process.poll() is not None)
                process.send_signal(signal.SIGINT)
                assert process.stdout is not None
                assert json.loads(process.stdout.read())["error"]["type"] == "Interrupted"
                assert process.wait(PATIENCE) == 130
            finally:
                end.set()


def test_importing_the_command_line_imports_nothing_heavy():
    """The package itself is left out here: what it imports is its own affair."""
    package = Path(floodmark.cli.__file__).parents[1]
    program = (
        "import sys, types\n"
        "bare = types.ModuleType('floodmark')\n"
        f"bare.__path__ = [{str(package)!r}]\n"
        "sys.modules['floodmark'] = bare\n"
        "import floodmark.cli.app\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert found.returncode == 0, found.stderr
    imported = set(found.stdout.split())
    assert "click" in imported
    assert imported.isdisjoint({"pyarrow", "pandas", "numpy", "duckdb", "pyspark", "rich"})
