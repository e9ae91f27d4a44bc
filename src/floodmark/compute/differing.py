"""Which values are not the same as before, to the bit of a float's sign: a function can tell 0.0 from -0.0."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.ledger.keys.hashing import hash_rows

_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def differing(before: pa.Array, after: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two arrays of one type and length differ; null is a value of its own, and all NaNs are one."""
    one, two = (hash_rows(pa.table({"value": _exact(values)}), ["value"]) for values in (before, after))
    different: npt.NDArray[np.bool_] = ~one.same(two)
    return different


def _exact(values: Any) -> pa.Array:
    """The values with each float as the integer of its bits: the hash of keys takes 0.0 and -0.0 for the same."""
    kind = values.type
    if kind in _BITS:
        floats = values.fill_null(0).to_numpy()
        bits = np.where(np.isnan(floats), np.array(np.nan, floats.dtype), floats).view(f"i{floats.dtype.itemsize}")
        return pa.array(bits, _BITS[kind], mask=values.is_null().to_numpy(zero_copy_only=False))
    if not _has_floats(kind):
        return values
    if pa.types.is_struct(kind):
        members = [_exact(values.field(i)) for i in range(kind.num_fields)]
        fields = [pa.field(f.name, m.type) for f, m in zip(kind, members, strict=True)]
        return pa.StructArray.from_arrays(members, fields=fields, mask=values.is_null())
    items = _exact(values.values)
    own = 1 if pa.types.is_fixed_size_list(kind) else 2  # buffers: validity, and where each list begins
    return pa.Array.from_buffers(
        _list_of(kind, items.type), len(values), values.buffers()[:own], offset=values.offset, children=[items]
    )


def _has_floats(kind: Any) -> bool:
    return kind in _BITS or any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


def _list_of(kind: Any, items: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(items, kind.list_size)
    return pa.large_list(items) if pa.types.is_large_list(kind) else pa.list_(items)
