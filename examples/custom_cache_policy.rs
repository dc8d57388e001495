//! A cache policy of one's own: keep the beginning, the newest positions and a thinned-out memory of what lies between.
//!
//! Passes the conformance suite, then answers with a tiny random model (its text means nothing).

use candlewick::cache::{Acts, CacheBounds, CachePolicy, CacheSession, Stateless, Visibility};
use candlewick::testing::{check_cache_policy, TinyModel};
use candlewick::{Engine, Request, Result};

/// Keeps the first and the last positions, and one in `every` blocks of 32 of those in between.
#[derive(Clone, Copy, Debug)]
struct Thinned {
    first: usize,
    last: usize,
    every: usize,
}

impl CachePolicy for Thinned {
    fn name(&self) -> &str {
        "thinned"
    }
    fn visibility(&self) -> Visibility {
        Visibility::All
    }
    fn acts(&self) -> Acts {
        Acts::Every(32)
    }
    fn bounds(&self) -> CacheBounds {
        CacheBounds::NONE // What is kept still grows, only more slowly.
    }
    fn recomputable(&self) -> bool {
        true
    }
    fn open(&self) -> Box<dyn CacheSession> {
        let Thinned { first, last, every } = *self;
        Box::new(Stateless::new(move |view, dropped| {
            let between = |p: &usize| *p >= first && p + last < view.position();
            dropped.extend(view.live().filter(between).filter(|p| p / 32 % every != 0));
        }))
    }
}

fn main() -> Result<()> {
    let policy = Thinned { first: 4, last: 64, every: 4 };
    check_cache_policy(&policy).expect("the policy keeps its contract");
    let mut engine = Engine::builder(TinyModel::llama().build()?).cache_policy(policy).build()?;
    engine.submit(Request::tokens(vec![50; 300]).max_tokens(100).ignore_eos(true))?;
    let mut most = 0;
    while !engine.is_idle() {
        engine.step()?;
        most = most.max(engine.kv_blocks_in_use());
    }
    println!("400 tokens in at most {most} blocks of 32, of 26 in all");
    Ok(())
}
