"""Public keys of ed25519 (RFC 8032, section 5.1.5): just enough to give a dataset its id.

Signing is not needed and not here. The arithmetic is not constant time, which is fine because the seed is
thrown away: nobody has a secret to learn.
"""

from __future__ import annotations

import hashlib

SEED_SIZE = 32

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_BASE_Y = 4 * pow(5, -1, _P) % _P

# A point as (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z: adding points then needs no division.
_Point = tuple[int, int, int, int]


def public_key(seed: bytes) -> bytes:
    """The 32-byte public key of a 32-byte private seed."""
    if len(seed) != SEED_SIZE:
        raise ValueError(f"An ed25519 seed has {SEED_SIZE} bytes, not {len(seed)}.")
    scalar = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    scalar &= (1 << 254) - 8
    scalar |= 1 << 254
    return _compressed(_multiplied(scalar, _base_point()))


def _base_point() -> _Point:
    xx = (_BASE_Y * _BASE_Y - 1) * pow(_D * _BASE_Y * _BASE_Y + 1, -1, _P) % _P
    x = pow(xx, (_P + 3) // 8, _P)
    if (x * x - xx) % _P:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    if x % 2:  # the base point is the one with an even x
        x = _P - x
    return x, _BASE_Y, 1, x * _BASE_Y % _P


def _added(p: _Point, q: _Point) -> _Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiplied(scalar: int, point: _Point) -> _Point:
    total: _Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = _added(total, point)
        point = _added(point, point)
        scalar >>= 1
    return total


def _compressed(point: _Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")
