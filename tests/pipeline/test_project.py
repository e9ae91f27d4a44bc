"""floodmark.toml: settings of Spark, and defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.errors import BadPipelineFile
from floodmark.pipeline.project import ProjectDefaults, ProjectSettings, load_settings


def test_settings_of_spark_go_by_their_full_names_however_they_are_written(tmp_path: Path):
    (tmp_path / "floodmark.toml").write_text(
        '[spark]\n"spark.master" = "local[3]"\nui.enabled = false\nsql.shuffle.partitions = 8\n'
    )
    assert dict(load_settings(tmp_path).spark) == {
        "spark.master": "local[3]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
    }


def test_the_nearest_file_that_says_something_counts(tmp_path: Path):
    (tmp_path / "floodmark.toml").write_text("[defaults]\nworkers = 3\ncheckpoint_seconds = 2.5\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "a" / "floodmark.toml").write_text('lake = "lake"\n')
    assert load_settings(below).defaults == ProjectDefaults(3, 2.5, None)


def test_without_a_file_there_are_no_settings(tmp_path: Path):
    assert load_settings(tmp_path) == ProjectSettings()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[defaults]\nworker = 3", "did you mean 'workers'"),
        ("[defaults]\nworkers = 0", "is not a number above 0"),
        ("[defaults]\nworkers = 1.5", "is not a number above 0"),
        ("[defaults]\nworkers = true", "is not a number above 0"),
        ("defaults = 3", "not a table"),
        ("spark = 3", "not a table"),
        ("[spark]\nx = [1]", "is \\[1\\]"),
        ("[spark", "cannot be read"),
        ("[default]\nworkers = 3", "unknown entry 'default'"),
    ],
)
def test_what_says_nothing_is_refused_with_the_file(tmp_path: Path, text: str, complaint: str):
    (tmp_path / "floodmark.toml").write_text(text)
    with pytest.raises(BadPipelineFile, match=complaint) as caught:
        load_settings(tmp_path)
    assert caught.value.path == str(tmp_path / "floodmark.toml")
