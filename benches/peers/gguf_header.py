"""Reads the context length from a GGUF file's header, without any package."""

import struct

# Sizes of the fixed-size value types, by type number; 8 is a string, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
INTEGERS = {0: "<B", 2: "<H", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}


class HeaderError(Exception):
    """The file is not what it should be."""


def context_length(path):
    """The longest context that the model was made for."""
    with open(path, "rb") as file:
        return read_context_length(file)


def read_context_length(file):
    """As `context_length`, from an open file."""
    if _take(file, 4) != b"GGUF":
        raise HeaderError("not a GGUF file")
    version, _, entries = struct.unpack("<IQQ", _take(file, 20))
    if version not in (2, 3):
        raise HeaderError(f"GGUF version {version} is unknown")
    for _ in range(entries):
        key = _string(file)
        kind = _number(file, "<I")
        if key.endswith(b".context_length") and kind in INTEGERS:
            return _number(file, INTEGERS[kind])
        _skip(file, kind)
    raise HeaderError("the file states no context length")


def _take(file, count):
    data = file.read(count)
    if len(data) != count:
        raise HeaderError("the header ends early")
    return data


def _number(file, form):
    return struct.unpack(form, _take(file, struct.calcsize(form)))[0]


def _string(file):
    return _take(file, _number(file, "<Q"))


def _skip(file, kind):
    if kind in SIZES:
        _take(file, SIZES[kind])
    elif kind == STRING:
        _string(file)
    elif kind == ARRAY:
        inner, count = struct.unpack("<IQ", _take(file, 12))
        if inner in SIZES:
            _take(file, SIZES[inner] * count)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        raise HeaderError(f"value type {kind} is unknown")
