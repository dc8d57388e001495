#!/usr/bin/env python3
"""Runs candlewick and its peers in turns on the same GGUF files with the same threads, and prints ratios.

Every measurement is a process of its own: ours, peer, ours, next peer, and so on through all rounds. A ratio is made
of two neighbours, so that a machine that changes its speed changes both. README.md beside this file says more.
"""

import argparse
import json
import os
import pathlib
import platform
import sys

import contenders
import figures
import gguf_header

# Flags of each test. Depths are capped by the model's context.
TESTS = {
    **{f"pp{n}": {"prefill": n} for n in (32, 128, 512, 2048)},
    "tg64": {"decode": 64},
    "tg64@d2048": {"decode": 64, "depth": 2048},
    "tg32@d4096": {"decode": 32, "depth": 4096},
    "tg64@d8192": {"decode": 64, "depth": 8192},
    **{f"batch{b}": {"decode": 32, "depth": 128, "batch": b} for b in (1, 2, 4, 8, 16)},
    "tg32": {"decode": 32},
}
DEFAULT_TESTS = [name for name in TESTS if name != "tg32"]
QUICK_TESTS = ["pp512", "tg32", "tg32@d4096"]
# Lines of our program that say what the machine could do in the seconds of a test, and the field of their figure.
CEILINGS = {
    "read_bandwidth": "bytes_per_second",
    "int8_peak": "multiply_adds_per_second",
    "barrier_latency": "seconds",
}


def cache():
    """Where the examples keep models."""
    named = os.environ.get("CANDLEWICK_CACHE")
    general = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(named or f"{general}/candlewick/models").expanduser()


def physical_cores():
    """The cores that this process may use, counted as the engine does: two threads of one core are one."""
    allowed = os.sched_getaffinity(0)
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        return len({pathlib.Path(siblings.format(cpu)).read_text(encoding="ascii") for cpu in allowed})
    except OSError:
        return len(allowed)


def main():
    """The command line."""
    args = parse()
    if args.table:
        try:
            report = json.loads(args.table.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            sys.exit(f"--table {args.table}: {error}")
        print(figures.markdown(report))
        return 0
    if args.setup:
        return 0 if contenders.set_up(args.venv) else 1
    ours, peers = contenders.everyone(args.threads, args.venv, args.kernel, args.program, args.against)
    if args.peers:
        unknown = sorted(set(args.peers) - {peer.group for peer in peers})
        if unknown:
            sys.exit(f"--peers: {', '.join(unknown)} is none of {', '.join(sorted({p.group for p in peers}))}")
        peers = [peer for peer in peers if peer.group in args.peers]
    absence = ours.absence()
    if absence:
        sys.exit(f"candlewick: {absence}")
    comparison = Comparison(args, ours, peers)
    models = args.models or sorted(cache().glob("*.gguf"))
    if not models:
        sys.exit(
            f"no model in {cache()}: name files with --models, or fetch all that the examples know with"
            " `cargo run --release --example models -- fetch all`"
        )
    absent = [model for model in models if not pathlib.Path(model).is_file()]
    if absent:
        sys.exit(f"--models takes GGUF files; there is no {', '.join(map(str, absent))}")
    if args.json:
        # A place that cannot be written is better known before hours of measurements.
        partial(args.json).write_text("", encoding="utf-8")
    for model in models:
        comparison.run(pathlib.Path(model))
    comparison.save()
    print(figures.markdown(comparison.report()))
    return 0


def parse():
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = lambda text: [name for name in text.split(",") if name]
    parser.add_argument("--setup", action="store_true", help="build and install everything that takes part, and end")
    parser.add_argument("--table", type=pathlib.Path, help="print the table of a file of --json, and end")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK_TESTS)}")
    parser.add_argument("--tests", type=names, help=f"of {', '.join(TESTS)}")
    parser.add_argument("--peers", type=names, help="such as llama.cpp,candle-transformers [default: all]")
    parser.add_argument("--models", nargs="+", help=f"GGUF files [default: all in {cache()}]")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each pair [default: 5]")
    parser.add_argument("--threads", type=int, default=physical_cores(), help="of ours and of peers [default: cores]")
    parser.add_argument("--kernel", help="candlewick's kernel level, such as avx2 [default: the best]")
    path = lambda text: pathlib.Path(text).absolute()
    parser.add_argument("--program", type=path, help="our example bench [default: the one of cargo build --release]")
    parser.add_argument("--against", type=path, help=f"another build of it, the peer {contenders.OTHER_BUILD}")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one measurement [default: 600]")
    parser.add_argument("--json", type=pathlib.Path, help="also write all figures here, after every round")
    parser.add_argument(
        "--venv",
        type=path,
        default=contenders.ROOT / "target" / "peers",
        help="the peers' environment [default: target/peers]",
    )
    args = parser.parse_args()
    args.tests = args.tests or (QUICK_TESTS if args.quick else DEFAULT_TESTS)
    unknown = [name for name in args.tests if name not in TESTS]
    if unknown:
        parser.error(f"--tests: {', '.join(unknown)} is none of {', '.join(TESTS)}")
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    return args


