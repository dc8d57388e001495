//! Where each bit of a block goes in a packed panel, per storage type.
//!
//! A panel is 16 rows. Its columns come in groups of whole 64-byte lines; inside a group each field of the file's
//! block is transposed: element e of row r lies at `packed + (e * 16 + r) * width`. So four consecutive codes of
//! 16 rows form one 64-byte unit. Nothing is added but padding. A last group with fewer blocks ends after their fields.
//! Knows the formats, no arithmetic.

use super::interleave::{self, Rows};
use crate::source::Dtype;

/// Rows per panel: the lanes of the kernels.
pub(crate) const PANEL: usize = 16;
/// The longest block of a file, in bytes (Q6_K).
pub(crate) const MAX_BLOCK_BYTES: usize = 210;

/// The largest exponent of MXFP4 with which every code, up to 12, is finite: 12 * 2^(252 - 128) is, twice that is not.
const MOST_EXPONENT: u8 = 252;

/// How a field's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// As in the file.
    Plain,
    /// Signed bytes with the sign bit flipped: the code plus 128.
    Excess128,
    /// 32 bits, one per value, regrouped: bit g of byte i belongs to value 4g + i.
    Planes,
}

/// One field of a file's block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Offset in the file's block.
    pub(crate) file: usize,
    /// Bytes of one element: 1, 2 or 4.
    pub(crate) width: usize,
    /// Elements.
    pub(crate) count: usize,
    /// Offset in the group, for its first block.
    pub(crate) packed: usize,
    /// Distance in the group from one block to the next.
    pub(crate) step: usize,
    pub(crate) coding: Coding,
}

/// The packed form of one storage type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) dtype: Dtype,
    /// Blocks of the file per group.
    pub(crate) group_blocks: usize,
    /// Bytes of one group of one panel; a multiple of 64.
    pub(crate) group_bytes: usize,
    pub(crate) fields: &'static [Field],
    /// What is subtracted from a stored code; 0 for types with a min.
    pub(crate) offset: i32,
    /// Scales per 32 values: 1 or 2.
    pub(crate) subs: usize,
    /// Whether an additive min follows the scale.
    pub(crate) has_min: bool,
}

const fn field(file: usize, width: usize, count: usize, packed: usize, step: usize) -> Field {
    Field { file, width, count, packed, step, coding: Coding::Plain }
}

const fn coded(coding: Coding, field: Field) -> Field {
    Field { coding, ..field }
}

const fn dense(dtype: Dtype, group_blocks: usize, fields: &'static [Field]) -> Layout {
    Layout { dtype, group_blocks, group_bytes: 64, fields, offset: 0, subs: 1, has_min: false }
}

const fn excess(dtype: Dtype, group: (usize, usize), fields: &'static [Field], offset: i32, subs: usize) -> Layout {
    Layout { dtype, group_blocks: group.0, group_bytes: group.1, fields, offset, subs, has_min: false }
}

const fn affine(dtype: Dtype, group: (usize, usize), fields: &'static [Field], subs: usize) -> Layout {
    Layout { dtype, group_blocks: group.0, group_bytes: group.1, fields, offset: 0, subs, has_min: true }
}

