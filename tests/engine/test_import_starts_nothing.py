import subprocess
import sys


def test_importing_the_engine_imports_no_spark():
    code = "import sys, floodmark.engine; print([m for m in sys.modules if m.split('.')[0] in {'pyspark', 'py4j'}])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_session_that_is_not_asked_for_starts_nothing():
    code = (
        "import sys; from floodmark.engine.run import run_on_spark, run_in_threads\n"
        "from floodmark.engine.session import Session\n"
        "with Session() as session:\n"
        "    assert run_on_spark([], str, session=session) == [] and run_in_threads([1], str) == ['1']\n"
        "    assert not session.started\n"
        "print('pyspark' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
