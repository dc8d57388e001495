"""mistral.rs through its Python package, by the times that its answers state.

It takes texts, so prompts are words whose number of tokens is near the one asked for, and rates count the tokens that
it reports. Its threads are rayon's: `RAYON_NUM_THREADS` must be set by the caller.
"""

import os
import sys

import mistralrs

from common import Stopwatch, arguments, report, test_name, unsupported

# Single tokens in the vocabularies that are compared; which of them follow each other depends on the seed.
WORDS = "time day way man thing life hand part child eye woman place work week case point number group fact home".split()


def prompt(tokens, seed):
    """A text of about so many tokens."""
    return " ".join(WORDS[(i * i + i * seed + seed) % len(WORDS)] for i in range(max(tokens - 1, 1)))


def complete(runner, tokens, seed, answer):
    """The bill of one request. A prompt that was found in a cache, or has another length, counts for nothing."""
    request = mistralrs.CompletionRequest(
        prompt=prompt(tokens, seed), model="default", max_tokens=answer, temperature=0.0
    )
    usage = runner.send_completion_request(request).usage
    if abs(usage.prompt_tokens - tokens) > max(tokens // 10, 2):
        sys.exit(f"the prompt became {usage.prompt_tokens} tokens instead of {tokens}")
    return usage


def prefill_rate(runner, tokens, seed):
    """Tokens per second of a prompt."""
    usage = complete(runner, tokens, seed, 1)
    return usage.prompt_tokens / max(usage.total_prompt_time_sec, 1e-9)


def decode_rate(runner, tokens, depth, seed):
    """Tokens per second behind a depth."""
    usage = complete(runner, max(depth, 1), seed, tokens)
    if usage.completion_tokens < tokens // 2:
        sys.exit(f"the answer ended after {usage.completion_tokens} tokens")
    return usage.completion_tokens / max(usage.total_completion_time_sec, 1e-9)


def main():
    """Measures as the command line asks."""
    args = arguments("mistral.rs", has_batches=False)
    if os.environ.get("RAYON_NUM_THREADS") != str(args.threads):
        sys.exit("RAYON_NUM_THREADS must be what --threads says")
    folder, name = os.path.split(os.path.abspath(args.model))
    # What the library writes to stdout must not stand between the lines of JSON.
    out = os.dup(1)
    os.dup2(2, 1)
    watch = Stopwatch()
    try:
        which = mistralrs.Which.GGUF(quantized_model_id=folder, quantized_filename=name)
        runner = mistralrs.Runner(which=which, prefix_cache_n=0)
    except (ValueError, RuntimeError, TypeError) as error:
        unsupported(f"mistral.rs cannot load the file: {error}", is_whole_model=True)
    load_s = watch.seconds()
    seeds = range(1, args.repetitions + 1)
    rows = []
    if args.prefill:
        prefill_rate(runner, min(args.prefill, 32), 0)
        rows.append((f"pp{args.prefill}", [prefill_rate(runner, args.prefill, seed) for seed in seeds]))
    if args.decode:
        if not args.depth:
            decode_rate(runner, 4, 0, 0)
        rates = [decode_rate(runner, args.decode, args.depth, seed) for seed in seeds]
        rows.append((test_name(args.decode, args.depth, 1), rates))
    sys.stdout.flush()
    os.dup2(out, 1)
    for name, rates in rows:
        report(name, rates, load_s, "mistralrs")


if __name__ == "__main__":
    main()
