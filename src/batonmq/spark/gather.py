"""Gathers slices of one buffer into Arrow columns, without a Python object for each value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_VIEW = np.dtype([("size", "<i4"), ("inline", "V12")])
_LONG_VIEW = np.dtype([("size", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("offset", "<i4")])
"""Arrow's binary view: up to 12 bytes stand in the view; longer values have their first 4 there."""
_INLINE = 12


def windows(buffer: Any, size: int) -> Any:
    """All slices of `size` bytes of `buffer`, an array of bytes, as rows: row i begins at byte i. A view."""
    return np.ndarray((len(buffer) - size + 1, size), np.uint8, buffer, 0, (1, 1))


def gather(data: Any, begins: Any, ends: Any, valid: Any = None) -> pa.Array:
    """The slices ``data[begin:end]`` of a buffer as one binary column; null where `valid`, a boolean array,
    is false. `data` and the column have at most 2 GiB."""
    count = len(begins)
    if count == 0:
        return pa.array([], pa.binary())
    sizes = ends - begins
    size = int(sizes[0])
    buffer = np.frombuffer(data, np.uint8)
    if valid is None and (sizes == size).all():
        # A copy of `size` bytes a row: a third of what views cost.
        edges = np.arange(count + 1, dtype=np.int32) * size
        rows = windows(buffer, size)[begins]
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(rows)])
    views = _views(buffer, begins, ends, sizes)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.Array.from_buffers(pa.binary_view(), count, [bits, pa.py_buffer(views), pa.py_buffer(data)])
    return array.cast(pa.binary())


def _views(buffer: Any, begins: Any, ends: Any, sizes: Any) -> Any:
    count = len(begins)
    views = np.zeros(count, _LONG_VIEW)
    views["size"] = sizes
    views["offset"] = begins
    if len(buffer) >= _INLINE:
        # The last bytes of the buffer have no window of 12: those few are copied one by one, below.
        at = np.minimum(begins, len(buffer) - _INLINE)
        slices = windows(buffer, _INLINE)
        views["prefix"] = slices[at, :4].view("V4").reshape(-1)
        short = sizes <= _INLINE
        if short.any():
            inline = slices[at[short]]
            inline[np.arange(_INLINE) >= sizes[short, None]] = 0
            views.view(_VIEW)["inline"][short] = inline.view("V12").reshape(-1)
        odd = np.flatnonzero(at != begins)
    else:
        odd = np.arange(count)
    for i in odd.tolist():
        begin, end = int(begins[i]), int(ends[i])
        if end - begin <= _INLINE:
            views.view(_VIEW)["inline"][i] = buffer[begin:end].tobytes().ljust(_INLINE, b"\0")
    return views
