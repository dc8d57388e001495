//! The storage types of tensors: ggml's list, with block sizes.

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $block:literal, $bytes:literal;)*) => {
        /// How a tensor's values are stored. Blocks run along the innermost dimension.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
            /// A ggml id that this table lacks: the tensor is listed, but its size is unknown and it cannot be read.
            Unknown(u32),
            /// A type that ggml does not have, by the name in its file: the tensor is listed and its bytes can be read.
            Foreign(TypeName),
        }

        impl Dtype {
            /// Every type that is recognized, in the order of ids.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant),*];

            /// The type of a ggml id; `None` for one that the table lacks.
            pub fn from_ggml(id: u32) -> Option<Dtype> {
                match id { $($id => Some(Dtype::$variant),)* _ => None }
            }

            /// The ggml id; the largest number for a type that ggml does not have.
            pub fn ggml_id(self) -> u32 {
                match self { $(Dtype::$variant => $id,)* Dtype::Unknown(id) => id, Dtype::Foreign(_) => u32::MAX }
            }

            /// The name that ggml uses; `unknown` for an id that the table lacks, `foreign` for a type that ggml does
            /// not have (`Display` adds the id or gives the name).
            pub fn name(self) -> &'static str {
                match self {
                    $(Dtype::$variant => $name,)*
                    Dtype::Unknown(_) => "unknown",
                    Dtype::Foreign(_) => "foreign",
                }
            }

            /// Values per block; 1 for an unknown or foreign type.
            pub fn block_len(self) -> usize {
                match self { $(Dtype::$variant => $block,)* Dtype::Unknown(_) | Dtype::Foreign(_) => 1 }
            }

            /// Bytes per block; 0 for an unknown or foreign type.
            pub fn block_bytes(self) -> usize {
                match self { $(Dtype::$variant => $bytes,)* Dtype::Unknown(_) | Dtype::Foreign(_) => 0 }
            }
        }
    };
}

dtypes! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2_K = 10, "Q2_K", 256, 84;
    Q3_K = 11, "Q3_K", 256, 110;
    Q4_K = 12, "Q4_K", 256, 144;
    Q5_K = 13, "Q5_K", 256, 176;
    Q6_K = 14, "Q6_K", 256, 210;
    Q8_K = 15, "Q8_K", 256, 292;
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    IQ1_S = 19, "IQ1_S", 256, 50;
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    IQ3_S = 21, "IQ3_S", 256, 110;
    IQ2_S = 22, "IQ2_S", 256, 82;
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    IQ1_M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    Q4_0_4_4 = 31, "Q4_0_4_4", 32, 18;
    Q4_0_4_8 = 32, "Q4_0_4_8", 32, 18;
    Q4_0_8_8 = 33, "Q4_0_8_8", 32, 18;
    TQ1_0 = 34, "TQ1_0", 256, 54;
    TQ2_0 = 35, "TQ2_0", 256, 66;
    IQ4_NL_4_4 = 36, "IQ4_NL_4_4", 32, 18;
    IQ4_NL_4_8 = 37, "IQ4_NL_4_8", 32, 18;
    IQ4_NL_8_8 = 38, "IQ4_NL_8_8", 32, 18;
    MXFP4 = 39, "MXFP4", 32, 17;
    NVFP4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    Q2_0 = 42, "Q2_0", 64, 18;
}

/// The name of a storage type, held in place so that [`Dtype`] stays a plain value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeName {
    bytes: [u8; TypeName::MAX],
    len: u8,
}

impl TypeName {
    const MAX: usize = 15;

    /// The name as messages may show it: at most 15 characters, those that are not printable ASCII replaced by `?`.
    pub fn new(name: &str) -> TypeName {
        let mut bytes = [0; TypeName::MAX];
        let shown = name.chars().map(|c| if c.is_ascii_graphic() { c as u8 } else { b'?' });
        let len = bytes.iter_mut().zip(shown).map(|(to, from)| *to = from).count();
        TypeName { bytes, len: len as u8 }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len.into()]).unwrap_or_default()
    }
}

impl fmt::Debug for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl Dtype {
    /// Whether weights of this type can be loaded.
    pub fn is_supported(self) -> bool {
        self.held_as().is_some()
    }

    /// What weights of this type are in memory: the same type where a kernel computes with its blocks, BF16 where their
    /// values are taken out at load; `None` for a type that cannot be loaded.
    pub fn held_as(self) -> Option<Dtype> {
        use Dtype::*;
        match self {
            F32 | F16 | BF16 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_NL
            | IQ4_XS | MXFP4 => Some(self),
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | TQ1_0 | TQ2_0 | NVFP4 => Some(BF16),
            _ => None,
        }
    }

    /// Whether this is a block-quantized type (as opposed to plain floats and integers); `false` for an unknown type.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether the size of a tensor follows from its shape.
    pub(crate) fn is_sized(self) -> bool {
        !matches!(self, Dtype::Unknown(_) | Dtype::Foreign(_))
    }

    /// Bytes of `len` values; `None` if `len` is not a multiple of the block, on overflow, or for an unknown or foreign
    /// type.
    pub fn size_in_bytes(self, len: usize) -> Option<usize> {
        if !self.is_sized() || !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dtype::Unknown(id) => write!(f, "unknown (ggml type id {id})"),
            Dtype::Foreign(name) => f.write_str(name.as_str()),
            known => f.write_str(known.name()),
        }
    }
}
