"""The wire format of Prometheus remote-write 1.0: a protobuf WriteRequest in a snappy block.

`remote_write` uses it. It knows only what one sender needs: no metadata, exemplars or histograms, and snappy
blocks made of literals, which are valid though not compressed (a step is a few KB).
"""

import struct
from collections.abc import Mapping, Sequence

STALE = struct.pack("<Q", 0x7FF0000000000002)
"""The NaN that ends a series, as bytes: other NaNs do not, and a float may lose the difference."""

Labels = tuple[tuple[str, str], ...]
Points = Sequence[tuple[int, float | bytes]]

_VARINT, _DOUBLE, _BYTES = 0, 1, 2
_LITERAL = 1 << 16


def write_request(series: Mapping[Labels, Points]) -> bytes:
    """Encode a WriteRequest.

    Args:
        series: for each label set (`__name__` included) its points `(milliseconds since 1970, value)`. Points
            are sorted by time here, since a receiver drops what goes backwards.
    """
    return b"".join(_nested(1, _time_series(labels, points)) for labels, points in series.items())


def _time_series(labels: Labels, points: Points) -> bytes:
    pairs = [_nested(1, _nested(1, name.encode()) + _nested(2, value.encode())) for name, value in sorted(labels)]
    samples = [
        _nested(2, _key(1, _DOUBLE) + _double(value) + _key(2, _VARINT) + _varint(moment))
        for moment, value in sorted(points, key=lambda point: point[0])
    ]
    return b"".join(pairs + samples)


def _double(value: float | bytes) -> bytes:
    return value if isinstance(value, bytes) else struct.pack("<d", value)


def _nested(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(number: int) -> bytes:
    """Seven bits a byte, lowest first, the top bit set on all but the last; `number` is not negative."""
    groups = []
    while True:
        number, low = number >> 7, number & 0x7F
        groups.append(low | 0x80 if number else low)
        if not number:
            return bytes(groups)


def snappy_block(data: bytes) -> bytes:
    """`data` as one snappy block: its length, then literals of at most 64 KiB with a two-byte length each."""
    pieces = [_varint(len(data))]
    for start in range(0, len(data), _LITERAL):
        literal = data[start : start + _LITERAL]
        pieces += (struct.pack("<BH", 61 << 2, len(literal) - 1), literal)
    return b"".join(pieces)
