//! Chat templates: a conversation becomes the prompt text that the model was trained on.
//!
//! Beside the vocabulary in the flow: the model file gives the template's source, [`ChatTemplate::render`] gives the
//! text that is tokenized. Knows messages and text; must not know token ids. It reads no clock: time is passed in.
//!
//! Templates come with the file and are hostile: work, memory and recursion are bounded. Texts of the conversation are
//! hostile too: they are marked so that nothing in them can be taken for a control token (see [`ControlTokens`]).

mod date;
mod environment;
mod guard;
mod json;
mod literals;
mod message;
mod scan;
mod template;

pub use guard::ControlTokens;
pub(crate) use literals::Literals;
pub use message::Message;
pub use template::{ChatRequest, ChatTemplate, RenderedPrompt};
