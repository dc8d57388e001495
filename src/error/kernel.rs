//! Errors of the kernels: a matrix that cannot be stored or filled.

/// Why a packed matrix could not be made or filled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No kernel computes with this storage type.
    #[error(
        "no kernel computes with {dtype} weights; use F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, \
         IQ4_NL, IQ4_XS or MXFP4"
    )]
    UnsupportedDtype {
        /// The type's name.
        dtype: &'static str,
    },
    /// A matrix without rows or columns.
    #[error("a weight matrix of {rows} x {cols} has no values; the tensor's shape is wrong")]
    ZeroDimension {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// Rows that do not consist of whole blocks.
    #[error("{dtype} stores blocks of {block} values, so rows of {cols} columns cannot be {dtype}")]
    PartialBlock {
        /// The type's name.
        dtype: &'static str,
        /// Columns asked for.
        cols: usize,
        /// Values per block.
        block: usize,
    },
    /// The size does not fit the address space.
    #[error("a {dtype} matrix of {rows} x {cols} is larger than the address space")]
    TooLarge {
        /// The type's name.
        dtype: &'static str,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// The operating system gave no memory.
    #[error("no memory for {bytes} bytes of weights; use a smaller model or free memory")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// Bytes that are not what the shape says.
    #[error("{dtype} data of {actual} bytes, where {expected} were expected")]
    Length {
        /// The type's name.
        dtype: &'static str,
        /// Bytes that the shape needs; for row data, a multiple of this.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// A weight, or the scale of a block of weights, that is infinite or not a number.
    #[error("{dtype} weights of row {row} are infinite or not numbers; the data is damaged")]
    NotFinite {
        /// The type's name.
        dtype: &'static str,
        /// The first such row.
        row: usize,
    },
    /// Rows outside the matrix, or a range that does not start and end at panels of 16 rows.
    #[error(
        "rows {first_row}..{end_row} cannot be packed into a matrix of {rows} rows: \
         ranges start at a multiple of 16 and end at one or at the last row"
    )]
    RowRange {
        /// First row of the range.
        first_row: usize,
        /// One past its last row.
        end_row: usize,
        /// Rows of the matrix.
        rows: usize,
    },
}
