//! Compiles a chat template and renders conversations with it.

use std::fmt;
use std::time::SystemTime;

use minijinja::{Environment, ErrorKind, Value};
use serde_json::Map;

use super::environment::{environment, prepare, Raised};
use super::guard::{ControlTokens, TextKind};
use super::{scan, Message};
use crate::error::{Result, TemplateError};

/// Levels of lists and maps in a field of a message, in tools, documents and variables.
const MAX_DEPTH: usize = 100;
/// Work that every rendering may do: instructions, of which one also pays for 64 bytes of text.
const BASE_FUEL: u64 = 100_000;
/// Further work for each message and each value in it.
const FUEL_PER_VALUE: u64 = 200;
/// Further work for each byte of the conversation: it may be copied 64 times.
const FUEL_PER_BYTE: u64 = 1;

/// Name under which the engine reports the template.
const NAME: &str = "chat_template";

/// A compiled chat template; shared by any number of requests.
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
}

/// One conversation to render.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatRequest<'a> {
    /// The conversation, oldest message first.
    pub messages: &'a [Message],
    /// Whether the prompt ends with the opening of the model's answer.
    pub add_generation_prompt: bool,
    /// Tools that the model may call, usually a list of JSON schemas.
    pub tools: Option<&'a serde_json::Value>,
    /// Documents to answer from.
    pub documents: Option<&'a serde_json::Value>,
    /// Text of the vocabulary's BOS token; empty if there is none.
    pub bos_token: &'a str,
    /// Text of the vocabulary's EOS token; empty if there is none.
    pub eos_token: &'a str,
    /// Further variables that the template may read, such as `enable_thinking`. Their texts are guarded like messages.
    pub variables: Option<&'a Map<String, serde_json::Value>>,
    /// What `strftime_now` tells, in UTC.
    pub now: SystemTime,
    /// The vocabulary's control tokens.
    pub control_tokens: &'a ControlTokens,
}

impl<'a> ChatRequest<'a> {
    /// A conversation that asks for an answer: no tools, documents or variables, no BOS and EOS, at the Unix epoch.
    pub fn new(messages: &'a [Message], control_tokens: &'a ControlTokens) -> ChatRequest<'a> {
        ChatRequest {
            messages,
            add_generation_prompt: true,
            tools: None,
            documents: None,
            bos_token: "",
            eos_token: "",
            variables: None,
            now: SystemTime::UNIX_EPOCH,
            control_tokens,
        }
    }
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderedPrompt {
    /// The prompt with guards: control tokens are to be found in it first, then the guards to be removed from the rest.
    pub text: String,
    /// The guard.
    pub guard: char,
}

impl RenderedPrompt {
    /// The prompt without guards, for people. Control tokens in it can no longer be told from user text.
    pub fn without_guards(&self) -> String {
        self.text.replace(self.guard, "")
    }
}

