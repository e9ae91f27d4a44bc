import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from floodmark.engine.attempts import CancelSwitch
from floodmark.engine.run import run_in_processes
from floodmark.engine.task import NotShippable, TaskRaised
from floodmark.engine.worker_pool import POOL
from floodmark.errors import Cancelled, EngineError, FloodmarkError, TaskFailed

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Span:
    start: int
    end: int

    def halves(self):
        middle = (self.start + self.end) // 2
        return None if self.end - self.start < 2 else (Span(self.start, middle), Span(middle, self.end))


class BadRow(FloodmarkError):
    offset: int


class Count:
    def __init__(self):
        self.steps = []

    def start(self, label, total): ...

    def finish(self): ...

    def advance(self, units):
        self.steps.append(units)


@pytest.fixture(scope="module", autouse=True)
def no_worker_is_left():
    yield
    POOL.end()


def note(folder, name):
    """Note a call in a file, since it is made in another process; returns how many there were before."""
    count = len(list(folder.glob(f"{name}-*")))
    (folder / f"{name}-{time.time_ns()}-{os.getpid()}").touch()
    return count


def is_running(process):
    try:
        os.kill(process, 0)
        stat = Path(f"/proc/{process}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def await_that(condition):
    """Wait; the limit of the whole test ends a wait that never ends."""
    while not condition():
        time.sleep(0.01)


def script(text, **options):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, **options)


# The contract of engine.run


def test_results_come_in_the_order_of_the_tasks_from_other_processes(tmp_path):
    def first_ends_last(n):
        if n == 29:
            (tmp_path / "last").touch()
        while n == 0 and not (tmp_path / "last").exists():
            time.sleep(0.01)
        return n * n, os.getpid()

    results = run_in_processes(range(30), first_ends_last, processes=2)
    assert [square for square, _ in results] == [n * n for n in range(30)]
    assert os.getpid() not in {process for _, process in results}


def test_no_tasks_start_nothing():
    code = (
        "import sys\n"
        "from floodmark.engine.run import run_in_processes\n"
        "assert run_in_processes([], str) == []\n"
        "print([m for m in ('floodmark.engine.worker_pool', 'multiprocessing') if m in sys.modules])"
    )
    assert script(code).stdout.strip() == "[]"


def test_as_many_tasks_run_at_once_as_there_are_processes(tmp_path):
    def meet(n):
        (tmp_path / str(n)).touch()
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        return os.getpid()

    assert len(set(run_in_processes(range(3), meet, processes=3))) == 3


def test_class_of_this_file_comes_back_as_itself():
    assert run_in_processes([Span(0, 4)], lambda span: span.halves()) == [(Span(0, 2), Span(2, 4))]


def test_task_that_raises_is_tried_again_and_the_others_are_not(tmp_path):
    def flaky(n):
        if note(tmp_path, n) < 2 and n == 1:
            raise OSError("busy")
        return n

    assert run_in_processes(range(4), flaky) == [0, 1, 2, 3]
    assert [len(list(tmp_path.glob(f"{n}-*"))) for n in range(4)] == [1, 3, 1, 1]


def test_task_that_always_raises_is_named_with_its_trace():
    def fails(span):
        raise ValueError("no good")

    with pytest.raises(TaskFailed, match=r"Span\(start=3, end=4\) failed 2 times: ValueError: no good") as caught:
        run_in_processes([Span(3, 4)], fails, retries=1)
    assert "in fails" in caught.value.trace
    assert isinstance(caught.value.__cause__, ValueError)


def test_floodmark_error_is_raised_at_once_with_its_type_and_facts(tmp_path):
    def refuse(n):
        note(tmp_path, n)
        raise BadRow("a bad row", hint="fix it", offset=41)

    with pytest.raises(BadRow) as caught:
        run_in_processes([1], refuse)
    assert (caught.value.offset, caught.value.hint) == (41, "fix it")
    assert "in refuse" in caught.value.__notes__[0]
    assert len(list(tmp_path.iterdir())) == 1


def test_task_out_of_memory_is_halved_in_place():
    def hungry(span):
        if span.end - span.start > 2:
            raise MemoryError
        return (span.start, span.end)

    tasks = [Span(0, 2), Span(2, 7), Span(7, 8)]
    assert run_in_processes(tasks, hungry, halve=Span.halves) == [(0, 2), (2, 4), (4, 5), (5, 7), (7, 8)]


