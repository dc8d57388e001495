"""From the figures of the rounds to ratios, and to a page that shows them.

A ratio is made of two measurements that stood next to each other, and is above 1 where candlewick is better.
"""

import dataclasses
import statistics


@dataclasses.dataclass
class Pair:
    """One round of one test: ours, and the peer's right after it."""

    ours: dict
    peer: dict


@dataclasses.dataclass
class Spread:
    """Least, median and greatest of some figures."""

    least: float
    median: float
    greatest: float

    @staticmethod
    def of(values):
        """None where there is none."""
        values = [value for value in values if value is not None]
        if not values:
            return None
        return Spread(min(values), statistics.median(values), max(values))

    def text(self, digits=2):
        """`least – median – greatest`."""
        return " – ".join(f"{value:,.{digits}f}" for value in (self.least, self.median, self.greatest))


# A variant below this part of its peer's best is not measured again.
CLOSE = 0.85

# Fields of a measurement: whether more is better, and what the column says.
RATE, LOAD, MEMORY = "tokens_per_second", "load_s", "peak_rss_bytes"
MORE_IS_BETTER = {RATE: True, LOAD: False, MEMORY: False}


def ratios(pairs, field):
    """Per round, how many times better ours is; rounds without a figure are left out."""
    found = []
    for pair in pairs:
        ours, peer = pair.ours.get(field), pair.peer.get(field)
        if not ours or not peer:
            continue
        found.append(ours / peer if MORE_IS_BETTER[field] else peer / ours)
    return found


def best_variant(variants, field):
    """Of a peer's variants, {name: pairs}, the one whose own median is best: ours is compared with that one.

    One that was left out of later rounds was far behind and does not come back by having fewer figures.
    """
    measured = {}
    most = max(len(pairs) for pairs in variants.values())
    for name, pairs in variants.items():
        if len(pairs) < most:
            continue
        spread = Spread.of(pair.peer.get(field) for pair in pairs)
        if spread is not None:
            measured[name] = spread.median
    if not measured:
        return None
    choose = max if MORE_IS_BETTER[field] else min
    return choose(measured, key=measured.get)


def worth_repeating(peers, results):
    """The peers of further rounds: without variants that are far behind another one of their peer.

    `results` is {group: {variant: pairs}} of one test.
    """

    def rate(peer):
        return Spread.of(pair.peer.get(RATE) for pair in results[peer.group][peer.name]).median

    def is_close(peer):
        return rate(peer) >= CLOSE * max(rate(other) for other in peers if other.group == peer.group)

    return [peer for peer in peers if is_close(peer)]


def share_of_bandwidth(ours):
    """The part of the read bandwidth of the same seconds that decoding one sequence uses for weights."""
    decode_bytes, bandwidth = ours.get("decode_bytes"), ours.get("read_bandwidth")
    if not decode_bytes or not bandwidth or ours["test"].startswith("pp") or "@" in ours["test"]:
        return None
    return decode_bytes * ours[RATE] / bandwidth


def share_of_peak(ours):
    """The part of the integer peak that a prompt's products use, attention not counted."""
    macs, peak = ours.get("macs_per_prompt_token"), ours.get("int8_peak")
    if not macs or not peak or not ours["test"].startswith("pp"):
        return None
    return macs * ours[RATE] / peak


def summarize(model, results):
    """Rows of a model's table from {(test, group): {variant: pairs}}, in the order of the dictionary."""
    rows = []
    for (test, group), variants in results.items():
        rows += _row(model, test, group, variants, RATE)
    # Memory and loading belong to a process and not to a test: those of a peer's first test tell them.
    told = set()
    for (test, group), variants in results.items():
        if group not in told:
            told.add(group)
            rows += _row(model, test, group, variants, MEMORY)
            rows += _row(model, test, group, variants, LOAD)
    return rows


def _row(model, test, group, variants, field):
    name = best_variant(variants, field)
    if name is None:
        return []
    pairs = variants[name]
    ratio = Spread.of(ratios(pairs, field))
    if ratio is None:
        return []
    row = {
        "model": model,
        "test": test,
        "measure": field,
        "peer": group,
        "variant": name,
        "ours": dataclasses.asdict(Spread.of(pair.ours.get(field) for pair in pairs)),
        "theirs": dataclasses.asdict(Spread.of(pair.peer.get(field) for pair in pairs)),
        "ratio": dataclasses.asdict(ratio),
        "rounds": len(pairs),
    }
    if field == RATE:
        for key, share in (("share_of_read_bandwidth", share_of_bandwidth), ("share_of_int8_peak", share_of_peak)):
            spread = Spread.of(share(pair.ours) for pair in pairs)
            row[key] = None if spread is None else spread.median
    return [row]


def markdown(report):
    """The page: a table per model, the ceilings, and who was not measured and why."""
    lines = [
        f"{report['processor']}, {report['threads']} threads, kernels `{report['kernel']}`, up to {report['rounds']} rounds;"
        f" peers: {_versions(report['versions'])}.",
        "",
    ]
    for model, ceilings in report["ceilings"].items():
        lines += [f"### {model}", "", _ceilings(ceilings), ""]
        lines += ["| test | peer | candlewick | peer's | ratio: least – median – greatest | of the ceiling |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_line(row) for row in report["rows"] if row["model"] == model]
        lines += [""]
    if report["missing"]:
        lines += ["Not measured:", ""]
        by_reason = {}
        for missing in report["missing"]:
            by_reason.setdefault((missing["peer"], missing["reason"]), []).append(missing["what"])
        lines += [f"- {peer}: {'; '.join(what)}: {reason}" for (peer, reason), what in by_reason.items()]
        lines += [""]
    return "\n".join(lines)


def _versions(versions):
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "none installed"


def _ceilings(ceilings):
    texts = []
    for key, name, unit, factor in (
        ("read_bandwidth", "read bandwidth", "GB/s", 1e-9),
        ("int8_peak", "int8 peak", "GMAC/s", 1e-9),
        ("barrier_latency", "barrier", "µs", 1e6),
    ):
        spread = Spread.of(value * factor for value in ceilings[key] if value is not None)
        if spread is not None:
            texts.append(f"{name} {spread.text()} {unit}")
    return "Ceilings beside the runs: " + ("; ".join(texts) or "not measured") + "."


def _line(row):
    unit, factor, digits, name = {
        RATE: ("tok/s", 1, 1, row["test"]),
        MEMORY: ("MB", 1e-6, 0, f"peak RSS ({row['test']})"),
        LOAD: ("s", 1, 2, "load time"),
    }[row["measure"]]
    ours, theirs = (f"{row[side]['median'] * factor:,.{digits}f} {unit}" for side in ("ours", "theirs"))
    share = ""
    if row.get("share_of_read_bandwidth"):
        share = f"{row['share_of_read_bandwidth']:.0%} of the bandwidth"
    elif row.get("share_of_int8_peak"):
        share = f"{row['share_of_int8_peak']:.0%} of the int8 peak"
    return f"| {name} | {row['variant']} | {ours} | {theirs} | {Spread(**row['ratio']).text()} | {share} |"
