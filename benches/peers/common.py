"""What the scripts that measure one peer share: the command line, token ids, and the line of JSON per test.

The flags and the fields are those of the example `bench`, so that every contender is asked and answers alike.
"""

import argparse
import json
import statistics
import sys
import time


def arguments(peer, *, has_batches, extra=()):
    """Parses the command line of a peer; what the peer cannot do ends the process with a reason."""
    parser = argparse.ArgumentParser(description=f"Measures {peer}, with the flags of candlewick's example bench.")
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("-p", "--prefill", type=int, default=512, help="tokens of the prefill test; 0 leaves it out")
    parser.add_argument("-n", "--decode", type=int, default=64, help="tokens of the decoding test; 0 leaves it out")
    parser.add_argument("-d", "--depth", type=int, default=0, help="tokens in the cache before decoding, not timed")
    parser.add_argument("-b", "--batch", type=int, default=1, help="sequences that decode together")
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("--json", action="store_true", help="accepted; there is no other output")
    for name, text in extra:
        parser.add_argument(name, action="store_true", help=text)
    args = parser.parse_args()
    if args.batch > 1 and not has_batches:
        unsupported(f"{peer} cannot be asked for a batch of {args.batch} that is timed exactly")
    return args


def unsupported(reason, is_whole_model=False):
    """Ends the process: the peer has no such test, or nothing for this model."""
    print(" ".join(str(reason).split()), file=sys.stderr)
    sys.exit(UNSUPPORTED_MODEL if is_whole_model else UNSUPPORTED_TEST)


# Exit statuses that tell what a peer does not have.
UNSUPPORTED_TEST = 3
UNSUPPORTED_MODEL = 4


def spread_ids(count, vocab_size, seed):
    """Token ids of the example `bench`: the same for the same seed, spread over the vocabulary."""
    mask = (1 << 64) - 1
    state = (seed * 2 + 1) & mask
    ids = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & mask
        ids.append((state >> 33) % max(vocab_size, 1))
    return ids


def test_name(decode, depth, batch):
    """The name that the example `bench` gives to a decoding test."""
    return f"tg{decode}" + (f"@d{depth}" if depth else "") + (f"@b{batch}" if batch > 1 else "")


def peak_rss_bytes():
    """The most memory that this process had resident so far; None where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            lines = [line for line in status if line.startswith("VmHWM:")]
        return int(lines[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def report(name, rates, load_s, kernel):
    """Prints the line of a test."""
    print(
        json.dumps(
            {
                "test": name,
                "tokens_per_second": statistics.fmean(rates),
                "stddev": statistics.stdev(rates) if len(rates) > 1 else 0.0,
                "kernel": kernel,
                "peak_rss_bytes": peak_rss_bytes(),
                "load_s": load_s,
            }
        ),
        flush=True,
    )


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self):
        self.start = time.perf_counter()

    def seconds(self):
        """Never 0, so that rates can be made of it."""
        return max(time.perf_counter() - self.start, 1e-9)
