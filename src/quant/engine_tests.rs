//! Quantizers in an engine: what the build checks, mixed groups, failures in a step.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::engine::{Engine, EngineBuilder, Event, Request};
use crate::kernel::{matmul_f32, KvFormat, Precision};
use crate::source::{Dtype, WeightSource};
use crate::testing::TinyModel;
use crate::{BuildError, Error, FinishReason};

/// Dense f32 rows, on chosen roles; the rest stays as stored.
#[derive(Clone, Debug, Default)]
struct Foreign {
    roles: Vec<Role>,
    invariant: bool,
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
    drops_one: bool,
    transposes: bool,
    panics_at_once: bool,
    unread: bool,
    seen: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug)]
struct Dense {
    dims: (usize, usize),
    values: Vec<f32>,
    parent: Foreign,
}

impl Quantizer for Foreign {
    fn name(&self) -> &str {
        "foreign"
    }

    fn check(&self, weights: &[WeightInfo]) -> Result<()> {
        self.seen.lock().unwrap().extend(weights.iter().map(|w| format!("{:?} {}", w.site.role, w.site.name)));
        Ok(())
    }

    fn quantize(&self, group: &LinearGroup<'_>, calibration: &Calibration<'_>) -> Result<QuantizedGroup> {
        assert!(!self.panics_at_once, "out of luck");
        let mut quantized = match self.unread {
            true => group.each(|w| Ok(self.dense(w, vec![0.5; w.rows() * w.cols()])))?,
            false => Stored.quantize(group, calibration)?,
        };
        for (weight, matrix) in group.weights().iter().zip(&mut quantized.matrices) {
            if !self.unread && self.roles.contains(&weight.site().role) {
                *matrix = self.dense(weight, weight.dequantize()?);
            }
        }
        if self.drops_one {
            quantized.matrices.pop();
        }
        Ok(quantized)
    }
}

impl Foreign {
    fn on(roles: &[Role]) -> Foreign {
        Foreign { roles: roles.to_vec(), invariant: true, ..Foreign::default() }
    }

    fn dense(&self, weight: &WeightView<'_>, values: Vec<f32>) -> Box<dyn QuantizedMatrix> {
        let dims = (weight.rows(), weight.cols() + usize::from(self.transposes));
        Box::new(Dense { dims, values, parent: self.clone() })
    }
}

impl QuantizedMatrix for Dense {
    fn dims(&self) -> (usize, usize) {
        self.dims
    }

    fn format(&self) -> &str {
        "dense"
    }

    fn matmul(&self, context: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
        assert!(!self.parent.panics.load(Ordering::Relaxed), "the device is gone");
        if self.parent.fails.load(Ordering::Relaxed) {
            let info = WeightInfo::new(Site::new(None, Role::Head, "x"), Dtype::F32, 1, 1);
            return Err(info.refused("foreign", "no more energy"));
        }
        matmul_f32(context.cpu, x, self.dims, &|rows, w| self.dequantize(rows, w), out);
        Ok(())
    }

    fn dequantize(&self, rows: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.values[rows.start * self.dims.1..rows.end * self.dims.1]);
    }

    fn size_in_bytes(&self) -> usize {
        4 * self.values.len()
    }

    fn row_invariant(&self) -> bool {
        self.parent.invariant
    }
}

const EVERY_ROLE: [Role; 8] =
    [Role::Query, Role::Key, Role::Value, Role::AttentionOutput, Role::Gate, Role::Up, Role::Down, Role::Head];

fn builder(model: &TinyModel, quantizer: impl Quantizer) -> EngineBuilder {
    Engine::builder(model.build().unwrap()).threads(2).quantizer(quantizer)
}

fn exact(model: &TinyModel, quantizer: impl Quantizer) -> Engine {
    builder(model, quantizer).precision(Precision::F32).kv_format(KvFormat::F32).build().unwrap()
}

const TOKENS: [u32; 9] = [30, 41, 52, 33, 97, 120, 44, 60, 71];

