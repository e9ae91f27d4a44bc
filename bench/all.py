"""Run all benchmarks, one after another, and write one table with the bars of the issues, and growth curves.

Quick sizes show that everything works. --full uses the sizes of the bars and takes hours. A result stays in --output
until the same benchmark runs again, so --only can repeat a few of them.

The exit code is 0 if all bars are met, 1 if one is missed, and 2 if a benchmark failed or timed out.

Run: python bench/all.py --output bench-results
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from summary.kept import keep, kept, write_page, write_tables
from summary.programs import PROGRAMS, Program, sizes_of
from summary.running import Record, run
from summary.table import exit_code, rows

QUICK_TIMEOUT, FULL_TIMEOUT = 900.0, 7200.0


def main(arguments: list[str] | None = None) -> int:
    """Run the selected benchmarks, and write the table after each one, so that no result is lost."""
    args = _parser().parse_args(arguments)
    scale = "full" if args.full else "quick"
    timeout = args.timeout or (FULL_TIMEOUT if args.full else QUICK_TIMEOUT)
    ran = []
    for program in [] if args.draw_only else _chosen(args.only):
        print(f"{program.name} …", flush=True)
        record = run(program, scale, sizes_of(program, scale), args.output / "printed", timeout)
        keep(args.output, record)
        write_tables(args.output, kept(args.output))
        ran.append(record)
        _say(record)
    records = kept(args.output)
    write_tables(args.output, records)
    if args.page is not None:
        write_page(args.page, records)
    print(f"\n{args.output / 'benchmarks.md'}: {_summary(records)}")
    return exit_code(records if args.draw_only else ran)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--full", action="store_true", help="run at the sizes of the bars")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=names, help="run only this one; may be repeated"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=Path("bench-results"),
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="limit for each benchmark (default: 900, with --full 7200)"
    )
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the table into this page, between its markers")
    parser.add_argument(
        "--draw-only", action="store_true", help="run nothing; write table and pictures from existing results"
    )
    return parser


def _chosen(names: list[str] | None) -> list[Program]:
    return [program for program in PROGRAMS if names is None or program.name in names]


def _say(record: Record) -> None:
    print(f"  {record.state} in {record.seconds:,.0f} s {record.why}".rstrip())
    for row in rows([record]):
        if row.bench == record.bench and row.value is not None:
            print(f"  {row.verdict:<12} {row.what}: {row.shown} {f'({row.bar})' if row.bar else ''}".rstrip())
    sys.stdout.flush()


def _summary(records: list[Record]) -> str:
    found = rows(records)
    verdicts = ("met", "missed", "not measured")
    return ", ".join(f"{sum(row.verdict == verdict for row in found)} {verdict}" for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
