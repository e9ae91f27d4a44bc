"""Blocks have, byte for byte, the encoding that an independent implementation gives them."""

import hashlib

import pytest

from conformance import vectors
from floodmark.chain.wire import decode, encode

VECTORS = vectors.load()
all_vectors = pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"case {v.case} v{v.version}")


@all_vectors
def test_block_encodes_to_the_vector_s_bytes_and_hash(vector):
    data = encode(vector.block, vector.version)
    assert data.hex() == vector.data.hex()
    assert hashlib.sha3_256(data).hexdigest() == vector.sha3_256


@all_vectors
def test_vector_s_bytes_decode_to_the_block(vector):
    assert decode(vector.data) == vector.block


def test_every_case_of_the_file_is_tried():
    cases = {(str(vector.case), vector.version) for vector in VECTORS}
    both = {(case, version) for case in ("0", "1", "3", "4", "6", "8", "10") for version in (2, 3)}
    assert cases == both | {("SetInfo", 3)}
