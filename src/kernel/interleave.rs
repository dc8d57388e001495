//! A field of sixteen rows at once: elements of rows become lanes of units.
//!
//! Transpositions in registers by rounds of interleaving: a round writes the elements of two vectors in turns, which moves
//! the uppermost bit of a vector's number to the lowest of an element's place. As many rounds as an element's place has
//! bits bring the row's number there. Plain Rust whose fixed loops become shuffles in every baseline. Knows bytes and
//! places; no formats.

use super::format::PANEL;

/// The same bytes of every row of a panel.
pub(super) type Rows<'a> = [&'a [u8]; PANEL];

/// A vector of bytes.
type Vector = [u8; 16];

/// The rows of a panel.
pub(super) fn rows(bytes: &[u8], row_bytes: usize) -> Rows<'_> {
    std::array::from_fn(|r| &bytes[r * row_bytes..][..row_bytes])
}

/// Bytes `at..at + N` of every row.
#[inline(always)]
fn take<const N: usize>(rows: &Rows<'_>, at: usize) -> [[u8; N]; PANEL] {
    let mut taken = [[0; N]; PANEL];
    for (taken, row) in taken.iter_mut().zip(rows) {
        taken.copy_from_slice(&row[at..at + N]);
    }
    taken
}

/// Elements of `W` bytes of two vectors in turns.
#[inline(always)]
fn interleave<const W: usize>(a: Vector, b: Vector) -> [Vector; 2] {
    let mut out = [[0; 16]; 2];
    for (half, out) in out.iter_mut().enumerate() {
        for i in 0..8 / W {
            let from = half * 8 + i * W;
            out[2 * i * W..][..W].copy_from_slice(&a[from..][..W]);
            out[(2 * i + 1) * W..][..W].copy_from_slice(&b[from..][..W]);
        }
    }
    out
}

/// A round over all vectors: each of the first half with its partner in the second.
#[inline(always)]
fn round<const W: usize, const N: usize>(vectors: [Vector; N]) -> [Vector; N] {
    let mut out = [[0; 16]; N];
    for i in 0..N / 2 {
        [out[2 * i], out[2 * i + 1]] = interleave::<W>(vectors[i], vectors[i + N / 2]);
    }
    out
}

/// Elements of four bytes from byte `from` of every row on, with the bits of `FLIP` in each byte turned: element e of row
/// r to the word at 16 e + r.
#[inline(always)]
pub(super) fn words<const FLIP: u8>(rows: &Rows<'_>, from: usize, target: &mut [u8]) {
    let (units, rest) = target.as_chunks_mut::<{ 16 * PANEL }>();
    let whole = units.len();
    for (i, units) in units.iter_mut().enumerate() {
        let mut taken = take::<16>(rows, from + i * 16);
        taken.iter_mut().flatten().for_each(|byte| *byte ^= FLIP);
        // Two rounds take the upper half of the vector's number: that must be the lower half of the row's.
        let vectors: [Vector; 16] = std::array::from_fn(|v| taken[v % 4 * 4 + v / 4]);
        let vectors = round::<4, 16>(round::<4, 16>(vectors));
        // A vector's number is now the upper half of the row's, then the element's.
        for (v, vector) in vectors.iter().enumerate() {
            units[(v % 4 * 4 + v / 4) * 16..][..16].copy_from_slice(vector);
        }
    }
    one::<4, { 4 * PANEL }>(rows, from + whole * 16, rest, |word| word.map(|byte| byte ^ FLIP));
}

/// The same of elements of two bytes, as they are.
#[inline(always)]
pub(super) fn halves(rows: &Rows<'_>, from: usize, target: &mut [u8]) {
    let (lines, rest) = target.as_chunks_mut::<{ 16 * PANEL }>();
    let whole = lines.len();
    for (i, lines) in lines.iter_mut().enumerate() {
        let taken = take::<16>(rows, from + i * 16);
        // Three rounds take the upper three bits of the vector's number, which must be the lower three of the row's.
        let vectors: [Vector; 16] = std::array::from_fn(|v| taken[v / 2 + v % 2 * 8]);
        let vectors = round::<2, 16>(round::<2, 16>(round::<2, 16>(vectors)));
        for (v, vector) in vectors.iter().enumerate() {
            lines[(v % 8 * 2 + v / 8) * 16..][..16].copy_from_slice(vector);
        }
    }
    one::<2, { 2 * PANEL }>(rows, from + whole * 16, rest, |half| half);
}

/// The same of single bytes.
#[inline(always)]
pub(super) fn bytes(rows: &Rows<'_>, from: usize, target: &mut [u8]) {
    let (lines, rest) = target.as_chunks_mut::<{ 4 * PANEL }>();
    let whole = lines.len();
    for (i, lines) in lines.iter_mut().enumerate() {
        let taken = take::<4>(rows, from + i * 4);
        let vectors: [Vector; 4] = std::array::from_fn(|v| std::array::from_fn(|i| taken[v * 4 + i / 4][i % 4]));
        let vectors = round::<1, 4>(round::<1, 4>(round::<1, 4>(round::<1, 4>(vectors))));
        for (v, vector) in vectors.iter().enumerate() {
            lines[v * 16..][..16].copy_from_slice(vector);
        }
    }
    one::<1, PANEL>(rows, from + whole * 4, rest, |byte| byte);
}

/// Elements of four bytes, changed by `code`.
#[inline(always)]
pub(super) fn changed(rows: &Rows<'_>, from: usize, target: &mut [u8], code: impl Fn([u8; 4]) -> [u8; 4]) {
    one::<4, { 4 * PANEL }>(rows, from, target, code);
}

/// Element by element: `W` bytes of every row at a time to a line of `LINE`.
#[inline(always)]
fn one<const W: usize, const LINE: usize>(
    rows: &Rows<'_>,
    from: usize,
    target: &mut [u8],
    code: impl Fn([u8; W]) -> [u8; W],
) {
    for (e, line) in target.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
        let taken = take::<W>(rows, from + e * W);
        for (element, taken) in line.as_chunks_mut::<W>().0.iter_mut().zip(taken) {
            *element = code(taken);
        }
    }
}
