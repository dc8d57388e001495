//! Logits, likelihoods and greedy tokens of every golden case, in f32 and in the default precision.

use candlewick::source::{Metadata, TensorInfo, Value};
use candlewick::{EncodeOptions, Engine, Gguf, Precision, Request, Result, TokenId, WeightSource};

use crate::files::Model;

/// One case of a golden file.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) ids: Vec<TokenId>,
    mean_nll: Option<f64>,
    last_top: Vec<(TokenId, f64)>,
    greedy: Vec<TokenId>,
    margins: Vec<f64>,
}

pub(crate) fn cases(file: &str) -> Vec<Case> {
    let path = format!("{}/tests/data/golden/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let numbers = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let ids = |v: &serde_json::Value| numbers(v).into_iter().map(|x| x as TokenId).collect::<Vec<_>>();
    json["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| Case {
            name: case["name"].as_str().unwrap().to_string(),
            text: case["text"].as_str().unwrap().to_string(),
            ids: ids(&case["ids"]),
            mean_nll: case["mean_nll"].as_f64(),
            last_top: ids(&case["last_top_ids"]).into_iter().zip(numbers(&case["last_top_logits"])).collect(),
            greedy: ids(&case["greedy"]),
            margins: numbers(&case["greedy_margins"]),
        })
        .collect()
}

fn mean_nll(log_probs: &[f32]) -> Option<f64> {
    let sum: f64 = log_probs.iter().map(|&l| -f64::from(l)).sum();
    (!log_probs.is_empty()).then(|| sum / log_probs.len() as f64)
}

fn best(logits: &[f32]) -> TokenId {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|l| *l == max).unwrap() as TokenId
}

/// Largest deviation of the last logits, as a share of the largest |logit|; and that of the mean likelihood.
fn deviation(engine: &mut Engine, case: &Case) -> (f64, f64, Vec<f32>) {
    let score = engine.score(&case.ids, 1).unwrap();
    let largest = case.last_top.iter().map(|(_, l)| l.abs()).fold(0.0, f64::max);
    let logits = case.last_top.iter().map(|(id, l)| (f64::from(score.last_logits[*id as usize]) - l).abs() / largest);
    let nll = match (mean_nll(&score.log_probs), case.mean_nll) {
        (Some(ours), Some(theirs)) => (ours - theirs).abs(),
        (None, None) => 0.0,
        other => panic!("{}: {other:?}", case.name),
    };
    (logits.fold(0.0, f64::max), nll, score.last_logits)
}

fn f32_equals_the_reference(name: &str, file: &str) {
    let Some(model) = Model::find(name) else { return };
    let mut engine = model.engine(|b| b.precision(Precision::F32));
    for case in cases(file) {
        let (logits, nll, last) = deviation(&mut engine, &case);
        println!("{file} {}: logits {logits:.1e}, mean nll {nll:.1e}", case.name);
        assert!(logits < 1e-3, "{}: logits differ by {logits}", case.name);
        assert!(nll < 1e-3, "{}: mean nll differs by {nll}", case.name);
        if case.last_top[0].1 - case.last_top[1].1 > 0.02 {
            assert_eq!(best(&last), case.last_top[0].0, "{}", case.name);
        }
        let request = Request::tokens(case.ids.clone()).max_tokens(case.greedy.len()).ignore_eos(true);
        let greedy = engine.complete(request).unwrap().token_ids;
        let sure = case.margins.iter().position(|m| *m < 0.02).unwrap_or(case.greedy.len());
        assert_eq!(greedy[..sure], case.greedy[..sure], "{}", case.name);
    }
}

