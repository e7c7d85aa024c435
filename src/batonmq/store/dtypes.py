"""Numpy types of everything with a fixed layout in files and on the wire: one item of an array each.

Not in `protocol`, which does without numpy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from batonmq.protocol.message.layout import BODY_POSITION_V4, FIELDS
from batonmq.store.config import UNIT_SIZE

NUMPY_TYPES: Final = {"i": ">i4", "q": ">i8", "8s": "V8"}
"""`struct` code -> numpy type, of the fields of a record."""
RECORD_HEAD: Final = np.dtype([(name, NUMPY_TYPES[code]) for name, code in FIELDS.items()])
"""The fields of a record with IPv4 hosts, up to its body."""
UNIT_ROW: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
"""A unit of a consume queue: commit log offset and size of the record, tags code."""
BATCH_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")]
)
"""Before the body of a message in a wire batch (`protocol.message.batch`)."""
assert RECORD_HEAD.itemsize == BODY_POSITION_V4 and UNIT_ROW.itemsize == UNIT_SIZE
