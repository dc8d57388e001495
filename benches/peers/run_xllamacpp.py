"""llama.cpp as the package xllamacpp brings it (prebuilt for AVX2), through its in-process server's own times."""

import json
import os
import sys

import xllamacpp

from common import Stopwatch, arguments, report, spread_ids, test_name

# The server takes ids that the vocabulary has; these are in every one that is compared.
VOCAB = 32000


def server(args, context):
    """A server with one slot and nothing kept between requests."""
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx = context
    params.n_batch = 2048
    params.n_ubatch = 512
    params.n_parallel = 1
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.no_extra_bufts = args.no_repack
    params.cache_ram_mib = 0
    params.verbosity = 0
    params.warmup = True
    params.no_perf = False
    return xllamacpp.Server(params)


def complete(running, ids, tokens):
    """The server's times of one request."""
    request = {
        "prompt": ids,
        "n_predict": tokens,
        "cache_prompt": False,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    answer = running.handle_completions(request)
    if isinstance(answer, (str, bytes)):
        answer = json.loads(answer)
    if "timings" not in answer:
        sys.exit(f"the server answers without times: {json.dumps(answer)[:300]}")
    return answer["timings"]


def prefill_rate(running, tokens, seed):
    """Tokens per second of a prompt."""
    times = complete(running, spread_ids(tokens, VOCAB, seed), 1)
    if times["prompt_n"] != tokens:
        sys.exit(f"the server computed {times['prompt_n']} prompt tokens of {tokens}")
    return tokens / (times["prompt_ms"] / 1000)


def decode_rate(running, tokens, depth, seed):
    """Tokens per second behind a depth. The first token comes out of the prompt, so one more is asked for."""
    times = complete(running, spread_ids(max(depth, 1), VOCAB, seed), tokens + 1)
    if times["predicted_n"] != tokens + 1:
        sys.exit(f"the server generated {times['predicted_n']} tokens of {tokens + 1}")
    return tokens / (times["predicted_ms"] / 1000)


def main():
    """Measures as the command line asks."""
    extra = [("--no-repack", "weights stay as they are in the file")]
    args = arguments("xllamacpp", has_batches=False, extra=extra)
    # What the library writes to stdout must not stand between the lines of JSON.
    out = os.dup(1)
    os.dup2(2, 1)
    watch = Stopwatch()
    running = server(args, max(args.prefill + 1, args.depth + args.decode + 2) + 8)
    load_s = watch.seconds()
    kernel = "as stored" if args.no_repack else "repacked"
    seeds = range(1, args.repetitions + 1)
    rows = []
    if args.prefill:
        prefill_rate(running, args.prefill, 0)
        rows.append((f"pp{args.prefill}", [prefill_rate(running, args.prefill, seed) for seed in seeds]))
    if args.decode:
        if not args.depth:
            decode_rate(running, 4, 0, 0)
        rates = [decode_rate(running, args.decode, args.depth, seed) for seed in seeds]
        rows.append((test_name(args.decode, args.depth, 1), rates))
    sys.stdout.flush()
    os.dup2(out, 1)
    for name, rates in rows:
        report(name, rates, load_s, kernel)


if __name__ == "__main__":
    main()
