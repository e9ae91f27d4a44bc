"""Checkpoint keys: texts that name a computation, a fragment and a range of rows. They are parsed from the right end.

    fmt-1_udf-{udf}_ver-{version}_col-{column}_where-{md5}_uri-{md5}_srcfiles-{md5}_frag-{id}_range-{start}-{end}

Names come from the user and may contain any text, even text that looks like a part of a key. So the parser removes the
fragment, the range and the hashes, whose form is fixed, from the right end. The texts that would give two computations
the same key (`_ver-`, `_col-`, `_where-` within a name) are written with an escaped dash.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

FORMAT = 1

RANGE = "range"
DATA = "data"

_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_HASH = "[0-9a-f]{32}"
_TAIL = re.compile(rf"(?s)(.*)_frag-({_NUMBER})_({RANGE}|{DATA})-({_NUMBER})-({_NUMBER})")
_PREFIX = re.compile(
    rf"(?s)fmt-{FORMAT}_udf-(.*)_ver-(.*)_col-(.*)_where-({_HASH})_uri-({_HASH})_srcfiles-({_HASH})",
)
_SEPARATORS = re.compile("(_ver|_col|_where)-")
_ESCAPED = {"%25": "%", "%2D": "-"}


def hash_text(text: str | None) -> str:
    """The hash that represents a text in a key; None gives the hash of the empty text."""
    return hashlib.md5((text or "").encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class CheckpointPrefix:
    """The computation that a checkpoint belongs to. `where`, `uri` and `srcfiles` are hashes (see `hash_text`)."""

    udf: str
    version: str
    column: str
    where: str
    uri: str
    srcfiles: str

    def __post_init__(self) -> None:
        for name in ("where", "uri", "srcfiles"):
            if not re.fullmatch(_HASH, getattr(self, name)):
                raise ValueError(f"{name} of a checkpoint's prefix must be an md5 in hex, not {getattr(self, name)!r}")

    @property
    def text(self) -> str:
        udf, version, column = (_escape(name) for name in (self.udf, self.version, self.column))
        return (
            f"fmt-{FORMAT}_udf-{udf}_ver-{version}_col-{column}"
            f"_where-{self.where}_uri-{self.uri}_srcfiles-{self.srcfiles}"
        )

    @staticmethod
    def parse(text: str) -> CheckpointPrefix | None:
        """Parse a prefix; None if the text does not have this format."""
        match = _PREFIX.fullmatch(text)
        if match is None:
            return None
        udf, version, column = (_unescape(name) for name in match.groups()[:3])
        prefix = CheckpointPrefix(udf, version, column, *match.groups()[3:])
        return prefix if prefix.text == text else None


@dataclass(frozen=True)
class CheckpointKey:
    """The parts of a key: prefix text, fragment, kind (`range` or `data`), and the row addresses [start, end)."""

    prefix: str
    fragment: int
    kind: str
    start: int
    end: int


def range_key(prefix: str, fragment: int, start: int, end: int) -> str:
    """The key of a checkpoint that covers the row addresses [start, end) of a fragment."""
    return _key(prefix, fragment, RANGE, start, end)


def data_key(prefix: str, fragment: int, start: int, end: int) -> str:
    """The key of a checkpoint that names the finished file of the row addresses [start, end) of a fragment."""
    return _key(prefix, fragment, DATA, start, end)


def parse_key(key: str) -> CheckpointKey | None:
    """Parse a key; None if it does not have this format, such as a key of an older version. The prefix is any text."""
    match = _TAIL.fullmatch(key)
    if match is None:
        return None
    prefix, fragment, kind, start, end = match.groups()
    if int(start) > int(end):
        return None
    return CheckpointKey(prefix, int(fragment), kind, int(start), int(end))


def needs_no_escaping(prefix: CheckpointPrefix) -> bool:
    """Whether the prefix would be unique even without escaping, because no name contains a separator."""
    return not any(_SEPARATORS.search(name) for name in (prefix.udf, prefix.version, prefix.column))


def _key(prefix: str, fragment: int, kind: str, start: int, end: int) -> str:
    if fragment < 0 or not 0 <= start <= end:
        raise ValueError(f"no checkpoint can cover [{start}, {end}) of fragment {fragment}")
    return f"{prefix}_frag-{fragment}_{kind}-{start}-{end}"


def _escape(name: str) -> str:
    return _SEPARATORS.sub(r"\1%2D", name.replace("%", "%25"))


def _unescape(name: str) -> str:
    return re.sub("%25|%2D", lambda match: _ESCAPED[match.group()], name)
