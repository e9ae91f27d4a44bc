"""MurmurHash3_x64_128 of many values at once, in numpy, from a 128-bit seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.storage.arrays import I64, U64

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_N1, _N2, _FIVE = np.uint64(0x52DCE729), np.uint64(0x38495AB5), np.uint64(5)
_F1, _F2, _33 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(33)
_ONES = (1 << 64) - 1
# Masks by the number of bytes after the last whole block: the bits of the next two words that belong to the value.
_TAIL1 = np.array([min((1 << 8 * n) - 1, _ONES) for n in range(16)], np.uint64)
_TAIL2 = np.array([(1 << 8 * max(n - 8, 0)) - 1 for n in range(16)], np.uint64)


class HashBuffers:
    """Arrays that are reused for every batch, by name. Nested types use the arrays of `inner`."""

    def __init__(self) -> None:
        self._arrays: dict[str, U64] = {}
        self._inner: HashBuffers | None = None

    def array(self, name: str, size: int) -> U64:
        array = self._arrays.get(name)
        if array is None or len(array) < size:
            array = self._arrays[name] = np.empty(size, np.uint64)
        return array[:size]

    @property
    def inner(self) -> HashBuffers:
        if self._inner is None:
            self._inner = HashBuffers()
        return self._inner


def murmur_words(words: Sequence[U64], seed: tuple[np.uint64, np.uint64], buffers: HashBuffers) -> tuple[U64, U64]:
    """MurmurHash3_x64_128 of values of one to three words. Overwrites the words."""
    size = len(words[0])
    h1, h2, spare = (buffers.array(name, size) for name in ("h1", "h2", "spare"))
    h1.fill(seed[0])
    h2.fill(seed[1])
    if len(words) > 1:
        _block(h1, h2, words[0], words[1], spare)
    if len(words) % 2:
        _scramble(words[-1], _C1, 31, _C2, spare)
        h1 ^= words[-1]
    return _finish(h1, h2, np.uint64(8 * len(words)), spare)


def murmur_bytes(
    data: pa.Buffer | None, bounds: I64, seed: tuple[np.uint64, np.uint64], buffers: HashBuffers
) -> tuple[U64, U64]:
    """MurmurHash3_x64_128 of the bytes between each bound and the next."""
    size = len(bounds) - 1
    words = _aligned(data, int(bounds[0]), int(bounds[-1]), buffers)
    starts, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
    blocks = lengths >> 4
    most = int(blocks.max())
    order = None
    if most > int(blocks.min()):  # sort the longest first, so that values with another block form a prefix
        order = np.argsort((most - blocks).astype(np.uint32 if most >= 1 << 16 else np.uint16), kind="stable")
        starts, lengths = starts[order], lengths[order]
    h1, h2, k1, k2, spare = (buffers.array(name, size) for name in ("h1", "h2", "k1", "k2", "spare"))
    h1.fill(seed[0])
    h2.fill(seed[1])
    at = starts >> 3
    shift = ((starts & 7) << 3).astype(np.uint64)
    back = np.uint64(64) - shift  # a shift by 64 gives zero in numpy
    left = size - np.cumsum(np.bincount(blocks, minlength=most + 1))
    for n in left[:most]:
        _next_word(words, at[:n], shift[:n], back[:n], k1[:n], spare[:n])
        _next_word(words, at[:n], shift[:n], back[:n], k2[:n], spare[:n])
        _block(h1[:n], h2[:n], k1[:n], k2[:n], spare[:n])
    tail = lengths & 15
    longest = int(tail.max())
    if longest:
        _next_word(words, at, shift, back, k1, spare)
        k1 &= _TAIL1.take(tail, out=spare, mode="clip")
        _scramble(k1, _C1, 31, _C2, spare)
        h1 ^= k1
    if longest > 8:
        _next_word(words, at, shift, back, k2, spare)
        k2 &= _TAIL2.take(tail, out=spare, mode="clip")
        _scramble(k2, _C2, 33, _C1, spare)
        h2 ^= k2
    _finish(h1, h2, lengths.view(np.uint64), spare)
    if order is None:
        return h1, h2
    k1[order], k2[order] = h1, h2
    return k1, k2


def _aligned(data: Any, start: int, stop: int, buffers: HashBuffers) -> U64:
    """These bytes as words, with two extra words, so that the end of a value can be read in whole words."""
    words = buffers.array("bytes", (stop - start + 7) // 8 + 2)
    if stop > start:
        words.view(np.uint8)[: stop - start] = np.frombuffer(data, np.uint8, stop - start, start)
    return words


def _next_word(words: U64, at: I64, shift: U64, back: U64, out: U64, spare: U64) -> None:
    """Read the next 8 bytes of each value from two words, and move `at` by one word."""
    words.take(at, out=out, mode="clip")
    out >>= shift
    at += 1
    words.take(at, out=spare, mode="clip")
    spare <<= back
    out |= spare


def _block(h1: U64, h2: U64, k1: U64, k2: U64, spare: U64) -> None:
    _scramble(k1, _C1, 31, _C2, spare)
    h1 ^= k1
    _rotate(h1, 27, spare)
    h1 += h2
    h1 *= _FIVE
    h1 += _N1
    _scramble(k2, _C2, 33, _C1, spare)
    h2 ^= k2
    _rotate(h2, 31, spare)
    h2 += h1
    h2 *= _FIVE
    h2 += _N2


def _finish(h1: U64, h2: U64, lengths: U64 | np.uint64, spare: U64) -> tuple[U64, U64]:
    h1 ^= lengths
    h2 ^= lengths
    h1 += h2
    h2 += h1
    mix(h1, spare)
    mix(h2, spare)
    h1 += h2
    h2 += h1
    return h1, h2


def _scramble(k: U64, before: np.uint64, bits: int, after: np.uint64, spare: U64) -> None:
    k *= before
    _rotate(k, bits, spare)
    k *= after


def _rotate(x: U64, bits: int, spare: U64) -> None:
    np.right_shift(x, np.uint64(64 - bits), out=spare)
    x <<= np.uint64(bits)
    x |= spare


def mix(x: U64, spare: U64) -> None:
    """Apply Murmur's 64-bit finaliser in place."""
    x ^= np.right_shift(x, _33, out=spare)
    x *= _F1
    x ^= np.right_shift(x, _33, out=spare)
    x *= _F2
    x ^= np.right_shift(x, _33, out=spare)