def test_progress_adds_up_to_the_rows_also_when_tasks_are_halved():
    def hungry(span):
        if span.end - span.start > 3:
            raise MemoryError

    count = Count()
    tasks = [Span(0, 10), Span(10, 12)]
    run_in_processes(tasks, hungry, progress=count, halve=Span.halves, weight=lambda s: s.end - s.start)
    assert sum(count.steps) == 12
    assert len(count.steps) == 5


def test_function_that_cannot_be_sent_is_named():
    lock = threading.Lock()

    def guarded(n):
        with lock:
            return n

    with pytest.raises(NotShippable, match="guarded cannot be sent to a worker process"):
        run_in_processes([1], guarded)


def test_result_that_cannot_be_sent_back_is_a_failure_that_says_so():
    with pytest.raises(TaskFailed, match="lock, cannot be sent back"):
        run_in_processes([1], lambda _: threading.Lock(), retries=0)


def refuse_to_be_read():
    raise RuntimeError("not here")


class Unreadable:
    def __reduce__(self):
        return refuse_to_be_read, ()


def test_result_that_cannot_be_read_here_is_a_failure_that_says_so():
    with pytest.raises(TaskFailed, match="the result cannot be read: not here"):
        run_in_processes([1], lambda _: Unreadable(), retries=0)


class Awkward(Exception):
    def __init__(self, one, two):
        super().__init__("awkward")


def test_error_that_cannot_be_sent_back_keeps_its_name():
    def fails(n):
        raise Awkward(1, 2)

    with pytest.raises(TaskFailed, match="Awkward: awkward") as caught:
        run_in_processes([1], fails, retries=0)
    assert "in fails" in caught.value.trace


def test_results_and_tasks_may_be_large():
    megabytes = 8 << 20
    assert run_in_processes([b"x" * megabytes] * 3, lambda task: task + b"y") == [b"x" * megabytes + b"y"] * 3


# The death of workers


def test_task_whose_worker_is_killed_is_halved_and_the_others_are_not(tmp_path):
    def dies_when_large(span):
        note(tmp_path, span.start)
        if span.end - span.start > 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return (span.start, span.end)

    tasks = [Span(0, 2), Span(2, 7), Span(7, 8)]
    assert run_in_processes(tasks, dies_when_large, halve=Span.halves) == [(0, 2), (2, 4), (4, 5), (5, 7), (7, 8)]
    assert [len(list(tmp_path.glob(f"{n}-*"))) for n in (0, 7)] == [1, 1]


def test_worker_killed_once_is_replaced(tmp_path):
    def dies_once(n):
        if n == 2 and note(tmp_path, n) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    assert run_in_processes(range(4), dies_once) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("death", "told"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"), (lambda: os._exit(3), "exit code 3")],
)
def test_task_that_always_ends_its_worker_is_named_with_how_it_ended(death, told):
    with pytest.raises(TaskFailed, match=f"The task 1 failed 1 times: WorkerDied: .*{told}") as caught:
        run_in_processes(range(2), lambda n: death() if n == 1 else n, retries=0)
    assert caught.value.task == "1"


def test_death_is_noticed_while_a_process_that_the_function_forked_lives_on(tmp_path):
    def forks_and_dies(n):
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        (tmp_path / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(TaskFailed, match="killed by SIGKILL"):
        run_in_processes([1], forks_and_dies, retries=0)
    child = int((tmp_path / "child").read_text())
    await_that(lambda: not is_running(child))


def test_worker_that_died_between_two_runs_is_replaced():
    (first,) = run_in_processes([1], lambda _: os.getpid(), processes=1)
    POOL.end()
    assert run_in_processes([Span(0, 4)], lambda _: os.getpid(), processes=1, retries=0) != [first]
    (second,) = run_in_processes([1], lambda _: os.getpid(), processes=1)
    os.kill(second, signal.SIGKILL)
    os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)  # until all its threads have ended; leaves it to the pool
    assert run_in_processes([1], lambda _: os.getpid(), processes=1, retries=0) != [second]


def test_interpreter_that_cannot_start_workers_is_reported(monkeypatch):
    POOL.end()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="exit code 1"):
        run_in_processes([1], str)


