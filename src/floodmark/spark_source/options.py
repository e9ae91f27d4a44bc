"""The options of `spark.read`, `spark.readStream` and `df.write`: what they are called and what they mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from floodmark.spark_source.errors import BadOption

_WHERE = ("lake", "path")
_ROWS = ("as_of", "changes", "since", "until", "system")
_STREAM = ("system", "startingOffset", "maxRecordsPerTrigger")
_WRITE = ("source", "state")
_OTHERS = ("paths",)  # what Spark makes of load(["a", "b"]), which gets an answer of its own

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class Place:
    """Which dataset of which lake."""

    lake: str
    dataset: str


@dataclass(frozen=True)
class Interval:
    """Records with offsets in (since, until]; None is as far as there are any."""

    since: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class Rows:
    """What a batch job reads: the current rows, now or as of a point in the past, or the records of an interval."""

    as_of: str | None
    changes: Interval | None
    system: bool


@dataclass(frozen=True)
class Stream:
    """What a streaming job reads: records from an offset on, so many at a time."""

    starting: int | str
    most: int | None
    system: bool


@dataclass(frozen=True)
class Delivery:
    """Which delivery a write is: the same again is not written twice."""

    source: str
    state: str


class Options:
    """The options as Spark hands them over: text, by names in which capitals do not count."""

    def __init__(self, given: Mapping[str, str], lake: str | None = None) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._lake = lake

    def place(self) -> Place:
        """The dataset that `load` or `save` names, in the lake of the option, or of `register`."""
        if "paths" in self._given:
            raise BadOption("one frame reads one dataset", hint="load each by itself and union them", option="paths")
        lake = self._given.get("lake", self._lake)
        if not lake:
            hint = 'add .option("lake", "/path/of/the/lake"), or name it once: floodmark.register(spark, lake)'
            raise BadOption("no lake is given", hint=hint, option="lake")
        if "://" not in lake and not Path(lake).is_absolute():
            hint = f"give the whole path, such as {str(Path('/data') / lake)!r}: Spark's processes run in other folders"
            raise BadOption(f"lake={lake!r} is a relative path", hint=hint, option="lake")
        if not self._given.get("path"):
            raise BadOption("no dataset is given", hint='name it: .load("trips")', option="path")
        return Place(lake, self._given["path"])

    def rows(self) -> Rows:
        """What `spark.read` asks for."""
        self._check_known((*_WHERE, *_ROWS), "reading")
        changes = self._changes()
        as_of = self._given.get("as_of")
        if as_of is not None and changes is not None:
            raise BadOption(
                "as_of is about the rows of one moment, changes, since and until about records between two",
                hint="leave out either: until ends an interval at an offset",
                option="as_of",
            )
        return Rows(as_of, changes, self._flag("system", changes is not None))

    def stream(self) -> Stream:
        """What `spark.readStream` asks for."""
        self._check_known((*_WHERE, *_STREAM), "streaming")
        most = self._number("maxRecordsPerTrigger")
        if most is not None and most < 1:
            hint = "give at least 1, or leave it out to read all there is"
            raise BadOption(f"maxRecordsPerTrigger={most}", hint=hint, option="maxRecordsPerTrigger")
        return Stream(self._starting(), most, self._flag("system", False))

    def delivery(self) -> Delivery | None:
        """What `df.write` says of the delivery, if anything."""
        self._check_known((*_WHERE, *_WRITE), "writing")
        source, state = self._given.get("source"), self._given.get("state")
        if source is not None and state is not None:
            return Delivery(source, state)
        if source is not None or state is not None:
            raise BadOption(
                "source and state go together", hint="which source, and how far it was read", option="state"
            )
        return None

    def checkpoint(self) -> str:
        """Where the query that writes a stream has its checkpoint. Spark hands over the query's name, too."""
        self._check_known((*_WHERE, "checkpointLocation", "queryName"), "writing a stream to")
        location = self._given.get("checkpointlocation")
        if not location:
            hint = 'a batch is known by it: .option("checkpointLocation", "/data/checkpoints/trips")'
            raise BadOption("no checkpointLocation is given", hint=hint, option="checkpointLocation")
        return location

    @property
    def system(self) -> bool:
        """Whether system columns are asked for; told before it is known whether a batch or a stream will be read."""
        return self._flag("system", self._changes() is not None)

    @property
    def changes(self) -> Interval | None:
        """The records asked for; None for rows, and for a stream."""
        return self._changes()

    def check_known(self) -> None:
        """Refuse what no reader knows."""
        self._check_known(dict.fromkeys((*_WHERE, *_ROWS, *_STREAM)), "reading")

    def _changes(self) -> Interval | None:
        since, until = self._number("since"), self._number("until")
        asked = self._flag("changes", since is not None or until is not None)
        if not asked and (since is not None or until is not None):
            raise BadOption("since and until are about changes", hint="leave out changes=false", option="changes")
        return Interval(since, until) if asked else None

    def _starting(self) -> int | str:
        text = self._given.get("startingoffset", EARLIEST)
        if text.lower() in (EARLIEST, LATEST):
            return text.lower()
        number = self._number("startingOffset")
        if number is None or number < 0:
            hint = 'give the offset of the first record to read, "earliest" or "latest"'
            raise BadOption(f"startingOffset={text!r} is no offset", hint=hint, option="startingOffset")
        return number

    def _number(self, name: str) -> int | None:
        text = self._given.get(name.lower())
        if text is None:
            return None
        try:
            return int(text)
        except ValueError as error:
            raise BadOption(f"{name}={text!r} is no whole number", hint="give an integer", option=name) from error

    def _flag(self, name: str, default: bool) -> bool:
        text = self._given.get(name.lower(), str(default)).lower()
        if text not in ("true", "false"):
            raise BadOption(f"{name}={text!r} is neither true nor false", hint="give one of these", option=name)
        return text == "true"

    def _check_known(self, names: Iterable[str], doing: str) -> None:
        known = {name.lower(): name for name in (*names, *_OTHERS)}
        for name in self._given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                usable = ", ".join(n for n in known.values() if n not in (*_OTHERS, "path"))
                hint = f"did you mean {known[near[0]]!r}?" if near else f"these are: {usable}"
                raise BadOption(f"{name!r} is no option for {doing} a dataset", hint=hint, option=name)
