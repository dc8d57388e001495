//! Pieces.
