"""llama.cpp through llama-cpp-python's low-level interface: exact times of prefill and of decoding in batches.

Defaults are llama.cpp's own (512 tokens per micro-batch, flash attention where it chooses so, f16 keys and values).
Decoded tokens are given and not sampled, so the peer is not charged for a sampler.
"""

import ctypes
import sys

import llama_cpp as ll

from common import Stopwatch, arguments, report, spread_ids, test_name, unsupported

# A logger that says nothing but errors; it must live as long as the library.
ERROR_LEVEL = 4


@ll.llama_log_callback
def log(level, text, _):
    """Passes errors on."""
    if level == ERROR_LEVEL:
        sys.stderr.write(text.decode("utf-8", "replace"))


class Model:
    """A model with one context, and a batch that is filled anew for every step."""

    def __init__(self, args, context, sequences):
        ll.llama_log_set(log, ctypes.c_void_p(0))
        ll.llama_backend_init()
        watch = Stopwatch()
        params = ll.llama_model_default_params()
        params.use_extra_bufts = not args.no_repack
        self.model = ll.llama_model_load_from_file(args.model.encode(), params)
        if not self.model:
            unsupported("llama.cpp cannot load the file", is_whole_model=True)
        params = ll.llama_context_default_params()
        params.n_ctx = context * sequences
        params.n_batch = 2048
        params.n_ubatch = 512
        params.n_seq_max = sequences
        params.n_threads = args.threads
        params.n_threads_batch = args.threads
        params.no_perf = True
        if args.no_flash_attention:
            params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = ll.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("llama.cpp has no memory for the context")
        self.batch_len = params.n_batch
        self.batch = ll.llama_batch_init(self.batch_len, 0, 1)
        self.vocab_size = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.load_s = watch.seconds()

    def clear(self):
        """Empties the cache."""
        ll.llama_memory_clear(ll.llama_get_memory(self.context), False)

    def step(self, rows):
        """Computes rows of (token, position, sequence, whether logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        status = ll.llama_decode(self.context, batch)
        if status != 0:
            sys.exit(f"llama_decode answers {status}")

    def prefill(self, ids, sequence):
        """Computes a prompt; logits of its last token only."""
        rows = [(token, i, sequence, i + 1 == len(ids)) for i, token in enumerate(ids)]
        for start in range(0, len(rows), self.batch_len):
            self.step(rows[start : start + self.batch_len])
        ll.llama_synchronize(self.context)

    def prefill_rate(self, tokens, seed):
        """Tokens per second of a prompt."""
        self.clear()
        ids = spread_ids(tokens, self.vocab_size, seed)
        watch = Stopwatch()
        self.prefill(ids, 0)
        return tokens / watch.seconds()

    def decode_rate(self, tokens, depth, batch, seed):
        """Tokens per second of all sequences together, behind `depth` tokens each that do not count."""
        self.clear()
        if depth:
            for sequence in range(batch):
                self.prefill(spread_ids(depth, self.vocab_size, seed * 4096 + sequence), sequence)
        ids = [spread_ids(tokens, self.vocab_size, seed * 4096 + 2048 + sequence) for sequence in range(batch)]
        watch = Stopwatch()
        for i in range(tokens):
            self.step([(ids[sequence][i], depth + i, sequence, True) for sequence in range(batch)])
        ll.llama_synchronize(self.context)
        return tokens * batch / watch.seconds()


def main():
    """Measures as the command line asks."""
    extra = [
        ("--no-repack", "weights stay as they are in the file"),
        ("--no-flash-attention", "attention in separate products"),
    ]
    args = arguments("llama.cpp", has_batches=True, extra=extra)
    context = max(args.prefill, args.depth + args.decode) + 1
    # A context's cells come in units of 256 for each sequence.
    model = Model(args, (context + 255) // 256 * 256, args.batch)
    kernel = "as stored" if args.no_repack else "repacked"
    seeds = range(1, args.repetitions + 1)
    if args.prefill:
        model.prefill_rate(args.prefill, 0)
        rates = [model.prefill_rate(args.prefill, seed) for seed in seeds]
        report(f"pp{args.prefill}", rates, model.load_s, kernel)
    if args.decode:
        if not args.depth:
            model.decode_rate(min(args.decode, 4), 0, args.batch, 0)
        rates = [model.decode_rate(args.decode, args.depth, args.batch, seed) for seed in seeds]
        report(test_name(args.decode, args.depth, args.batch), rates, model.load_s, kernel)


if __name__ == "__main__":
    main()
