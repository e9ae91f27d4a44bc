"""Every code block of the documentation is run by a test: which pages are, is told from the calls of `run_page`."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT, blocks

TESTS = ROOT / "tests"
RUN = {"python", "console", "sql"}
KINDS = RUN | {"toml", "json", "text"}
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "design"),
    *sorted(ROOT.glob("examples/*/README.md")),
]
_FENCES = re.compile(r"^(?P<above>[^\n]*)\n```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def pages_run_by(source: str, names: Mapping[str, Any]) -> Iterator[Path]:
    """The pages that the tests of a module give to `run_page`, by what its expressions are with the module's names."""
    for test in ast.parse(source).body:
        if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
            continue
        calls = [node for node in ast.walk(test) if isinstance(node, ast.Call) and _is_run_page(node)]
        for given in _parameters(names.get(test.name)) if calls else ():
            known = {**names, **given}
            # An example is copied to a folder of the test, and its page run there.
            known |= {"tmp_path": known.get("EXAMPLE"), "folder": None}
            for node in ast.walk(test):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    known[node.targets[0].id] = _value(node.value, known)
            yield from (page for call in calls if isinstance(page := _value(call.args[0], known), Path))


def _is_run_page(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in ("run_page", "run_page_without_a_jvm")


def _parameters(test: Any) -> Iterator[dict[str, Any]]:
    """Each set of arguments that a test is run with."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    choices = []
    for mark in marks:
        names = [one.strip() for one in mark.args[0].split(",")] if isinstance(mark.args[0], str) else mark.args[0]
        values = [one.values if hasattr(one, "values") and hasattr(one, "marks") else one for one in mark.args[1]]
        choices.append([dict(zip(names, one if isinstance(one, tuple) else (one,), strict=True)) for one in values])
    for chosen in product(*choices):
        yield {name: value for one in chosen for name, value in one.items()}


def _value(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a path of names, texts and slashes is; None for anything else."""
    match expression:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return names.get(name)
        case ast.BinOp(left, ast.Div(), right):
            folder, below = _value(left, names), _value(right, names)
            return folder / below if isinstance(folder, Path) and isinstance(below, str | Path) else None
        case ast.JoinedStr(parts):
            texts = [_value(part.value if isinstance(part, ast.FormattedValue) else part, names) for part in parts]
            return "".join(map(str, texts))
    return None


def all_pages_run(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    found: set[Path] = set()
    for file in sorted(TESTS.rglob("test_*.py")):
        source = file.read_text("utf-8")
        if "run_page" in source and file != Path(__file__):
            # Under a name of its own: the tests in it are not collected twice.
            spec = importlib.util.spec_from_file_location(f"pages_of_{file.stem}_{file.parent.name}", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
            spec.loader.exec_module(module)
            found |= set(pages_run_by(source, vars(module)))
    return found


@pytest.mark.slow
def test_every_page_with_code_is_run_by_a_test(monkeypatch: pytest.MonkeyPatch):
    run = all_pages_run(monkeypatch)
    assert len(run) > 10
    missing = [page for page in PAGES if page not in run and any(block.language in RUN for block in blocks(page))]
    assert [str(page.relative_to(ROOT)) for page in missing] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_are_of_kinds_that_are_checked_or_say_why_not(page: Path):
    text = page.read_text("utf-8")
    if page.parent.name == "coming-from":  # code of other tools, which test_coming_from.py has an eye on
        text = re.sub(r"^```\w+ theirs$", "<!-- not run: of another tool -->\n```text", text, flags=re.MULTILINE)
    assert complaints(text) == []


def complaints(text: str) -> list[str]:
    """What is wrong with the blocks of a page, by the line it is in."""
    found = []
    for fence in _FENCES.finditer(text):
        kind, inner, line = fence["kind"], fence["text"], text.count("\n", 0, fence.start("kind")) + 1
        if kind == "":
            if re.search(r"^(\$ |floodmark |python |make |pip )", inner, re.MULTILINE):
                found.append(f"{line}: commands in a block without a kind: console, or text with a reason")
        elif kind not in KINDS:
            found.append(f"{line}: {kind!r} is no kind of block that is run or checked")
        elif kind == "text" and not re.fullmatch(r"\s*<!-- not run: .{8,} -->", fence["above"]):
            found.append(f"{line}: a text block needs a line '<!-- not run: why -->' right above it")
        elif kind == "console" and not inner.startswith("$ "):
            found.append(f"{line}: a console block begins with a command: '$ floodmark …'")
        elif kind == "toml":
            tomllib.loads(inner)
        elif kind == "json" and "…" not in inner:
            json.loads(inner)
    return found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a\n```bash\nls\n```\n", "'bash' is no kind"),
        ("a\n```py\n1\n```\n", "'py' is no kind"),
        ("a\n```\n$ floodmark list\n```\n", "without a kind"),
        ("a\n```text\nmake demo\n```\n", "needs a line"),
        ("a\n```console\nfloodmark list\n```\n", "begins with a command"),
    ],
)
def test_a_block_that_nobody_would_run_is_found(text: str, complaint: str):
    (found,) = complaints(text)
    assert complaint in found
    assert found.startswith("2:")


def test_blocks_that_are_run_or_say_why_not_are_fine():
    excused = "<!-- not run: it sets up a machine -->\n```text\nmake\n```\n"
    assert complaints(f"{excused}\n```console\n$ floodmark list\n```\n\n```\n 0 ─ 1\n```\n") == []


def test_pages_are_told_from_calls_of_run_page():
    source = inspect.cleandoc(
        """
        def test_one(tmp_path):
            run_page(DOCS / "one.md")

        def test_example(tmp_path):
            run_page(tmp_path / "README.md")

        def test_local():
            page = DOCS / "sub" / "two.md"
            run_page(page)

        def test_some(name):
            run_page(DOCS / f"{name}.md")

        def helper():
            run_page(DOCS / "never.md")
        """
    )

    @pytest.mark.parametrize("name", ["three", "four"])
    def some(name):
        pass

    names = {"DOCS": Path("/docs"), "EXAMPLE": Path("/examples/x"), "test_some": some}
    found = sorted(map(str, pages_run_by(source, names)))
    assert found == ["/docs/four.md", "/docs/one.md", "/docs/sub/two.md", "/docs/three.md", "/examples/x/README.md"]
