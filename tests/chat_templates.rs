//! Chat templates of the well-known shapes render what Jinja2 renders (`tests/data/chat`, made by `generate.py` there).

use std::time::{Duration, SystemTime};

use candlewick::tokenizer::chat::{ChatRequest, ChatTemplate, ControlTokens, Message};
use candlewick::{Error, TemplateError};
use serde_json::Value;

fn read(name: &str) -> String {
    let path = format!("{}/tests/data/chat/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn message(value: &Value) -> Message {
    let mut message = Message::new(value["role"].as_str().unwrap(), value["content"].as_str().unwrap_or_default());
    for (key, field) in value.as_object().unwrap() {
        if key != "role" && !(key == "content" && field.is_string()) {
            message = message.with(key, field.clone());
        }
    }
    message
}

#[test]
fn templates_render_as_in_jinja2() {
    let data: Value = serde_json::from_str(&read("cases.json")).unwrap();
    // None of these occurs in the conversations.
    let control_tokens = ControlTokens::new(["<|open|>", "<|close|>", "<bos>", "<eos>"]);
    let mut counts = [0; 3];
    let mut differences = Vec::new();
    for case in data["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let template = ChatTemplate::new(&read(&format!("{name}.jinja"))).unwrap();
        let conversation = case["conversation"].as_str().unwrap();
        let messages: Vec<_> = data["conversations"][conversation].as_array().unwrap().iter().map(message).collect();
        let mut request = ChatRequest::new(&messages, &control_tokens);
        request.add_generation_prompt = case["add_generation_prompt"].as_bool().unwrap();
        request.tools = case.get("tools");
        request.documents = case.get("documents");
        request.variables = case.get("variables").and_then(Value::as_object);
        request.bos_token = data["bos_token"].as_str().unwrap();
        request.eos_token = data["eos_token"].as_str().unwrap();
        request.now = SystemTime::UNIX_EPOCH + Duration::from_secs(data["now"].as_u64().unwrap());
        let what = format!("{name}, {conversation}, {:?}", case.get("variables"));
        let rendered = template.render(&request);
        if let Some(text) = case.get("text") {
            counts[0] += 1;
            match rendered {
                Ok(rendered) => {
                    let (found, expected) = (rendered.without_guards(), text.as_str().unwrap());
                    if found != expected {
                        differences.push(format!("{what}:\n{found:?}\n{expected:?}"));
                    }
                }
                Err(error) => panic!("{what}: {error}"),
            }
        } else if let Some(expected) = case.get("raised") {
            counts[1] += 1;
            match rendered {
                Err(Error::Template(TemplateError::Raised { message })) => {
                    assert_eq!(message, expected.as_str().unwrap(), "{what}");
                }
                other => panic!("{what}: {other:?}"),
            }
        } else {
            counts[2] += 1;
            assert!(matches!(rendered, Err(Error::Template(TemplateError::Render { .. }))), "{what}: {rendered:?}");
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(counts, [295, 45, 20]);
}
