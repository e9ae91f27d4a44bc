"""CityHash32 of up to 24 bytes, as a hash that is too short: for tests that force the key index to 32 bits.

Datapipe hashes `str(list(row))` of a pandas row, so that is what `weak_row_hash` does. After Google's CityHash 1.1.
"""

from __future__ import annotations

_C1, _C2, _MASK = 0xCC9E2D51, 0x1B873593, 0xFFFFFFFF

COLLIDING = ([1, 74905], [1, 87054])
"""Two rows (id, value) of one weak hash: the change from one to the other is invisible to it."""


def cityhash32(data: bytes) -> int:
    """CityHash32; `ValueError` for more than 24 bytes, which go another way in it."""
    n = len(data)
    if n <= 4:
        b, c = 0, 9
        for byte in data:
            b = (b * _C1 + (byte - 256 if byte > 127 else byte)) & _MASK
            c ^= b
        return _mix(_mur(b, _mur(n, c)))
    if n <= 12:
        a, b, d = n + _word(data, 0), n * 5 + _word(data, n - 4), n * 5
        c = 9 + _word(data, (n >> 1) & 4)
        return _mix(_mur(c & _MASK, _mur(b & _MASK, _mur(a & _MASK, d))))
    if n <= 24:
        h = n
        for at in ((n >> 1) - 4, 4, n - 8, n >> 1, 0, n - 4):
            h = _mur(_word(data, at), h)
        return _mix(h)
    raise ValueError(f"{n} bytes: this CityHash32 ends at 24")


def weak_row_hash(row: list[object]) -> int:
    """The 32-bit hash of a row, of its text as Python writes a list: `[1, 74905]`."""
    return cityhash32(str(row).encode())


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _rotate(x: int, bits: int) -> int:
    return (x >> bits | x << (32 - bits)) & _MASK


def _mur(a: int, h: int) -> int:
    a = _rotate(a * _C1 & _MASK, 17) * _C2 & _MASK
    return (_rotate(h ^ a, 19) * 5 + 0xE6546B64) & _MASK


def _mix(h: int) -> int:
    h ^= h >> 16
    h = h * 0x85EBCA6B & _MASK
    h ^= h >> 13
    h = h * 0xC2B2AE35 & _MASK
    return h ^ h >> 16