// Field offsets in the file are those of ggml's block structures; see the README of this room.
const LAYOUTS: [Layout; 16] = [
    dense(Dtype::F32, 1, &[field(0, 4, 1, 0, 0)]),
    dense(Dtype::F16, 2, &[field(0, 2, 1, 0, 32)]),
    dense(Dtype::BF16, 2, &[field(0, 2, 1, 0, 32)]),
    excess(Dtype::Q4_0, (2, 576), &[field(0, 2, 1, 0, 32), field(2, 4, 4, 64, 256)], 8, 1),
    affine(Dtype::Q4_1, (2, 640), &[field(0, 2, 1, 0, 32), field(2, 2, 1, 64, 32), field(4, 4, 4, 128, 256)], 1),
    excess(
        Dtype::Q5_0,
        (2, 704),
        &[field(0, 2, 1, 0, 32), coded(Coding::Planes, field(2, 4, 1, 64, 320)), field(6, 4, 4, 128, 320)],
        16,
        1,
    ),
    affine(
        Dtype::Q5_1,
        (2, 768),
        &[
            field(0, 2, 1, 0, 32),
            field(2, 2, 1, 64, 32),
            coded(Coding::Planes, field(4, 4, 1, 128, 320)),
            field(8, 4, 4, 192, 320),
        ],
        1,
    ),
    excess(Dtype::Q8_0, (2, 1088), &[field(0, 2, 1, 0, 32), coded(Coding::Excess128, field(2, 4, 8, 64, 512))], 128, 1),
    affine(
        Dtype::Q2_K,
        (1, 1344),
        &[field(80, 2, 1, 0, 0), field(82, 2, 1, 32, 0), field(0, 1, 16, 64, 0), field(16, 4, 16, 320, 0)],
        2,
    ),
    excess(
        Dtype::Q3_K,
        (1, 1792),
        &[field(108, 2, 1, 0, 0), field(96, 1, 12, 32, 0), field(0, 4, 8, 256, 0), field(32, 4, 16, 768, 0)],
        4,
        2,
    ),
    affine(
        Dtype::Q4_K,
        (1, 2304),
        &[field(0, 2, 1, 0, 0), field(2, 2, 1, 32, 0), field(4, 1, 12, 64, 0), field(16, 4, 32, 256, 0)],
        1,
    ),
    affine(
        Dtype::Q5_K,
        (1, 2816),
        &[
            field(0, 2, 1, 0, 0),
            field(2, 2, 1, 32, 0),
            field(4, 1, 12, 64, 0),
            field(16, 4, 8, 256, 0),
            field(48, 4, 32, 768, 0),
        ],
        1,
    ),
    excess(
        Dtype::Q6_K,
        (1, 3392),
        &[
            field(208, 2, 1, 0, 0),
            field(192, 1, 16, 32, 0),
            field(128, 4, 8, 320, 0),
            field(0, 4, 16, 832, 0),
            field(160, 4, 8, 1856, 0),
            field(64, 4, 16, 2368, 0),
        ],
        32,
        2,
    ),
    excess(Dtype::IQ4_NL, (2, 576), &[field(0, 2, 1, 0, 32), field(2, 4, 4, 64, 256)], 128, 1),
    excess(
        Dtype::IQ4_XS,
        (1, 2176),
        &[field(0, 2, 1, 0, 0), field(2, 1, 2, 32, 0), field(4, 1, 4, 64, 0), field(8, 4, 32, 128, 0)],
        128,
        1,
    ),
    excess(Dtype::MXFP4, (4, 1088), &[field(0, 1, 1, 0, 16), field(1, 4, 4, 64, 256)], 12, 1),
];

/// The packed form of a type; `None` if no kernel computes with it.
pub(crate) fn layout(dtype: Dtype) -> Option<&'static Layout> {
    static TABLE: [Layout; 16] = LAYOUTS;
    TABLE.iter().find(|layout| layout.dtype == dtype)
}

impl Layout {
    /// Bytes of one panel of `cols` columns; `None` on overflow.
    pub(crate) fn panel_bytes(&self, cols: usize) -> Option<usize> {
        let blocks = cols / self.dtype.block_len();
        (blocks / self.group_blocks).checked_mul(self.group_bytes)?.checked_add(self.tail_bytes(blocks))
    }

    /// Bytes of a last group that is not full: up to its last block's fields, in whole lines.
    fn tail_bytes(&self, blocks: usize) -> usize {
        let Some(last) = (blocks % self.group_blocks).checked_sub(1) else { return 0 };
        let ends = self.fields.iter().map(|field| field.packed + last * field.step + field.count * field.width * PANEL);
        ends.max().unwrap_or(0).next_multiple_of(64)
    }

