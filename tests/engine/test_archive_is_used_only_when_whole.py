import os

import pytest

from floodmark.engine.java import Java
from floodmark.engine.startup_archive import Archive


@pytest.fixture
def archive(tmp_path) -> Archive:
    made = Archive(tmp_path / "cds", "key")
    made.folder.mkdir()
    made.path.write_bytes(b"classes" * 100)
    made.seal()
    return made


def test_whole_archive_is_ready(archive):
    assert archive.ready() == archive.path


def test_archive_without_manifest_is_not_used(archive):
    archive.manifest.unlink()
    assert archive.ready() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"[7]", b"\xff\xfe", b'["other 1 2"]'])
def test_archive_with_a_damaged_manifest_is_not_used(archive, content):
    archive.manifest.write_bytes(content)
    assert archive.ready() is None


def test_truncated_archive_is_not_used(archive):
    stat = archive.path.stat()
    os.truncate(archive.path, 50)
    os.utime(archive.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert archive.ready() is None


def test_archive_that_was_written_to_is_not_used(archive):
    before = archive.path.stat().st_mtime_ns
    with archive.path.open("r+b") as file:
        file.write(b"X")
    os.utime(archive.path, ns=(before + 1, before + 1))
    assert archive.ready() is None


def test_archive_whose_base_is_gone_is_not_used(archive):
    archive.base.write_bytes(b"java's own")
    archive.seal()
    assert archive.ready() == archive.path
    archive.base.unlink()
    assert archive.ready() is None


def test_another_java_or_other_jars_need_another_archive(tmp_path):
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "core.jar").write_bytes(b"1")
    program = tmp_path / "java"
    program.write_bytes(b"")
    java = Java(program, 17, "17.0.1", "PATH")

    def key(java: Java) -> str:
        return Archive.of(java, tmp_path / "spark", tmp_path).key

    first = key(java)
    assert key(java) == first
    assert key(Java(program, 17, "17.0.2", "PATH")) != first
    (jars / "more.jar").write_bytes(b"2")
    assert key(java) != first


def test_missing_archive_is_worth_building_unless_that_failed_lately(tmp_path):
    missing = Archive(tmp_path / "cds", "key")
    assert missing.worth_building(now=0)
    missing.failure.write_text("no space")
    failed_at = missing.failure.stat().st_mtime
    assert not missing.worth_building(now=failed_at + 3600)
    assert missing.worth_building(now=failed_at + 30 * 24 * 3600)


def test_archive_that_is_there_or_has_no_place_is_not_worth_building(archive, tmp_path):
    assert not archive.worth_building(now=0)
    (tmp_path / "file").write_text("")
    assert not Archive(tmp_path / "file" / "cds", "key").worth_building(now=0)


def test_only_the_archives_used_last_are_kept(tmp_path):
    folder = tmp_path / "cds"
    folder.mkdir()
    archives = [Archive(folder, f"key{n}") for n in range(6)]
    for age, one in enumerate(archives):
        one.path.write_bytes(b"x")
        one.seal()
        os.utime(one.manifest, (1000 - age, 1000 - age))
    archives[5].ready()  # the oldest was just used
    archives[0].remove_others()
    assert sorted(path.stem for path in folder.glob("*.jsa")) == ["key0", "key1", "key2", "key5"]
