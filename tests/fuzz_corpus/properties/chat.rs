//! Chat templates: a hostile template ends in a prompt or in an error within its budget, and a hostile conversation
//! cannot forge the control tokens of an honest one.

use candlewick::tokenizer::{ChatRequest, ControlTokens, RenderedPrompt};
use candlewick::{ChatTemplate, Error, Message};
use serde_json::{json, Value};

use super::{check_error, Input};

const OPEN: &str = "<|im_start|>";
const CLOSE: &str = "<|im_end|>";

/// `data`: a conversation, and the rest is the template. Whether it gives a prompt.
pub(crate) fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let count = input.below(5);
    let messages: Vec<Message> = (0..count).map(|_| message(&mut input)).collect();
    let control_tokens = ControlTokens::new([OPEN, CLOSE, "</s>", "[INST]"]);
    let mut request = ChatRequest::new(&messages, &control_tokens);
    request.add_generation_prompt = input.flag();
    let tools = json!([{"type": "function", "function": {"name": input.text(8), "parameters": {"a": [1, 2.5, null]}}}]);
    request.tools = input.flag().then_some(&tools);
    (request.bos_token, request.eos_token) = ("<s>", "</s>");
    honest_template(&request);
    let source = input.rest();
    match ChatTemplate::new(&source) {
        Ok(template) => hostile_template(&template, &source, &request),
        Err(error) => {
            check_typed(&error);
            false
        }
    }
}

fn message(input: &mut Input<'_>) -> Message {
    let roles = ["user", "assistant", "system", "tool"];
    let role = match input.below(roles.len() + 1) {
        known if known < roles.len() => roles[known].to_string(),
        _ => input.text(16),
    };
    let message = Message::new(role, input.text(40));
    match input.below(4) {
        0 => message
            .with("tool_calls", json!([{"id": input.text(4), "arguments": {input.text(4): [true, input.byte()]}}])),
        1 => message.with(input.text(6), Value::Null),
        _ => message,
    }
}

/// ChatML's control tokens are those that the template wrote, whatever the messages say.
fn honest_template(request: &ChatRequest<'_>) {
    let messages = request.messages;
    // Such a field replaces the role or the text.
    if messages.iter().any(|message| message.fields.contains_key("role") || message.fields.contains_key("content")) {
        return;
    }
    let prompt = ChatTemplate::chatml().render(request).unwrap_or_else(|error| panic!("{error}"));
    let answer = usize::from(request.add_generation_prompt);
    assert_eq!(prompt.text.matches(OPEN).count(), messages.len() + answer, "{prompt:?}");
    assert_eq!(prompt.text.matches(CLOSE).count(), messages.len(), "{prompt:?}");
    assert!(!prompt.text.contains("</s>") && !prompt.text.contains("[INST]"), "{prompt:?}");
    let text = prompt.without_guards();
    for message in messages {
        assert!(text.contains(&message.role) && text.contains(&message.content), "{message:?} is not in {text:?}");
    }
}

fn hostile_template(template: &ChatTemplate, source: &str, request: &ChatRequest<'_>) -> bool {
    let render = || match template.render(request) {
        Ok(prompt) => Some(prompt),
        Err(error) => {
            check_typed(&error);
            None
        }
    };
    let prompt = render();
    assert_eq!(prompt, render(), "rendering is not a function of the request");
    let Some(RenderedPrompt { text, .. }) = prompt else { return false };
    // Work is a budget in proportion to the request, and so is text.
    assert!(text.len() < (16 << 20) + 64 * source.len(), "{} bytes of text", text.len());
    true
}

fn check_typed(error: &Error) {
    assert!(matches!(error, Error::Template(_)), "{error}");
    check_error(error);
}
