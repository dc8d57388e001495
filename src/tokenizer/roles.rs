//! Tokens with a role: where text begins and ends, what stands for unknown text.

use super::vocabulary::{role, TokenKind, Vocabulary};
use crate::source::Metadata;
use crate::{Result, TokenId};

/// Ids of tokens with a role.
#[derive(Debug)]
pub(crate) struct Roles {
    pub(crate) bos: Option<TokenId>,
    pub(crate) eos: Option<TokenId>,
    pub(crate) eot: Option<TokenId>,
    pub(crate) unknown: Option<TokenId>,
    /// Sorted, without repetition.
    pub(crate) end_of_generation: Vec<TokenId>,
}

/// Ids at which generation ends, an array of integers, in addition to the keys of GGUF. The reader of Hugging Face
/// directories sets it from all files that name such ids.
pub(crate) const EOS_TOKEN_IDS: &str = "candlewick.eos_token_ids";

/// Texts of control tokens that end a turn; the first in the vocabulary is the EOT of a file that names none.
const END_OF_TURN: [&str; 13] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
];

/// Texts of control tokens that end a document or a message, and so the generation too.
const END_OF_TEXT: [&str; 9] = [
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<|tool_response>",
    "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
    "[e~[",
];

impl Roles {
    /// Reads the roles; may turn BOS and EOS into control tokens in a vocabulary without types.
    ///
    /// A text counts as an end only where its token is a control token: `</s>` is HTML in some vocabularies.
    pub(crate) fn from_metadata(
        metadata: &Metadata,
        vocabulary: &mut Vocabulary,
        defaults: [Option<TokenId>; 3],
    ) -> Result<Roles> {
        // Names of tokens come from files that belong to the vocabulary; such tokens are control tokens.
        let mut named = |name: &str| -> Result<Option<TokenId>> {
            let text = metadata.string(&format!("candlewick.tokenizer.{name}_token"))?;
            let id = text.and_then(|text| vocabulary.id(text));
            // Some files pad with the unknown token or with an ordinary one such as `!`: those stay what they are.
            let stays = id.is_some_and(|id| match vocabulary.kind(id) {
                Some(TokenKind::Unknown) => name == "pad",
                Some(TokenKind::Normal) => name == "pad" || text.is_some_and(|text| text.chars().count() == 1),
                _ => false,
            });
            if let Some(id) = id.filter(|_| name != "unk" && !stays) {
                vocabulary.set_kind(id, TokenKind::Control);
            }
            Ok(id)
        };
        let named_unknown = named("unk")?;
        let (named_bos, named_eos, _) = (named("bos")?, named("eos")?, named("pad")?);
        let in_range = |id: Option<TokenId>| id.filter(|&id| (id as usize) < vocabulary.len());
        let [bos, eos, unknown] = defaults.map(in_range);
        let bos = named_bos.or(role(metadata, vocabulary, "bos")?).or(bos);
        let eos = named_eos.or(role(metadata, vocabulary, "eos")?).or(eos);
        let unknown = named_unknown.or(role(metadata, vocabulary, "unknown")?).or(unknown);
        let eom = role(metadata, vocabulary, "eom")?;
        let named_eot = role(metadata, vocabulary, "eot")?;
        if !vocabulary.is_typed() {
            for id in [bos, eos].into_iter().flatten() {
                vocabulary.set_kind(id, TokenKind::Control);
            }
        }

        let control = |text: &str| vocabulary.id(text).filter(|&id| vocabulary.kind(id) == Some(TokenKind::Control));
        let eot = named_eot.or_else(|| END_OF_TURN.into_iter().find_map(control));
        let calls_tools =
            control("<|call|>").is_some() && (control("<|return|>").is_some() || control("<|flush|>").is_some());
        let closes_otherwise = control("<|tool_response>").is_some() || control("<|plamo:eos|>").is_some();
        let listed = metadata.integers(EOS_TOKEN_IDS)?.unwrap_or_default();
        let listed = listed.into_iter().filter_map(|id| TokenId::try_from(id).ok());
        let mut ends: Vec<TokenId> = END_OF_TURN
            .into_iter()
            .chain(END_OF_TEXT)
            // Where a message ends by one of several tokens, `<|end|>` only closes a part of it.
            .filter(|&text| match text {
                "<|end|>" => !calls_tools,
                "</s>" => !closes_otherwise,
                _ => true,
            })
            .filter_map(control)
            .chain([eos, named_eot, eom].into_iter().flatten())
            .chain(listed.filter(|&id| (id as usize) < vocabulary.len()))
            .collect();
        ends.sort_unstable();
        ends.dedup();
        // `<|end|>` is not a turn's end where it only closes a part.
        let eot = eot.filter(|id| named_eot.is_some() || ends.binary_search(id).is_ok());
        Ok(Roles { bos, eos, eot, unknown, end_of_generation: ends })
    }
}
