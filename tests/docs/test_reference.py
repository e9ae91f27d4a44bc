"""The reference that is made from the code has everything that is public, and everything in it says what it is."""

from __future__ import annotations

import re

import click
import pytest

import api_reference
import cli_reference
import floodmark
from floodmark.cli.app import floodmark as command

PAGES = {page.slug: api_reference.write_page(page) for page in api_reference.PAGES}


def heads(text: str) -> list[str]:
    return re.findall(r"^#{2,3} (.+)$", text, re.MULTILINE)


def test_every_public_name_is_in_it_once():
    named = [name for page in api_reference.PAGES for name in page.names]
    assert sorted(named) == sorted(set(floodmark.__all__) - {"__version__"})
    assert [name for page in api_reference.PAGES for name in page.names if name not in heads(PAGES[page.slug])] == []


def test_every_public_name_and_member_has_a_docstring():
    assert api_reference.undocumented() == []


@pytest.mark.parametrize(
    ("page", "member"),
    [
        ("lake", "Lake.create"),
        ("datasets", "Dataset.write"),  # of the ledger
        ("datasets", "Dataset.backfill"),  # of the dataset itself
        ("datasets", "Dataset.timeline"),
        ("views", "View.refresh"),
        ("transforms", "BatchTransform.run"),
        ("transforms", "OnError.skip"),  # a class method
        ("pipelines", "Pipeline.run"),
        ("datasets", "Commit.rows"),  # a property
    ],
)
def test_methods_and_properties_are_there_wherever_they_are_defined(page: str, member: str):
    assert heads(PAGES[page]).count(member) == 1


def test_what_is_not_public_is_not_there():
    assert [head for text in PAGES.values() for head in heads(text) if re.search(r"(^|\.)_", head)] == []


def test_a_signature_is_as_one_would_write_it():
    def small(path, *rows: int, by: str = "id", **more) -> None:
        """Some words."""

    def keyword_only(self, a: int, *, b: float = 0.5) -> list[int]:
        return []

    class Made:
        def __init__(self, clock=test_a_signature_is_as_one_would_write_it) -> None:
            pass

    assert api_reference.signature_text("small", small) == "small(path, *rows: int, by: str = 'id', **more) -> None"
    assert api_reference.signature_text("f", keyword_only) == "f(a: int, *, b: float = 0.5) -> list[int]"
    assert api_reference.signature_text("Made", Made) == "Made(clock=…)"
    assert len(api_reference.signature_text("create", floodmark.Lake.create).splitlines()) > 5


def test_a_name_without_a_docstring_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(floodmark.Lake.create, "__doc__", None)
    monkeypatch.setattr(floodmark.register, "__doc__", None)
    assert sorted(api_reference.undocumented()) == ["Lake.create", "register"]


def test_all_errors_are_told():
    rows = re.findall(r"^\| `(\w+)` \| `[\w.]+` \| (.*) \|$", PAGES["errors"], re.MULTILINE)
    assert {"CommitConflict", "BadPipeline", "FloodmarkError"} <= {name for name, _ in rows}
    assert len(rows) > 50
    assert [name for name, words in rows if not words.strip()] == []


def test_every_verb_and_option_is_in_it_with_help():
    text = cli_reference.write_page()
    verbs = [*command.commands, *(f"checkpoints {name}" for name in command.commands["checkpoints"].commands)]
    assert set(heads(text)) == set(verbs)
    assert cli_reference.unexplained() == []
    for verb, one in cli_reference.commands():
        section = text[text.index(f"\n## {verb}\n") :].partition("\n(verb-")[0]
        options = [name for option in one.params if isinstance(option, click.Option) for name in option.opts]
        assert [name for name in options if not re.search(rf"^\| `[^`]*{name}\b", section, re.MULTILINE)] == [], verb


def test_a_verb_without_help_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command.commands["run"], "help", None)
    option = next(one for one in command.commands["why"].params if isinstance(one, click.Option))
    monkeypatch.setattr(option, "help", None)
    assert cli_reference.unexplained() == ["run", f"why {option.opts[-1]}"]