# Stopping


def when_under_way(folder, act):
    def watch():
        await_that(lambda: any(folder.iterdir()))
        act()

    watcher = threading.Thread(target=watch)
    watcher.start()
    return watcher


def slow_in(folder):
    def slow(n):
        note(folder, n)
        time.sleep(600)

    return slow


def workers_seen(folder):
    return {int(path.name.rpartition("-")[2]) for path in folder.iterdir()}


def test_cancelled_run_ends_the_workers_that_are_at_work(tmp_path):
    cancel = CancelSwitch()
    watcher = when_under_way(tmp_path, cancel.cancel)
    with pytest.raises(Cancelled) as caught:
        run_in_processes(range(40), slow_in(tmp_path), cancel=cancel)
    watcher.join()
    assert caught.value.total == 40
    assert not any(is_running(process) for process in workers_seen(tmp_path))
    assert run_in_processes([1], str) == ["1"]


def test_ctrl_c_ends_the_workers_that_are_at_work_and_reaches_the_caller(tmp_path):
    # Tests of the command line, in this process before us, may have left a handler of theirs.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        watcher = when_under_way(tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            run_in_processes(range(40), slow_in(tmp_path))
        watcher.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not any(is_running(process) for process in workers_seen(tmp_path))
    fresh = run_in_processes(range(4), lambda _: os.getpid())
    assert workers_seen(tmp_path).isdisjoint(fresh)


def test_error_of_one_task_ends_the_others(tmp_path):
    def work(n):
        if n == 0:
            while not list(tmp_path.iterdir()):
                time.sleep(0.01)
            raise BadRow("a bad row", offset=0)
        note(tmp_path, n)
        time.sleep(600)

    with pytest.raises(BadRow):
        run_in_processes(range(2), work)
    assert not any(is_running(process) for process in workers_seen(tmp_path))


def test_ctrl_c_at_a_terminal_is_for_the_driver_alone(tmp_path):
    code = f"""
import pathlib, time
from floodmark.engine.run import run_in_processes
def work(n):
    pathlib.Path({str(tmp_path)!r}, str(n)).touch()
    time.sleep(600)
try:
    run_in_processes(range(2), work)
except KeyboardInterrupt:
    print("stopped")
"""
    command = [sys.executable, "-c", code]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **options) as driver:
        await_that(lambda: len(list(tmp_path.iterdir())) == 2)
        os.killpg(driver.pid, signal.SIGINT)  # a terminal sends it to every process in the foreground
        assert driver.communicate() == ("stopped\n", "")


KILLED = """
import os, time
from floodmark.engine.run import run_in_processes

def work(n):
    os.write(2, f"{os.getpid()}\\n".encode())  # one write: print would let the other's number in before the newline
    BODY

run_in_processes(range(2), work)
time.sleep(600)
"""


@pytest.mark.parametrize("body", ["time.sleep(600)", "while True: pass", "return"])
def test_workers_end_when_the_driver_is_killed(body):
    command = [sys.executable, "-c", KILLED.replace("BODY", body)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as driver:
        workers = [int(driver.stderr.readline()) for _ in range(2)]
        driver.kill()
    await_that(lambda: not any(is_running(worker) for worker in workers))


def test_workers_end_with_the_driver_and_may_tidy_up(tmp_path):
    code = f"""
import atexit, os, pathlib
from floodmark.engine.run import run_in_processes
def work(n):
    atexit.register(lambda: pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch())
    return os.getpid()
print(*run_in_processes([1], work))
"""
    worker = int(script(code).stdout)
    assert not is_running(worker)
    assert (tmp_path / str(worker)).exists()


# What travels, and what stays


def test_functions_of_a_program_given_on_the_command_line_travel():
    code = """
from floodmark.engine.run import run_in_processes
BASE = 40
class Answer:
    def __init__(self, n): self.n = n
def inner(n): return BASE + n
def work(n): return Answer(inner(n))
(answer,) = run_in_processes([2], work)
assert type(answer) is Answer
print(answer.n)
"""
    assert script(code).stdout == "42\n"


def test_script_needs_no_guard_and_may_use_modules_beside_it(tmp_path):
    # A module with an open lock cannot travel by value: the worker imports it, from where the script found it.
    (tmp_path / "beside.py").write_text(
        "import threading\nLOCK = threading.Lock()\ndef f(n):\n    with LOCK: return n\n"
    )
    program = tmp_path / "program.py"
    program.write_text(
        "import beside\nfrom floodmark.engine.run import run_in_processes\n"
        "print(run_in_processes([1, 2], lambda n: beside.f(n) * 2))\n"
    )
    answer = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, cwd="/")
    assert answer.stdout == "[2, 4]\n"


