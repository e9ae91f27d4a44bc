"""An S3 server on loopback for the ledger's tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import boto3

from loopback_s3 import running_s3

CREDENTIALS = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}


@contextmanager
def s3_bucket() -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a new bucket and the options to reach it with."""
    with running_s3() as endpoint:
        s3 = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        name = f"bucket-{time.time_ns()}"
        try:
            s3.create_bucket(Bucket=name)
            yield f"s3://{name}", {"endpoint": endpoint, **CREDENTIALS}
        finally:
            s3.close()