    /// Writes one panel. `rows` holds up to 16 rows of file bytes, `row_bytes` each; missing rows stay as they
    /// are. `panel` has the length of [`panel_bytes`](Self::panel_bytes).
    pub(crate) fn pack_panel(&self, rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
        if rows.len() == PANEL * row_bytes {
            return self.pack_whole_panel(&interleave::rows(rows, row_bytes), row_bytes, panel);
        }
        if self.dtype.block_len() == 1 {
            let whole = self.whole_row(row_bytes);
            for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                whole.pack(row, 0, r, panel);
            }
            return;
        }
        let block_bytes = self.dtype.block_bytes();
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let groups = row.chunks(block_bytes * self.group_blocks).zip(panel.chunks_mut(self.group_bytes));
            for (blocks, packed) in groups {
                for (j, block) in blocks.chunks_exact(block_bytes).enumerate() {
                    for field in self.fields {
                        field.pack(block, j, r, packed);
                    }
                }
            }
        }
    }

    /// [`pack_panel`](Self::pack_panel) where no row is missing: field by field for all rows at once, so that what is
    /// written stays in the first-level cache.
    fn pack_whole_panel(&self, rows: &Rows<'_>, row_bytes: usize, panel: &mut [u8]) {
        if self.dtype.block_len() == 1 {
            return self.whole_row(row_bytes).pack_rows(rows, 0, panel);
        }
        let (block_bytes, blocks) = (self.dtype.block_bytes(), row_bytes / self.dtype.block_bytes());
        for (g, packed) in panel.chunks_mut(self.group_bytes).enumerate() {
            let first = g * self.group_blocks;
            for block in first..blocks.min(first + self.group_blocks) {
                for field in self.fields {
                    let to = field.packed + (block - first) * field.step;
                    field.pack_rows(rows, block * block_bytes + field.file, &mut packed[to..]);
                }
            }
        }
    }

    /// Where a block is one element, a row is one field.
    fn whole_row(&self, row_bytes: usize) -> Field {
        let width = self.dtype.block_bytes();
        Field { file: 0, width, count: row_bytes / width, packed: 0, step: 0, coding: Coding::Plain }
    }

    /// Whether all weights or scales of a packed panel are numbers; padding is zeros, which are.
    pub(crate) fn is_finite(&self, panel: &[u8]) -> bool {
        // Without an early exit, so that whole lines are looked at by vector instructions.
        let lines_are = |width: usize, bytes: &[u8]| match (self.dtype, width) {
            (Dtype::F32, _) => bytes.as_chunks().0.iter().fold(true, |all, x| all & f32_is_finite(*x)),
            (Dtype::BF16, _) => bytes.as_chunks::<2>().0.iter().fold(true, |all, x| all & bf16_is_finite(*x)),
            (_, 2) => bytes.as_chunks().0.iter().fold(true, |all, x| all & f16_is_finite(*x)),
            _ => bytes.iter().fold(true, |all, e| all & (*e <= MOST_EXPONENT)),
        };
        if self.dtype.block_len() == 1 {
            return lines_are(self.dtype.block_bytes(), panel);
        }
        panel.chunks(self.group_bytes).all(|group| {
            self.factors().all(|field| {
                (0..self.group_blocks).all(|j| {
                    let line = &group[field.packed + j * field.step..][..field.width * PANEL];
                    lines_are(field.width, line)
                })
            })
        })
    }

    /// In all quantized types, the only fields of one element are the factors of the codes (and planes, which are wider):
    /// binary16 where it has two bytes, an exponent where it has one.
    fn factors(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().filter(|field| field.count == 1 && field.width <= 2)
    }

    /// The first of the rows in which a weight or a block's scale is infinite or not a number.
    pub(crate) fn first_not_finite(&self, rows: &[u8], row_bytes: usize) -> Option<usize> {
        let good = |row: &[u8]| match self.dtype {
            Dtype::F32 => row.as_chunks().0.iter().all(|x| f32_is_finite(*x)),
            Dtype::F16 => row.as_chunks().0.iter().all(|x| f16_is_finite(*x)),
            Dtype::BF16 => row.as_chunks().0.iter().all(|x| bf16_is_finite(*x)),
            dtype => row.chunks_exact(dtype.block_bytes()).all(|block| {
                self.factors().all(|field| match field.width {
                    1 => block[field.file] <= MOST_EXPONENT,
                    _ => f16_is_finite([block[field.file], block[field.file + 1]]),
                })
            }),
        };
        rows.chunks_exact(row_bytes).position(|row| !good(row))
    }

    /// Reads back the file's block `index` of row `r` of a panel; `block` has the block's length.
    pub(crate) fn unpack_block(&self, panel: &[u8], r: usize, index: usize, block: &mut [u8]) {
        let group = index / self.group_blocks * self.group_bytes;
        let packed = &panel[group..panel.len().min(group + self.group_bytes)];
        for field in self.fields {
            field.unpack(packed, index % self.group_blocks, r, block);
        }
    }
}