def flags_of(test, context):
    """The flags of a test and its name, with a depth that leaves room for what is decoded."""
    prefill, decode = test.get("prefill", 0), test.get("decode", 0)
    depth, batch = test.get("depth", 0), test.get("batch", 1)
    # Behind a depth, sequences that wait for the others decode meanwhile.
    room = decode + 1 + (batch + batch * depth // 128 if batch > 1 else 0)
    depth = min(depth, context - room)
    if prefill + 1 > context or depth < 0:
        return None
    flags = ["-p", prefill, "-n", decode, "-d", depth, "-b", batch]
    name = f"pp{prefill}" if prefill else f"tg{decode}" + (f"@d{depth}" if depth else "")
    return name + (f"@b{batch}" if batch > 1 else ""), [str(flag) for flag in flags]


class Comparison:
    """All measurements, and what came of them."""

    def __init__(self, args, ours, peers):
        self.args = args
        self.ours = ours
        self.missing = []
        self.peers = []
        for peer in peers:
            reason = peer.absence()
            if reason:
                self.miss(peer, "all", reason)
            else:
                self.peers.append(peer)
        # Per model, what `figures.summarize` takes, and every ceiling that was measured.
        self.results = {}
        self.ceilings = {}
        self.kernel = None
        self.versions = contenders.versions(args.venv)

    def save(self):
        """Writes what there is so far: a run takes hours and may be stopped."""
        if self.args.json:
            file = partial(self.args.json)
            file.write_text(json.dumps(self.report(), indent=1) + "\n", encoding="utf-8")
            file.replace(self.args.json)

    def miss(self, peer, what, reason):
        """Notes what has no figure, and why."""
        self.missing.append({"peer": peer.name, "what": what, "reason": reason})

    def run(self, path):
        """Measures one model."""
        context = gguf_header.context_length(path)
        model = path.name
        self.ceilings[model] = {name: [] for name in CEILINGS}
        results = self.results[model] = {}
        # The file is in the page cache for everyone.
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass
        ended = set()
        for number, key in enumerate(self.args.tests, 1):
            prepared = flags_of(TESTS[key], context)
            if prepared is None:
                self.miss(self.ours, f"{model}, {key}", f"the model's context is {context}")
                continue
            test, flags = prepared
            flags += ["--model", str(path), "-r", "1", "-t", str(self.args.threads), "--json"]
            playing = [peer for peer in self.peers if peer.name not in ended]
            for round_number in range(1, self.args.rounds + 1):
                for peer in list(playing):
                    say(f"{model}, {test} ({number}/{len(self.args.tests)}), round {round_number}: {peer.name}")
                    pair, failure = self.pair(peer, flags)
                    if failure is None:
                        variants = results.setdefault((test, peer.group), {})
                        variants.setdefault(peer.name, []).append(pair)
                        for name, values in self.ceilings[model].items():
                            values.append(pair.ours.get(name))
                        continue
                    playing.remove(peer)
                    what = f"{model}, {test}"
                    if failure.is_final:
                        ended.add(peer.name)
                        what += " and later tests"
                    self.miss(peer, what, str(failure))
                playing = figures.worth_repeating(playing, {k[1]: v for k, v in results.items() if k[0] == test})
                self.save()

    def pair(self, peer, flags):
        """One measurement of ours and one of the peer, or the peer's failure. A failure of ours ends the program."""
        try:
            ours = merge(self.ours.measure(flags + ["--ceilings"], self.args.timeout))
        except contenders.Failure as failure:
            sys.exit(f"candlewick {' '.join(flags)}: {failure}")
        self.kernel = ours["kernel"]
        try:
            return figures.Pair(ours, merge(peer.measure(flags, self.args.timeout))), None
        except contenders.Failure as failure:
            return None, failure

    def report(self):
        """Everything that was found."""
        rows = [row for model, results in self.results.items() for row in figures.summarize(model, results)]
        return {
            "processor": processor(),
            "threads": self.args.threads,
            "kernel": self.kernel,
            "rounds": self.args.rounds,
            "versions": self.versions,
            "ceilings": self.ceilings,
            "rows": rows,
            "missing": self.missing,
            "pairs": [
                {"model": model, "test": test, "peer": name, "ours": pair.ours, "theirs": pair.peer}
                for model, results in self.results.items()
                for (test, _), variants in results.items()
                for name, pairs in variants.items()
                for pair in pairs
            ],
        }


def partial(path):
    """Where a file is written before it takes its place."""
    return path.with_name(path.name + ".partial")


def merge(lines):
    """A test's line, with the ceilings of the lines behind it."""
    measured = [line for line in lines if "tokens_per_second" in line]
    if len(measured) != 1:
        raise contenders.Failure(f"{len(measured)} tests instead of one", is_final=True)
    ceilings = {line["test"]: line.get(CEILINGS[line["test"]]) for line in lines if line["test"] in CEILINGS}
    return {**measured[0], **ceilings}


def processor():
    """The name of the processor, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def say(text):
    """Progress, apart from the results."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