def test_what_a_function_prints_goes_to_stderr():
    code = """
import os, sys
from floodmark.engine.run import run_in_processes
def work(n):
    print("printed"); os.write(1, b"written\\n"); print("complained", file=sys.stderr); os.system("echo echoed")
    assert sys.stdin.read() == ""
run_in_processes([1], work)
print("result", sys.stdin.read())
"""
    answer = script(code, input="for the driver")
    assert answer.stdout == "result for the driver\n"
    assert sorted(answer.stderr.split()) == ["complained", "echoed", "printed", "written"]


def test_modules_keep_what_they_hold_between_tasks_and_runs():
    def counted(_):
        import floodmark.engine.task as module

        module.kept = getattr(module, "kept", 0) + 1
        return module.kept

    POOL.end()
    assert run_in_processes(range(3), counted, processes=1) == [1, 2, 3]
    assert run_in_processes(range(2), counted, processes=1) == [4, 5]


def test_runs_in_two_threads_do_not_share_a_worker(tmp_path):
    answers = {}

    def both_there(name):
        (tmp_path / name).touch()
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        return os.getpid()

    def start(name):
        answers[name] = run_in_processes([name], both_there, processes=1)

    threads = [threading.Thread(target=start, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers["one"] != answers["two"]


def test_warm_worker_sees_the_folder_and_the_environment_of_its_driver(monkeypatch, tmp_path):
    def look(_):
        return str(Path.cwd()), os.environ.get("FLOODMARK_TEST"), os.environ.get("PYTHONPATH"), os.getpid()

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("FLOODMARK_TEST", "one")
    (before,) = run_in_processes([1], look, processes=1)
    assert before[:3] == (str(Path.cwd()), "one", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_TEST")
    assert run_in_processes([1], look, processes=1) == [(str(tmp_path), None, None, before[3])]
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert run_in_processes([1], lambda _: sys.path[:2], processes=1) == [[str(tmp_path), sys.path[1]]]


def test_forked_process_has_workers_of_its_own():
    code = """
import os
from floodmark.engine.run import run_in_processes
def where(_): return os.getpid()
(ours,) = run_in_processes([1], where, processes=1)
child = os.fork()
(mine,) = run_in_processes([1], where, processes=1)
if child:
    os.waitpid(child, 0)
    assert run_in_processes([1], where, processes=1) == [ours] == [mine]
print(mine)
"""
    assert len(set(script(code).stdout.split())) == 2


def dies_at_5(span: Span) -> tuple[int, int] | str:
    if span.start < 0:
        return f"gave up {-span.start}"
    if span.start <= 5 < span.end:
        os.kill(os.getpid(), signal.SIGKILL)
    return span.start, span.end


def test_task_that_kills_every_worker_is_given_up_and_the_others_are_done():
    given_up: list[tuple[Span, str]] = []

    def give_up(span: Span, failure: TaskRaised) -> Span | None:
        given_up.append((span, str(failure.error)))
        return Span(-span.start, 0)

    done = run_in_processes([Span(0, 8)], dies_at_5, halve=Span.halves, give_up=give_up)
    assert done == [(0, 4), (4, 5), "gave up 5", (6, 8)]
    [(span, why)] = given_up
    assert span == Span(5, 6)
    assert "was killed by SIGKILL" in why


def test_task_that_nothing_is_done_instead_of_fails():
    with pytest.raises(TaskFailed, match="WorkerDied"):
        run_in_processes([Span(0, 8)], dies_at_5, halve=Span.halves, retries=0, give_up=lambda *_: None)


def test_only_deaths_are_given_up():
    def fails(_: Span) -> None:
        raise ValueError("no")

    with pytest.raises(TaskFailed, match="ValueError: no"):
        run_in_processes([Span(0, 1)], fails, retries=0, give_up=lambda span, _: span)
