"""`open_store`: the store at an address."""

from __future__ import annotations

import re
from pathlib import Path

from floodmark.errors import BadStoreUrl
from floodmark.storage.local import LocalStore
from floodmark.storage.store import Store

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # at least two letters before the colon


def open_store(url: str | Path) -> Store:
    """The store at a folder (``lake``, ``file:///data/lake``) or in a bucket (``s3://bucket/prefix``)."""
    if isinstance(url, Path):
        return LocalStore(url)
    if not url:
        raise BadStoreUrl("The address of the store is empty.", hint=_SUPPORTED, url=url)
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    if scheme == "file":
        return LocalStore(url)
    from floodmark.storage.cloud import CLOUD_SCHEMES, CloudStore  # loads obstore, so only when it is used

    if scheme not in CLOUD_SCHEMES:
        raise BadStoreUrl(
            f"Cannot open a store at {url!r}: the scheme {scheme}:// is unknown.", hint=_SUPPORTED, url=url
        )
    return CloudStore(url)


_SUPPORTED = "Give a folder, file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."
