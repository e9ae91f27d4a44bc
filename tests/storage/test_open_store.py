"""An address opens the store that it names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from floodmark.errors import BadStoreUrl
from floodmark.storage.cloud import CloudStore
from floodmark.storage.local import LocalStore
from floodmark.storage.opening import open_store


def test_folder_is_a_local_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for address in (tmp_path / "lake", str(tmp_path / "lake"), f"file://{tmp_path}/lake", "lake", "./lake"):
        store = open_store(address)
        assert isinstance(store, LocalStore)
        assert store.url == str(tmp_path / "lake")


@pytest.mark.parametrize(
    "url", ["s3://bucket/lake", "S3://bucket", "gs://bucket/lake", "abfss://c@a.dfs.core.windows.net/x"]
)
def test_bucket_is_a_cloud_store(url, monkeypatch):
    assert isinstance(open_store(url), CloudStore)


def test_store_opens_again_from_its_url(tmp_path):
    assert open_store(open_store(tmp_path).url).url == str(tmp_path)
    assert open_store(open_store("s3://bucket/lake/").url).url == "s3://bucket/lake"


@pytest.mark.parametrize("url", ["ftp://host/lake", "memory://1", "http://host/lake", ""])
def test_unknown_address_is_refused_with_what_is_supported(url):
    with pytest.raises(BadStoreUrl, match="s3://bucket/prefix") as caught:
        open_store(url)
    assert caught.value.url == url


def test_local_folder_does_not_load_the_cloud_library():
    code = "import sys, floodmark.storage.opening as o; o.open_store('x'); sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
