"""Write the command line reference: every verb with its help, arguments and options, as one Markdown page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from floodmark.cli.app import floodmark
from markdown_text import escaped, table


def commands() -> Iterator[tuple[str, click.Command]]:
    """All verbs in the order of `floodmark --help`. Verbs of groups have both words."""
    for name, command in floodmark.commands.items():
        yield name, command
        if isinstance(command, click.Group):
            for inner, within in command.commands.items():
                yield f"{name} {inner}", within


def unexplained() -> list[str]:
    """The verbs and options without a help text."""
    found = [name for name, command in commands() if not command.help]
    for name, command in commands():
        found.extend(
            f"{name} {option.opts[-1]}"
            for option in command.params
            if isinstance(option, click.Option) and not option.help and not option.hidden
        )
    return found


def write_page() -> str:
    """The page as Markdown."""
    parts = ["# Command line", "The output of `floodmark --help` and `floodmark VERB --help`, on one page."]
    parts.extend(_help(floodmark.help or ""))
    parts.append(table(("verb", ""), [_line(name, command) for name, command in commands()]))
    for name, command in commands():
        parts.append(f"(verb-{name.replace(' ', '-')})=\n## {name}")
        parts.append(f"```text\n{_usage(name, command)}\n```")
        parts.extend(_help(command.help or ""))
        parts.append(_options(name, command))
    return "\n\n".join(parts) + "\n"


def _line(name: str, command: click.Command) -> tuple[str, str]:
    first = inspect.cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")
    return f"[`{name}`](#verb-{name.replace(' ', '-')})", escaped(first)


def _context(name: str, command: click.Command) -> click.Context:
    return click.Context(command, info_name=f"floodmark {name}")


def _usage(name: str, command: click.Command) -> str:
    return " ".join([f"floodmark {name}", *command.collect_usage_pieces(_context(name, command))])


def _help(text: str) -> Iterator[str]:
    r"""Help texts as Markdown. Paragraphs that click does not wrap (marked by \b) become code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith("\b"):
            yield f"```text\n{inspect.cleandoc(paragraph[1:])}\n```"
        elif paragraph:
            yield escaped(paragraph)


def _options(name: str, command: click.Command) -> str:
    """The table of a verb's options, with their help texts."""
    context = _context(name, command)
    records = [option.get_help_record(context) for option in command.params if isinstance(option, click.Option)]
    return table(("option", ""), [(_option(one[0]), escaped(one[1])) for one in records if one])


def _option(text: str) -> str:
    """An option as code in a table cell. Its bars are escaped: a bar would end the cell."""
    return "`" + text.replace("|", r"\|") + "`"
