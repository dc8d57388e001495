//! The tensors of one or several files: found by name, read at their positions.
//!
//! What the file formats share once their headers are checked. Must not know any format.

use std::fmt;

use super::file::PositionedFile;
use super::{shown, Dtype, TensorInfo};
use crate::{Result, SourceError};

/// Tensors with the places of their bytes.
pub(in crate::source) struct Listing {
    name: String,
    tensors: Vec<TensorInfo>,
    /// Where each tensor begins.
    places: Vec<Place>,
    /// Indices of `tensors` in the order of names.
    by_name: Vec<u32>,
    files: Vec<PositionedFile>,
}

#[derive(Clone, Copy)]
struct Place {
    start: u64,
    file: u32,
}

impl Listing {
    /// An empty listing; `name` names the source in errors.
    pub(in crate::source) fn new(name: String) -> Listing {
        Listing { name, tensors: Vec::new(), places: Vec::new(), by_name: Vec::new(), files: Vec::new() }
    }

    /// Adds a file with its tensors and the first byte of each. Before a tensor can be found,
    /// [`index`](Listing::index) must run.
    pub(in crate::source) fn add(&mut self, file: PositionedFile, tensors: Vec<TensorInfo>, starts: Vec<u64>) {
        let index = self.files.len() as u32;
        self.files.push(file);
        if self.tensors.is_empty() {
            self.tensors = tensors;
        } else {
            self.tensors.extend(tensors);
        }
        self.places.extend(starts.into_iter().map(|start| Place { start, file: index }));
    }

    /// Gives every tensor its final name; those for which `name` answers nothing are left out.
    pub(in crate::source) fn rename(&mut self, mut name: impl FnMut(&TensorInfo) -> Option<String>) {
        let old = std::mem::take(&mut self.tensors).into_iter().zip(std::mem::take(&mut self.places));
        for (mut info, place) in old {
            if let Some(name) = name(&info) {
                info.name = name;
                self.tensors.push(info);
                self.places.push(place);
            }
        }
    }

    /// Sorts the names.
    ///
    /// # Errors
    /// A name that occurs twice.
    pub(in crate::source) fn index(&mut self) -> Result<()> {
        let tensors = &self.tensors;
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        for pair in by_name.windows(2) {
            if tensors[pair[0] as usize].name == tensors[pair[1] as usize].name {
                let tensor = shown(&tensors[pair[0] as usize].name);
                return Err(SourceError::DuplicateTensor { source_name: self.name.clone(), tensor }.into());
            }
        }
        self.by_name = by_name;
        Ok(())
    }

    pub(in crate::source) fn name(&self) -> &str {
        &self.name
    }

    /// In file order.
    pub(in crate::source) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub(in crate::source) fn num_files(&self) -> usize {
        self.files.len()
    }

    fn find(&self, name: &str) -> Option<usize> {
        let tensors = &self.tensors;
        let found = self.by_name.binary_search_by(|&i| tensors[i as usize].name.as_str().cmp(name)).ok()?;
        Some(self.by_name[found] as usize)
    }

    pub(in crate::source) fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.find(name).map(|i| &self.tensors[i])
    }

    /// The file that the tensor is in, by its place in the order in which files were added.
    pub(in crate::source) fn file_of(&self, name: &str) -> Option<usize> {
        self.find(name).map(|i| self.places[i].file as usize)
    }

    /// Fills `buffer` from byte `offset` of the tensor.
    pub(in crate::source) fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let Some(index) = self.find(name) else {
            return Err(SourceError::MissingTensor { source_name: self.name.clone(), tensor: shown(name) }.into());
        };
        let (info, place) = (&self.tensors[index], self.places[index]);
        if let Dtype::Unknown(_) = info.dtype {
            return Err(info.unsupported(&self.name).into());
        }
        info.check_range(&self.name, offset, buffer.len())?;
        let file = &self.files[place.file as usize];
        file.read_exact_at(buffer, place.start + offset, || format!("tensor `{}`", shown(name)))
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing")
            .field("name", &self.name)
            .field("files", &self.files.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}
