"""Where a checkpoint lies: user text never becomes a path, and all of one computation's fragment is one folder.

    names/{group}                                             the exact text of a group
    batches/{group}/frag-{id}/{kind}-{start}-{end}-{where}    its checkpoints
    batches/{group}/whole                                     a key that names no fragment (an older form)

A group is a prefix without the hash of its `where`: a value is the same value whichever filter asked for it, so what
serves a fragment is found by one listing. The folder's name begins with something a person can read and ends with a
hash of the whole text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_HASH = "[0-9a-f]{32}"
_KIND = "[a-z]{1,16}"
_KEY = re.compile(rf"(?s)(.*)_frag-({_NUMBER})_({_KIND})-({_NUMBER})-({_NUMBER})")
_WITH_WHERE = re.compile(rf"(?s)(.*_where-)({_HASH})((?:_uri-{_HASH}_srcfiles-{_HASH})?)")
_WITHOUT_WHERE = re.compile(rf"(?s)(.*_where-)((?:_uri-{_HASH}_srcfiles-{_HASH})?)")
_LEAF = re.compile(rf"frag-({_NUMBER})/({_KIND}-{_NUMBER}-{_NUMBER})(?:-({_HASH}))?")
_WHOLE = "whole"
_SLUG = 60


@dataclass(frozen=True)
class Group:
    """The checkpoints of one computation, whatever their `where`."""

    text: str

    @staticmethod
    def of(prefix: str) -> Group:
        """The group of a prefix."""
        found = _WITH_WHERE.fullmatch(prefix)
        return Group(found[1] + found[3] if found else prefix)

    @property
    def name(self) -> str:
        slug = re.sub("[^A-Za-z0-9_-]", "-", self.text[:_SLUG])
        return f"{slug}-{hashlib.sha256(_encoded(self.text)).hexdigest()[:24]}"

    def to_bytes(self) -> bytes:
        return _encoded(self.text)

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Group | None:
        """The group whose folder has this name, or None when the bytes are not its text."""
        try:
            found = Group(data.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            return None
        return found if found.name == name else None

    def key_at(self, leaf: str) -> str | None:
        """The key whose checkpoint lies at this path within the group's folder, or None when none does."""
        key = self._key_at(leaf)
        return key if key is not None and place_of(key) == Place(self, leaf) else None

    def _key_at(self, leaf: str) -> str | None:
        if leaf == _WHOLE:
            return self.text
        found = _LEAF.fullmatch(leaf)
        if found is None:
            return None
        fragment, rest, where = found.groups()
        if where is None:
            return f"{self.text}_frag-{fragment}_{rest}"
        gap = _WITHOUT_WHERE.fullmatch(self.text)
        return f"{gap[1]}{where}{gap[2]}_frag-{fragment}_{rest}" if gap else None

    def may_hold(self, beginning: str) -> bool:
        """Whether a key of this group can begin with this text; a yes may be wrong."""
        gap = _WITHOUT_WHERE.fullmatch(self.text)
        common = gap[1] if gap else self.text
        return common.startswith(beginning) or beginning.startswith(common)


@dataclass(frozen=True)
class Place:
    """A group and a path within its folder."""

    group: Group
    leaf: str

    @property
    def path(self) -> str:
        return f"{self.group.name}/{self.leaf}"


def place_of(key: str) -> Place:
    """Where the checkpoint of a key lies; every text is a key, and no two have the same place."""
    found = _KEY.fullmatch(key)
    if found is None:
        return Place(Group(key), _WHOLE)
    prefix, fragment, kind, start, end = found.groups()
    where = _WITH_WHERE.fullmatch(prefix)
    ending = f"-{where[2]}" if where else ""
    return Place(Group.of(prefix), f"{fragment_folder(int(fragment))}/{kind}-{start}-{end}{ending}")


def fragment_folder(fragment: int) -> str:
    """The folder of a fragment within its group's."""
    return f"frag-{fragment}"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