#[test]
fn foreign_matrices_beside_packed_ones_and_as_tied_heads_compute_the_same_model() {
    let tied = TinyModel { tied: true, ..TinyModel::llama() };
    for model in [TinyModel::llama(), TinyModel::qwen2(), TinyModel::gemma3(), tied] {
        let expected = exact(&model, Stored).score(&TOKENS, 1).unwrap();
        for roles in [&[Role::Key][..], &[Role::Gate, Role::Query, Role::Value], &[Role::Head], &EVERY_ROLE] {
            let mut engine = exact(&model, Foreign::on(roles));
            let found = engine.score(&TOKENS, 1).unwrap();
            for (a, b) in found.last_logits.iter().zip(&expected.last_logits) {
                assert!((a - b).abs() < 1e-3, "{roles:?}: {a} and {b}");
            }
            let dense = engine.matrices().iter().filter(|m| m.format == "dense").count();
            assert_eq!(dense, roles.iter().map(|r| if *r == Role::Head { 1 } else { model.layers }).sum::<usize>());
            // A tied embedding is one matrix, and the quantizer's.
            let embeddings = engine.matrices().iter().filter(|m| m.site.name == "token_embd.weight").count();
            assert_eq!((embeddings, engine.matrices().len()), (1, 7 * model.layers + if model.tied { 1 } else { 2 }));
            let sum: usize = engine.matrices().iter().map(|m| m.size_in_bytes).sum();
            assert_eq!(sum, engine.weights_in_bytes());
        }
    }
}

#[test]
fn an_invariant_foreign_quantizer_keeps_answers_independent_of_company() {
    let model = TinyModel::qwen2();
    let request = |i: usize| Request::tokens(&TOKENS[..i + 2]).max_tokens(6).ignore_eos(true).logprobs(2);
    let mut engine = builder(&model, Foreign::on(&EVERY_ROLE)).require_invariance(true).build().unwrap();
    let essence = |o: crate::Output| {
        let bits: Vec<u32> = o.logprobs.iter().flatten().map(|l| l.chosen.log_prob.to_bits()).collect();
        (o.token_ids, bits)
    };
    let alone: Vec<_> = (0..4).map(|i| essence(engine.complete(request(i)).unwrap())).collect();
    let ids: Vec<_> = (0..4).map(|i| engine.submit(request(i)).unwrap()).collect();
    let mut together = vec![None; 4];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output, .. } = event {
                together[ids.iter().position(|i| *i == id).unwrap()] = Some(essence(output));
            }
        }
    }
    assert_eq!(together.into_iter().map(Option::unwrap).collect::<Vec<_>>(), alone);
}

#[test]
fn dependence_on_other_rows_is_refused_where_it_matters() {
    let quantizer = Foreign { invariant: false, ..Foreign::on(&[Role::Down]) };
    builder(&TinyModel::llama(), quantizer.clone()).build().unwrap();
    let error = builder(&TinyModel::llama(), quantizer).require_invariance(true).build().unwrap_err();
    assert!(matches!(error, Error::Build(BuildError::NotRowInvariant { .. })), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("`foreign`") && text.contains("require_invariance"), "{text}");
    builder(&TinyModel::llama(), Stored).require_invariance(true).build().unwrap();
}

#[test]
fn a_matrix_that_fails_ends_the_requests_of_its_step_and_nothing_else() {
    let (fails, panics) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let quantizer = Foreign { fails: fails.clone(), panics: panics.clone(), ..Foreign::on(&[Role::Down]) };
    let mut engine = builder(&TinyModel::llama(), quantizer).build().unwrap();
    let request = || Request::tokens(TOKENS).max_tokens(5).ignore_eos(true);
    let expected = engine.complete(request()).unwrap().token_ids;
    for (flag, message) in [(&fails, "no more energy"), (&panics, "panicked: the device is gone")] {
        let first = engine.submit(request()).unwrap();
        let second = engine.submit(request()).unwrap();
        engine.step().unwrap();
        flag.store(true, Ordering::Relaxed);
        let mut ended = Vec::new();
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output, error: Some(error), .. } = event {
                assert_eq!((output.finish_reason, output.token_ids.len()), (FinishReason::Error, 1));
                assert!(matches!(error, Error::Matmul(_)), "{error:?}");
                let text = error.to_string();
                assert!(text.contains("blk.0.ffn_down.weight") && text.contains(message), "{text}");
                ended.push(id);
            }
        }
        assert_eq!(ended, [first, second]);
        assert!(engine.score(&TOKENS, 1).is_err());
        flag.store(false, Ordering::Relaxed);
        engine.check_integrity().unwrap();
        assert!(engine.is_idle());
        assert_eq!(engine.complete(request()).unwrap().token_ids, expected);
    }
}

