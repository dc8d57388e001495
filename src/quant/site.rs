//! Where in a model a linear stands, and the patterns that select such places.
//!
//! One pattern language for all sources: a place answers to the name that its source has for it, and to the names that
//! GGUF files and Hugging Face checkpoints have for the same place.

use std::fmt;

/// What a linear does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Queries of attention.
    Query,
    /// Keys of attention.
    Key,
    /// Values of attention.
    Value,
    /// From the attended values back to the residual stream.
    AttentionOutput,
    /// The half of a gated MLP that goes through the activation.
    Gate,
    /// The other half.
    Up,
    /// From the MLP back to the residual stream.
    Down,
    /// From the residual stream to logits.
    Head,
    /// From token ids to the residual stream, where it is not the head: rows are looked up, so it is no linear, and
    /// quantizers do not get it.
    Embedding,
}

impl Role {
    /// The part of the tensor's name, in GGUF files and in Hugging Face checkpoints.
    fn stems(self) -> (&'static str, &'static str) {
        match self {
            Role::Query => ("attn_q", "self_attn.q_proj"),
            Role::Key => ("attn_k", "self_attn.k_proj"),
            Role::Value => ("attn_v", "self_attn.v_proj"),
            Role::AttentionOutput => ("attn_output", "self_attn.o_proj"),
            Role::Gate => ("ffn_gate", "mlp.gate_proj"),
            Role::Up => ("ffn_up", "mlp.up_proj"),
            Role::Down => ("ffn_down", "mlp.down_proj"),
            Role::Head => ("output", "lm_head"),
            Role::Embedding => ("token_embd", "model.embed_tokens"),
        }
    }
}

/// The place of a linear in a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Site {
    /// The layer, from 0; none for the head.
    pub layer: Option<usize>,
    /// What the linear does.
    pub role: Role,
    /// The source's name of the tensor that holds it. Parts of a fused tensor share theirs; a head that is the
    /// embedding has the embedding's.
    pub name: String,
}

impl Site {
    /// A place.
    pub fn new(layer: Option<usize>, role: Role, name: impl Into<String>) -> Site {
        Site { layer, role, name: name.into() }
    }

    /// The name of this place in GGUF files: `blk.7.attn_q.weight`, `output.weight`.
    pub fn gguf_name(&self) -> String {
        let stem = self.role.stems().0;
        match self.layer {
            Some(layer) => format!("blk.{layer}.{stem}.weight"),
            None => format!("{stem}.weight"),
        }
    }

    /// The name of this place in Hugging Face checkpoints: `model.layers.7.self_attn.q_proj.weight`, `lm_head.weight`.
    pub fn hf_name(&self) -> String {
        let stem = self.role.stems().1;
        match self.layer {
            Some(layer) => format!("model.layers.{layer}.{stem}.weight"),
            None => format!("{stem}.weight"),
        }
    }

    /// Whether the pattern fits one of the place's names: the source's, [`gguf_name`](Site::gguf_name) or
    /// [`hf_name`](Site::hf_name). `*` stands for any text, also none and also dots; everything else for itself.
    ///
    /// ```
    /// use candlewick::quant::{Role, Site};
    ///
    /// let down = Site::new(Some(7), Role::Down, "blk.7.ffn_down.weight");
    /// assert!(down.matches("blk.*.ffn_down.weight"));
    /// assert!(down.matches("model.layers.*.mlp.*"));
    /// assert!(!down.matches("blk.7.ffn_down"));
    /// ```
    pub fn matches(&self, pattern: &str) -> bool {
        fits(pattern, &self.name) || fits(pattern, &self.gguf_name()) || fits(pattern, &self.hf_name())
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The text before the first star and behind the last must stand at the ends, the parts between in order: taking the
/// first place for each is enough, since a star takes any rest.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    match text.strip_suffix(end) {
        Some(inner) => text = inner,
        None => return false,
    }
    middle.split('*').all(|part| match text.find(part) {
        Some(at) => {
            text = &text[at + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "blk.0.attn_q.weight", true),
            ("blk.*.attn_*", "blk.10.attn_q.weight", true),
            ("blk.*.attn_*", "blk.10.ffn_up.weight", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "aba", false),
            ("**x**", "x", true),
            ("blk.1.*", "blk.10.attn_q.weight", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} on {text}");
        }
        // No backtracking: many stars on a long text stay cheap.
        let (pattern, text) = ("*a".repeat(2000), "a".repeat(1999));
        assert!(!fits(&pattern, &text));
    }

    #[test]
    fn a_place_answers_to_the_names_of_every_convention() {
        let query = Site::new(Some(3), Role::Query, "blk.3.attn_qkv.weight");
        for pattern in ["blk.3.attn_qkv.weight", "blk.*.attn_q.weight", "*.q_proj.*", "*attn*"] {
            assert!(query.matches(pattern), "{pattern}");
        }
        for pattern in ["*attn_k.*", "output.weight", "blk.4.*", "attn_q"] {
            assert!(!query.matches(pattern), "{pattern}");
        }
        let tied = Site::new(None, Role::Head, "token_embd.weight");
        for pattern in ["token_embd.weight", "output.weight", "lm_head.weight"] {
            assert!(tied.matches(pattern), "{pattern}");
        }
        assert!(!tied.matches("blk.*"));
    }
}
