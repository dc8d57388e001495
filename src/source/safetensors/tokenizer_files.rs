//! The directory's tokenizer as metadata keys.

use std::path::Path;

use crate::source::Metadata;
use crate::Result;

/// Adds the keys of the tokenizer files in `directory`.
pub(super) fn read(_directory: &Path, _metadata: &mut Metadata) -> Result<()> {
    Ok(())
}