fn default_precision_is_close_to_the_reference(name: &str, file: &str) {
    let Some(model) = Model::find(name) else { return };
    let mut engine = model.engine(|b| b);
    for case in cases(file) {
        // One run over prompt and greedy tokens gives the prediction at every greedy step.
        let all: Vec<TokenId> = case.ids.iter().chain(&case.greedy).copied().collect();
        let score = engine.score(&all, 1).unwrap();
        let steps = score.best[case.ids.len() - 1..].iter().zip(&case.greedy).zip(&case.margins);
        for (step, ((best, golden), margin)) in steps.enumerate() {
            assert!(*margin <= 1.0 || best == golden, "{} step {step}: {best}, not {golden}", case.name);
        }
        if let (Some(ours), Some(theirs)) = (mean_nll(&score.log_probs[..case.ids.len() - 1]), case.mean_nll) {
            println!("{file} {}: mean nll {ours:.4}, reference {theirs:.4}", case.name);
            assert!((ours / theirs - 1.0).abs() < 0.02, "{}: mean nll {ours}, reference {theirs}", case.name);
        }
    }
}

fn text_encodes_to_the_reference(name: &str, file: &str) {
    let Some(model) = Model::find(name) else { return };
    let tokenizer = candlewick::Tokenizer::from_metadata(model.source().metadata()).unwrap();
    for case in cases(file) {
        let options = EncodeOptions::DOCUMENT;
        assert_eq!(tokenizer.encode(&case.text, options).unwrap(), case.ids, "{}", case.name);
    }
}

macro_rules! golden {
    ($($model:ident: $name:literal, $file:literal;)*) => {
        $(mod $model {
            #[test]
            fn f32_equals_the_reference() {
                super::f32_equals_the_reference($name, $file);
            }

            #[test]
            fn default_precision_is_close_to_the_reference() {
                super::default_precision_is_close_to_the_reference($name, $file);
            }

            #[test]
            fn text_encodes_to_the_reference() {
                super::text_encodes_to_the_reference($name, $file);
            }
        })*
    };
}

golden! {
    smollm2: "smollm2-135m", "smollm2-135m-instruct";
    gemma3: "gemma3-270m", "gemma3-270m";
    qwen2: "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct";
}

/// A model whose file says something else about itself.
#[derive(Debug)]
struct Altered {
    model: Gguf,
    metadata: Metadata,
}

impl WeightSource for Altered {
    fn name(&self) -> &str {
        self.model.name()
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        self.model.tensors()
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.model.tensor(name)
    }
    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.model.read(name, offset, buffer)
    }
}

/// The long case must notice a sliding window that is wrong by a single token.
#[test]
fn the_long_gemma_case_notices_a_wrong_window() {
    let Some(model) = Model::find("gemma3-270m") else { return };
    let case = cases("gemma3-270m").into_iter().find(|c| c.name == "long").unwrap();
    assert!(case.ids.len() > 1000);
    for window in [511u64, 513, 4096] {
        let model = model.source();
        let mut metadata = model.metadata().clone();
        metadata.insert("gemma3.attention.sliding_window", Value::Unsigned(window));
        let altered = Altered { model, metadata };
        let mut engine = Engine::builder(altered).precision(Precision::F32).build().unwrap();
        let (logits, nll, _) = deviation(&mut engine, &case);
        println!("window {window}: logits {logits:.1e}, mean nll {nll:.1e}");
        assert!(logits > 1e-3 || nll > 1e-3, "window {window} passes: logits {logits}, nll {nll}");
    }
}

/// The largest model in f32 on a long prompt: right, and in bearable time.
#[test]
fn a_long_prompt_in_f32_on_the_largest_model_takes_less_than_two_minutes() {
    let Some(model) = Model::find("qwen2.5-coder-1.5b") else { return };
    let case = cases("qwen2.5-coder-0.5b-instruct").into_iter().find(|c| c.name == "long").unwrap();
    let mut engine = model.engine(|b| b.precision(Precision::F32));
    let start = std::time::Instant::now();
    let score = engine.score(&case.ids, 1).unwrap();
    let (time, nll) = (start.elapsed(), mean_nll(&score.log_probs).unwrap());
    println!("{} tokens in {time:.1?}, mean nll {nll:.4}", case.ids.len());
    assert!(time.as_secs() < 120, "{time:?}");
    // The larger sibling predicts the same text better.
    assert!(nll < case.mean_nll.unwrap(), "{nll}");
}