#[test]
fn quantizers_that_break_their_contract_end_the_build() {
    let error = |quantizer: Foreign| builder(&TinyModel::llama(), quantizer).build().unwrap_err();
    let all = || Foreign::on(&EVERY_ROLE);
    let text = error(Foreign { drops_one: true, ..all() }).to_string();
    assert!(text.contains("0 matrices") && text.contains("output.weight") && text.contains("foreign"), "{text}");
    let text = error(Foreign { transposes: true, ..all() }).to_string();
    assert!(text.contains("a matrix of 323 x 65 of `output.weight`"), "{text}");
    let panic = error(Foreign { panics_at_once: true, ..all() });
    assert!(matches!(&panic, Error::Extension { room: "quant", .. }), "{panic:?}");
    assert!(panic.to_string().contains("out of luck"), "{panic}");
}

#[test]
fn the_quantizer_sees_every_linear_first_and_progress_is_the_same_however_it_reads() {
    let model = TinyModel { layers: 1, ..TinyModel::llama() };
    let quantizer = Foreign::on(&[]);
    let run = |quantizer: Foreign| {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let builder = builder(&model, quantizer).progress(move |done, total| {
            seen.lock().unwrap().push((done, total));
            true
        });
        builder.build().unwrap();
        let calls = calls.lock().unwrap().clone();
        assert!(calls.windows(2).all(|w| w[0].0 <= w[1].0));
        *calls.last().unwrap()
    };
    let (done, total) = run(quantizer.clone());
    assert_eq!(done, total);
    assert_eq!(run(Foreign::on(&EVERY_ROLE)), (total, total), "read twice");
    assert_eq!(run(Foreign { unread: true, ..Foreign::on(&[]) }), (total, total), "not read at all");
    let seen = quantizer.seen.lock().unwrap().clone();
    assert_eq!(seen[0], "Head output.weight");
    assert_eq!(seen[1..4], ["Query blk.0.attn_q.weight", "Key blk.0.attn_k.weight", "Value blk.0.attn_v.weight"]);
    assert_eq!(seen.len(), 8);
}

#[test]
fn parts_of_fused_tensors_are_weights_of_their_own() {
    let whole = TinyModel { layers: 1, ..TinyModel::qwen2() };
    let mut fused = whole.build().unwrap();
    for (to, parts) in [("attn_qkv", &["attn_q", "attn_k", "attn_v"][..]), ("ffn_up", &["ffn_gate", "ffn_up"])] {
        for kind in ["weight", "bias"] {
            let parts: Vec<String> = parts.iter().map(|part| format!("blk.0.{part}.{kind}")).collect();
            let Some(width) = fused.tensor(&parts[0]).map(|t| t.shape[1..].to_vec()) else { continue };
            let bytes: Vec<u8> = parts.iter().flat_map(|part| fused.remove(part).unwrap()).collect();
            let rows = bytes.len() / 4 / width.iter().product::<usize>();
            fused.insert(format!("blk.0.{to}.{kind}"), Dtype::F32, &[&[rows][..], &width].concat(), bytes).unwrap();
        }
    }
    let rules: Requantize = "blk.*.attn_k.*=q8_0, blk.*.ffn_gate.weight=q4_0".parse().unwrap();
    let mut expected = builder(&whole, rules.clone()).build().unwrap();
    let mut found = Engine::builder(fused).threads(2).quantizer(rules).build().unwrap();
    let formats = |engine: &Engine| engine.matrices().iter().map(|m| m.format.clone()).collect::<Vec<_>>();
    assert_eq!(formats(&expected)[..6], ["F32", "F32", "Q8_0", "F32", "F32", "Q4_0"]);
    assert_eq!(formats(&found), formats(&expected));
    assert_eq!(found.score(&TOKENS, 1).unwrap().last_logits, expected.score(&TOKENS, 1).unwrap().last_logits);
}
