"""The commands of examples in this process: no Python and no JVM is started for each."""

from __future__ import annotations

import contextlib
import io
import runpy
import shlex
import sys
from pathlib import Path
from unittest import mock

from cli.conftest import invoke


def execute(command: str, folder: Path) -> tuple[int, str, str]:
    """Run `floodmark …` or `python FILE …` in a folder: the exit code, the output and the errors."""
    program, *arguments = shlex.split(command)
    with contextlib.chdir(folder):
        if program == "floodmark":
            answer = invoke(*arguments)
            return answer.code, answer.out, answer.err
        assert program == "python", command
        return run_file(*arguments)


def run_file(file: str, *arguments: str) -> tuple[int, str, str]:
    """`python FILE …` in the current folder."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    modules, path = set(sys.modules), [str(Path(file).resolve().parent), *sys.path]
    with (
        mock.patch.object(sys, "argv", [file, *arguments]),
        mock.patch.object(sys, "path", path),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_path(file, run_name="__main__")
        except SystemExit as ended:
            code = int(ended.code or 0)
    for name in set(sys.modules) - modules:  # another example may have a module of this name
        if str(getattr(sys.modules[name], "__file__", None)).startswith(path[0]):
            del sys.modules[name]
    return code, out.getvalue(), err.getvalue()
