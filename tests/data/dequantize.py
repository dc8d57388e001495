"""Writes dequantize.bin: random blocks of the types without a plain definition, and their values by gguf-py.

    python tests/data/dequantize.py      (needs the Python package `gguf`, 0.17 or later)

Per type: the ggml id and the number of blocks (u32), the blocks, the values (f32). Little-endian. The blocks of a type
with a codebook name every entry of it.
"""

import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

random = np.random.default_rng(20)


def blocks_of(dtype, count):
    return random.integers(0, 256, (count, GGML_QUANT_SIZES[dtype][1]), dtype=np.uint8)


def halves(count):
    """Scales: ordinary ones of both signs, a zero, a subnormal, the smallest and the largest."""
    scales = random.normal(0, 0.1, count).astype(np.float16)
    special = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF], dtype=np.uint16).view(np.float16)
    at = random.permutation(count)[: min(len(special), count // 2)]
    scales[at] = special[: len(at)]
    return scales


def put_half(blocks, at):
    blocks[:, at : at + 2] = halves(len(blocks)).view(np.uint8).reshape(-1, 2)


def all_entries(codebook, per_block):
    return random.permutation(codebook).reshape(-1, per_block)


def iq2_xxs():
    blocks = blocks_of(T.IQ2_XXS, 8)
    put_half(blocks, 0)
    words = blocks[:, 2:].reshape(8, 8, 8)
    words[:, :, :4] = all_entries(256, 32).reshape(8, 8, 4)
    return blocks


def iq2_xs():
    blocks = blocks_of(T.IQ2_XS, 16)
    put_half(blocks, 0)
    codes = all_entries(512, 32) | random.integers(0, 128, (16, 32)) << 9
    blocks[:, 2:66] = codes.astype("<u2").view(np.uint8)
    return blocks


def iq2_s():
    blocks = blocks_of(T.IQ2_S, 32)
    put_half(blocks, 0)
    index = all_entries(1024, 32)
    blocks[:, 2:34] = index & 255
    high = (index >> 8).reshape(32, 8, 4)
    blocks[:, 66:74] = (high << np.array([0, 2, 4, 6])).sum(axis=-1)
    return blocks


def iq3_xxs():
    blocks = blocks_of(T.IQ3_XXS, 4)
    put_half(blocks, 0)
    blocks[:, 2:66] = all_entries(256, 64)
    return blocks


def iq3_s():
    blocks = blocks_of(T.IQ3_S, 8)
    put_half(blocks, 0)
    index = all_entries(512, 64)
    blocks[:, 2:66] = index & 255
    blocks[:, 66:74] = ((index >> 8).reshape(8, 8, 8) << np.arange(8)).sum(axis=-1)
    return blocks


def iq1_s():
    blocks = blocks_of(T.IQ1_S, 64)
    put_half(blocks, 0)
    index = all_entries(2048, 32)
    blocks[:, 2:34] = index & 255
    high = ((index >> 8).reshape(64, 8, 4) << np.array([0, 3, 6, 9])).sum(axis=-1)
    top = random.integers(0, 16, (64, 8)) << 12
    blocks[:, 34:50] = (high | top).astype("<u2").view(np.uint8)
    return blocks


def iq1_m():
    blocks = blocks_of(T.IQ1_M, 6)
    bits = halves(6).view(np.uint16)
    for w in range(4):
        blocks[:, 49 + 2 * w] = blocks[:, 49 + 2 * w] & 15 | ((bits >> (4 * w)) & 15) << 4
    return blocks


def with_half(dtype, count, at):
    blocks = blocks_of(dtype, count)
    put_half(blocks, at)
    return blocks


def mxfp4():
    exponents = [0, 1, 2, 3, 64, 126, 127, 128, 129, 200, 250, 254]
    blocks = blocks_of(T.MXFP4, len(exponents))
    blocks[:, 0] = exponents
    return blocks


def nvfp4():
    blocks = blocks_of(T.NVFP4, 64)
    blocks[:, :4] = random.permutation(256).reshape(64, 4)
    return blocks


TYPES = {
    T.IQ1_S: iq1_s,
    T.IQ1_M: iq1_m,
    T.IQ2_XXS: iq2_xxs,
    T.IQ2_XS: iq2_xs,
    T.IQ2_S: iq2_s,
    T.IQ3_XXS: iq3_xxs,
    T.IQ3_S: iq3_s,
    T.TQ1_0: lambda: with_half(T.TQ1_0, 4, 52),
    T.TQ2_0: lambda: with_half(T.TQ2_0, 4, 64),
    T.NVFP4: nvfp4,
    T.IQ4_NL: lambda: with_half(T.IQ4_NL, 12, 0),
    T.IQ4_XS: lambda: with_half(T.IQ4_XS, 6, 0),
    T.MXFP4: mxfp4,
}

with open(pathlib.Path(__file__).with_suffix(".bin"), "wb") as out:
    for dtype, make in TYPES.items():
        blocks = make()
        values = dequantize(blocks.reshape(1, -1), dtype).reshape(-1).astype("<f4")
        out.write(np.array([int(dtype), len(blocks)], dtype="<u4").tobytes())
        out.write(blocks.tobytes())
        out.write(values.tobytes())
