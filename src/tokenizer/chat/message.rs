//! One message of a conversation.

use serde_json::{Map, Value};

/// One message of a conversation, as chat templates see it: a map with `role`, `content` and whatever else is set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool` or what the template knows besides.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Further fields that the template may read, such as `name`, `tool_calls`, `tool_call_id`, `reasoning_content`, in
    /// order. A field `content` here replaces the text, for templates that want null or a list of parts.
    pub fields: Map<String, Value>,
}

impl Message {
    /// A message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), fields: Map::new() }
    }

    /// Instructions from the host.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content)
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content)
    }

    /// What the model said.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content)
    }

    /// The result of a tool.
    pub fn tool(content: impl Into<String>) -> Message {
        Message::new("tool", content)
    }

    /// Adds a field, or replaces it.
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Message {
        self.fields.insert(field.into(), value.into());
        self
    }
}
