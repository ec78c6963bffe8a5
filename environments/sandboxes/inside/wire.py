"""Messages between the host and process 1 of a box: a list of byte strings, each length stated.

Process 1 runs this file inside the box, so it needs nothing beyond built-in types.
"""

from __future__ import annotations

COUNT_BYTES = 2
LENGTH_BYTES = 4


def pack(fields: list[bytes]) -> bytes:
    """Frame `fields`: their count, then each length and its bytes."""
    parts = [len(fields).to_bytes(COUNT_BYTES, "big")]
    for field in fields:
        parts += [len(field).to_bytes(LENGTH_BYTES, "big"), field]
    return b"".join(parts)


def unpack(buffer: bytearray) -> list[bytes] | None:
    """Take one whole message off the front of `buffer`; None (and nothing taken) while it is incomplete."""
    if len(buffer) < COUNT_BYTES:
        return None
    count, at, fields = int.from_bytes(buffer[:COUNT_BYTES], "big"), COUNT_BYTES, []
    for _ in range(count):
        if len(buffer) < at + LENGTH_BYTES:
            return None
        length = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
        at += LENGTH_BYTES
        if len(buffer) < at + length:
            return None
        fields.append(bytes(buffer[at : at + length]))
        at += length
    del buffer[:at]
    return fields
