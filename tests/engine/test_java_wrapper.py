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


def test_cache_that_cannot_be_written_is_replaced_by_the_temporary_folder(tmp_path, echo, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "cache").write_text("a file where the folder should be")
    home = spark_java_home(echo, tmp_path / "cache")
    assert home is not None
    assert home.is_relative_to(tmp_path / "tmp")
    assert os.access(Path(home) / "bin" / "java", os.X_OK)


def test_folder_that_others_could_write_to_is_not_trusted(tmp_path, echo, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "cache").write_text("a file where the folder should be")
    home = spark_java_home(echo, tmp_path / "cache")
    home.chmod(0o777)
    assert spark_java_home(echo, tmp_path / "cache") is None


def test_flag_that_newer_java_warns_about_is_dropped_there_only(tmp_path, echo):
    flag = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    for major, expected in ((17, f"<{flag}>\n"), (25, "")):
        home = spark_java_home(Java(echo.executable, major, str(major), "PATH"), tmp_path / "cache")
        answer = subprocess.run([home / "bin" / "java", flag], capture_output=True, text=True, check=True)
        assert answer.stdout == expected