impl Field {
    /// The field of 16 rows, which begins at `from` in each, to the start of `target`.
    fn pack_rows(&self, rows: &Rows<'_>, from: usize, target: &mut [u8]) {
        let target = &mut target[..self.width * self.count * PANEL];
        match (self.coding, self.width) {
            (Coding::Plain, 1) => interleave::bytes(rows, from, target),
            (Coding::Plain, 2) => interleave::halves(rows, from, target),
            (Coding::Plain, _) => interleave::words::<0>(rows, from, target),
            (Coding::Excess128, _) => interleave::words::<0x80>(rows, from, target),
            (Coding::Planes, _) => interleave::changed(rows, from, target, to_planes),
        }
    }

    fn pack(&self, block: &[u8], j: usize, r: usize, packed: &mut [u8]) {
        let source = &block[self.file..self.file + self.width * self.count];
        let target = &mut packed[self.packed + j * self.step..];
        match (self.coding, self.width) {
            (Coding::Plain, 1) => scatter::<1>(source, target, r, |bytes| bytes),
            (Coding::Plain, 2) => scatter::<2>(source, target, r, |bytes| bytes),
            (Coding::Plain, _) => scatter::<4>(source, target, r, |bytes| bytes),
            (Coding::Excess128, _) => scatter::<4>(source, target, r, |bytes| bytes.map(|byte| byte ^ 0x80)),
            (Coding::Planes, _) => scatter::<4>(source, target, r, to_planes),
        }
    }

    fn unpack(&self, packed: &[u8], j: usize, r: usize, block: &mut [u8]) {
        let target = &mut block[self.file..self.file + self.width * self.count];
        let source = &packed[self.packed + j * self.step..];
        for (e, element) in target.chunks_exact_mut(self.width).enumerate() {
            let at = (e * PANEL + r) * self.width;
            element.copy_from_slice(&source[at..at + self.width]);
            match self.coding {
                Coding::Plain => {}
                Coding::Excess128 => element.iter_mut().for_each(|byte| *byte ^= 0x80),
                Coding::Planes => {
                    let planes = [element[0], element[1], element[2], element[3]];
                    element.copy_from_slice(&from_planes(planes));
                }
            }
        }
    }
}

fn f32_is_finite(bytes: [u8; 4]) -> bool {
    u32::from_le_bytes(bytes) & 0x7f80_0000 != 0x7f80_0000
}

fn bf16_is_finite(bytes: [u8; 2]) -> bool {
    f32_is_finite([0, 0, bytes[0], bytes[1]])
}

fn f16_is_finite(bytes: [u8; 2]) -> bool {
    u16::from_le_bytes(bytes) & 0x7c00 != 0x7c00
}

fn scatter<const W: usize>(source: &[u8], target: &mut [u8], r: usize, code: impl Fn([u8; W]) -> [u8; W]) {
    let Some(target) = target.get_mut(r * W..) else { return };
    let (source, slots) = (source.as_chunks::<W>().0, target.as_chunks_mut::<W>().0);
    for (element, slot) in source.iter().zip(slots.iter_mut().step_by(PANEL)) {
        *slot = code(*element);
    }
}

fn to_planes(bits: [u8; 4]) -> [u8; 4] {
    let mut x = u32::from_le_bytes(bits);
    // A bit's place has five bits, two for the byte of its plane and three for the unit, in the wrong order: they are
    // exchanged two at a time, the distance of two places being that of the bits' values.
    for (distance, from) in [(3, 0x0a0a_0a0a), (6, 0x00cc_00cc), (12, 0x0000_f0f0), (8, 0x0000_ff00)] {
        let changed = (x >> distance ^ x) & from;
        x ^= changed ^ changed << distance;
    }
    x.to_le_bytes()
}

fn from_planes(planes: [u8; 4]) -> [u8; 4] {
    let mut bits = 0u32;
    for value in 0..32 {
        bits |= u32::from(planes[value % 4] >> (value / 4) & 1) << value;
    }
    bits.to_le_bytes()
}