impl ChatTemplate {
    /// Compiles a template in the language and with the conventions of HF's chat templates.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] for what does not compile, and for sources that could exhaust the stack: very long
    /// expressions, `namespace` objects used as values, and tags that read other templates.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        let source = scan::scan(source)?;
        let environment = environment();
        if let Err(error) = environment.template_from_named_str(NAME, &source) {
            return Err(TemplateError::Syntax { line: error.line().unwrap_or(0), message: words(&error) }.into());
        }
        Ok(ChatTemplate { source, environment })
    }

    /// ChatML, for files without a template whose vocabulary has `<|im_start|>` and `<|im_end|>`.
    pub fn chatml() -> ChatTemplate {
        let source = "{% for message in messages %}\
                      {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
                      {% endfor %}\
                      {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        ChatTemplate { source: source.to_owned(), environment: environment() }
    }

    /// Renders a conversation. The result is a function of the request alone.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] if the template refuses the conversation, [`TemplateError::Render`] if it fails,
    /// [`TemplateError::Budget`] if it works without end; [`TemplateError::TooDeep`], [`TemplateError::Unguardable`]
    /// and [`TemplateError::NoGuard`] for the request itself.
    pub fn render(&self, request: &ChatRequest<'_>) -> Result<RenderedPrompt> {
        let mut texts = Texts { all: vec![request.bos_token, request.eos_token, &self.source], values: 0 };
        texts.collect(request)?;
        let input_bytes = texts.all.iter().map(|text| text.len()).sum::<usize>();
        let guard = request.control_tokens.choose_guard(texts.all.iter().copied())?;
        let context = Guarding { control_tokens: request.control_tokens, guard }.context(request)?;
        let fuel = BASE_FUEL
            .saturating_add((texts.values as u64).saturating_mul(FUEL_PER_VALUE))
            .saturating_add((input_bytes as u64).saturating_mul(FUEL_PER_BYTE));
        let mut environment = self.environment.clone();
        prepare(&mut environment, request.now, fuel);
        let rendered = environment.template_from_named_str(NAME, &self.source).and_then(|it| it.render(context));
        match rendered {
            Ok(text) => Ok(RenderedPrompt { text, guard }),
            Err(error) => Err(failure(&error, guard, input_bytes).into()),
        }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

fn words(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn failure(error: &minijinja::Error, guard: char, input_bytes: usize) -> TemplateError {
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    if let Some(raised) = causes.clone().find_map(|cause| cause.downcast_ref::<Raised>()) {
        return TemplateError::Raised { message: raised.0.replace(guard, "") };
    }
    let is_out_of_fuel = |cause: &minijinja::Error| cause.kind() == ErrorKind::OutOfFuel;
    if causes.any(|cause| cause.downcast_ref().is_some_and(is_out_of_fuel)) {
        return TemplateError::Budget { input_bytes };
    }
    TemplateError::Render { line: error.line().unwrap_or(0), message: words(error).replace(guard, "") }
}

/// All texts of a request, and how many values they belong to.
struct Texts<'a> {
    all: Vec<&'a str>,
    values: usize,
}

impl<'a> Texts<'a> {
    fn collect(&mut self, request: &ChatRequest<'a>) -> Result<(), TemplateError> {
        for message in request.messages {
            self.values += 1;
            self.all.extend([message.role.as_str(), message.content.as_str()]);
            self.map(&message.fields, None, MAX_DEPTH)?;
        }
        for (field, value) in [("tools", request.tools), ("documents", request.documents)] {
            value.map_or(Ok(()), |value| self.value(value, field, MAX_DEPTH))?;
        }
        request.variables.map_or(Ok(()), |variables| self.map(variables, None, MAX_DEPTH))
    }

    /// `field` names the value in errors; without one the map's own keys do.
    fn map(
        &mut self,
        map: &'a Map<String, serde_json::Value>,
        field: Option<&str>,
        depth: usize,
    ) -> Result<(), TemplateError> {
        for (key, value) in map {
            self.all.push(key);
            self.value(value, field.unwrap_or(key), depth)?;
        }
        Ok(())
    }

    fn value(&mut self, value: &'a serde_json::Value, field: &str, depth: usize) -> Result<(), TemplateError> {
        let Some(inner) = depth.checked_sub(1) else {
            return Err(TemplateError::TooDeep { field: field.to_owned(), limit: MAX_DEPTH });
        };
        self.values += 1;
        match value {
            serde_json::Value::String(text) => self.all.push(text),
            serde_json::Value::Array(items) => {
                for item in items {
                    self.value(item, field, inner)?;
                }
            }
            serde_json::Value::Object(map) => self.map(map, Some(field), inner)?,
            _ => {}
        }
        Ok(())
    }
}

/// Turns the request into the template's variables, with guards. Depths were checked by [`Texts`].
struct Guarding<'a> {
    control_tokens: &'a ControlTokens,
    guard: char,
}

impl Guarding<'_> {
    fn context(&self, request: &ChatRequest<'_>) -> Result<Value, TemplateError> {
        let mut messages = Vec::with_capacity(request.messages.len());
        for message in request.messages {
            let mut entries = vec![
                (Value::from("role"), self.text(&message.role, TextKind::Field, "role")?),
                (Value::from("content"), self.text(&message.content, TextKind::Content, "content")?),
            ];
            for (key, value) in &message.fields {
                // Later entries replace earlier ones.
                entries.push((self.text(key, TextKind::Field, key)?, self.value(value, key)?));
            }
            messages.push(Value::from_pairs(entries));
        }
        let optional = |value: Option<&serde_json::Value>, field: &str| match value {
            Some(value) => self.value(value, field),
            // Templates test these for `none`, not only for `defined`.
            None => Ok(Value::from(())),
        };
        let mut entries = Vec::new();
        for (key, value) in request.variables.into_iter().flatten() {
            entries.push((Value::from(key.as_str()), self.value(value, key)?));
        }
        entries.extend([
            (Value::from("messages"), Value::from(messages)),
            (Value::from("tools"), optional(request.tools, "tools")?),
            (Value::from("documents"), optional(request.documents, "documents")?),
            (Value::from("add_generation_prompt"), Value::from(request.add_generation_prompt)),
            (Value::from("bos_token"), Value::from(request.bos_token)),
            (Value::from("eos_token"), Value::from(request.eos_token)),
        ]);
        Ok(Value::from_pairs(entries))
    }

    fn text(&self, text: &str, kind: TextKind, field: &str) -> Result<Value, TemplateError> {
        Ok(Value::from(self.control_tokens.guard(text, self.guard, kind, field)?.as_ref()))
    }

    fn value(&self, value: &serde_json::Value, field: &str) -> Result<Value, TemplateError> {
        Ok(match value {
            serde_json::Value::Null => Value::from(()),
            serde_json::Value::Bool(value) => Value::from(*value),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(integer), _, _) => Value::from(integer),
                (_, Some(integer), _) => Value::from(integer),
                (_, _, float) => Value::from(float.unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => self.text(text, TextKind::Field, field)?,
            serde_json::Value::Array(items) => {
                Value::from(items.iter().map(|item| self.value(item, field)).collect::<Result<Vec<_>, _>>()?)
            }
            serde_json::Value::Object(map) => {
                let mut entries = Vec::with_capacity(map.len());
                for (key, value) in map {
                    entries.push((self.text(key, TextKind::Field, field)?, self.value(value, field)?));
                }
                Value::from_pairs(entries)
            }
        })
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
