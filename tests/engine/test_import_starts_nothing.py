import subprocess
import sys


def test_importing_the_engine_imports_no_spark():
    code = "import sys, floodmark.engine; print([m for m in sys.modules if m.split('.')[0] in {'pyspark', 'py4j'}])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_session_that_is_not_asked_for_starts_nothing():
    code = (
        "import sys; from floodmark.engine import Session, run, run_here\n"
        "with Session() as session:\n"
        "    assert run([], str, session=session) == [] and run_here([1], str) == ['1']\n"
        "    assert not session.started\n"
        "print('pyspark' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
