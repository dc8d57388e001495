"""What needs no peer: ratios, tables, token ids, tests' flags, and the header of GGUF files.

python3 -m unittest discover benches/peers
"""

import contextlib
import io
import json
import pathlib
import struct
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import common
import compare
import contenders
import figures
import gguf_header


def pair(ours, peer):
    """A round with these rates."""
    return figures.Pair(
        {"test": "tg64", "tokens_per_second": ours, "load_s": 1.0, "peak_rss_bytes": 100, "decode_bytes": 50}
        | {"read_bandwidth": 1000.0},
        {"test": "tg64", "tokens_per_second": peer, "load_s": 2.0, "peak_rss_bytes": 300},
    )


class Ratios(unittest.TestCase):
    """From rounds to rows."""

    def test_neighbours_are_divided_and_not_medians(self):
        pairs = [pair(10.0, 5.0), pair(30.0, 5.0), pair(4.0, 1.0)]
        self.assertEqual(figures.ratios(pairs, figures.RATE), [2.0, 6.0, 4.0])
        spread = figures.Spread.of(figures.ratios(pairs, figures.RATE))
        self.assertEqual((spread.least, spread.median, spread.greatest), (2.0, 4.0, 6.0))
        self.assertEqual(spread.text(), "2.00 – 4.00 – 6.00")

    def test_above_one_is_better_for_time_and_memory_too(self):
        self.assertEqual(figures.ratios([pair(1.0, 1.0)], figures.LOAD), [2.0])
        self.assertEqual(figures.ratios([pair(1.0, 1.0)], figures.MEMORY), [3.0])

    def test_a_round_without_a_figure_is_left_out(self):
        lacking = figures.Pair({"load_s": 1.0}, {"load_s": None})
        self.assertEqual(figures.ratios([lacking], figures.LOAD), [])
        self.assertIsNone(figures.Spread.of([]))

    def test_the_better_variant_of_a_peer_counts_test_by_test(self):
        variants = {"repacked": [pair(8.0, 4.0), pair(8.0, 4.0)], "as stored": [pair(8.0, 2.0), pair(8.0, 5.0)]}
        self.assertEqual(figures.best_variant(variants, figures.RATE), "repacked")
        rows = figures.summarize("m", {("tg64", "llama.cpp"): variants})
        self.assertEqual([row["measure"] for row in rows], [figures.RATE, figures.MEMORY, figures.LOAD])
        self.assertEqual(rows[0]["variant"], "repacked")
        self.assertEqual(rows[0]["ratio"], {"least": 2.0, "median": 2.0, "greatest": 2.0})
        self.assertEqual(rows[0]["share_of_read_bandwidth"], 0.4)

    def test_a_variant_far_behind_is_not_repeated_and_does_not_come_back(self):
        peers = [types.SimpleNamespace(name=name, group="llama.cpp") for name in ("a", "b", "c")]
        results = {"llama.cpp": {"a": [pair(9.0, 10.0)], "b": [pair(9.0, 9.0)], "c": [pair(9.0, 8.0)]}}
        left = figures.worth_repeating(peers, results)
        self.assertEqual([peer.name for peer in left], ["a", "b"])
        variants = {"a": [pair(9.0, 10.0), pair(9.0, 4.0)], "c": [pair(9.0, 8.0)]}
        self.assertEqual(figures.best_variant(variants, figures.RATE), "a")

    def test_the_page_has_every_row_and_every_absence(self):
        variants = {"repacked": [pair(8.0, 4.0)]}
        report = {
            "processor": "P",
            "threads": 2,
            "kernel": "avx2",
            "rounds": 1,
            "versions": {"xllamacpp": "1"},
            "ceilings": {"m": {"read_bandwidth": [2e10], "int8_peak": [None], "barrier_latency": [1e-6]}},
            "rows": figures.summarize("m", {("tg64", "llama.cpp"): variants}),
            "missing": [{"peer": "mistralrs", "what": "all", "reason": "is not there"}],
        }
        page = figures.markdown(report)
        self.assertIn("| tg64 | repacked | 8.0 tok/s | 4.0 tok/s | 2.00 – 2.00 – 2.00 | 40% of the bandwidth |", page)
        self.assertIn("read bandwidth 20.00 – 20.00 – 20.00 GB/s", page)
        self.assertIn("- mistralrs: all: is not there", page)


class Asking(unittest.TestCase):
    """Tests, flags and answers."""

    def test_depths_leave_room_in_the_context(self):
        self.assertEqual(compare.flags_of(compare.TESTS["tg64@d8192"], 32768)[0], "tg64@d8192")
        name, flags = compare.flags_of(compare.TESTS["tg64@d8192"], 8192)
        self.assertEqual((name, flags[flags.index("-d") + 1]), ("tg64@d8127", "8127"))
        self.assertIsNone(compare.flags_of(compare.TESTS["pp2048"], 2048))
        self.assertEqual(compare.flags_of(compare.TESTS["batch8"], 8192)[0], "tg32@d128@b8")
        self.assertEqual(compare.flags_of(compare.TESTS["batch1"], 8192)[0], common.test_name(32, 128, 1))

    def test_every_preset_names_tests_that_exist(self):
        for name in compare.DEFAULT_TESTS + compare.QUICK_TESTS:
            self.assertIn(name, compare.TESTS)

    def test_ids_are_those_of_our_own_bench(self):
        ids = common.spread_ids(3, 49152, 1)
        self.assertEqual(ids, common.spread_ids(5, 49152, 1)[:3])
        self.assertNotEqual(ids, common.spread_ids(3, 49152, 2))
        state = (3 * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        self.assertEqual(ids[0], (state >> 33) % 49152)

    def test_ceilings_join_the_line_of_their_test(self):
        merged = compare.merge(
            [
                {"test": "pp32", "tokens_per_second": 5.0},
                {"test": "read_bandwidth", "bytes_per_second": 7.0},
                {"test": "int8_peak", "multiply_adds_per_second": None},
            ]
        )
        self.assertEqual(merged, {"test": "pp32", "tokens_per_second": 5.0, "read_bandwidth": 7.0, "int8_peak": None})
        with self.assertRaises(contenders.Failure):
            compare.merge([])


class Contenders(unittest.TestCase):
    """Processes that answer, fail, stall, or are not there."""

    def contender(self, code):
        """A contender that runs a piece of Python."""
        return contenders.Contender("x", "x", [sys.executable, "-c", code], needs=pathlib.Path(sys.executable))

    def test_an_answer_is_read_line_by_line(self):
        lines = self.contender("print('{\"test\": \"pp1\"}')").measure([], 60)
        self.assertEqual(lines, [{"test": "pp1"}])

    def test_failures_say_why(self):
        for code, timeout, word in [
            ("import sys; sys.exit('no such layer')", 60, "no such layer"),
            ("print('hello')", 60, "not JSON"),
            ("import time; time.sleep(60)", 0.2, "not done"),
        ]:
            with self.assertRaises(contenders.Failure) as caught:
                self.contender(code).measure([], timeout)
            self.assertIn(word, str(caught.exception))

    def test_absence_names_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            _, peers = contenders.everyone(2, pathlib.Path(folder))
            for peer in peers:
                self.assertIn("compare.py --setup", peer.absence())

    def test_what_a_peer_lacks_is_noted_once_and_not_dropped(self):
        for status, tests in ((3, 2), (4, 1)):
            with self.subTest(status):
                self.assertEqual(len(self.reasons(status, ["pp32", "pp128"])), tests)

    def reasons(self, status, tests):
        """What is noted of a peer that ends with this status."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        saved = pathlib.Path(folder.name) / "figures.json"
        args = types.SimpleNamespace(
            tests=tests, rounds=2, threads=2, timeout=60, venv=pathlib.Path("none"), json=saved
        )
        ours = self.contender("print('{\"test\": \"pp32\", \"tokens_per_second\": 2.0, \"kernel\": \"avx2\"}')")
        lacking = self.contender(f"import sys; print('no batches', file=sys.stderr); sys.exit({status})")
        comparison = compare.Comparison(args, ours, [lacking])
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(header(4096))
            file.flush()
            with contextlib.redirect_stderr(io.StringIO()):
                comparison.run(pathlib.Path(file.name))
        report = comparison.report()
        self.assertEqual(json.loads(saved.read_text(encoding="utf-8")), report, "what is saved after the last round")
        with contextlib.redirect_stdout(io.StringIO()) as table, mock.patch("sys.argv", ["", "--table", str(saved)]):
            compare.main()
        self.assertEqual(table.getvalue(), figures.markdown(report) + "\n")
        reasons = [missing["reason"] for missing in report["missing"]]
        self.assertEqual(set(reasons), {"no batches"})
        return reasons


def header(context):
    """A GGUF header with a string, an array of strings, an array of numbers, and the context's length."""
    text = lambda value: struct.pack("<Q", len(value)) + value
    entries = [
        text(b"general.name") + struct.pack("<I", 8) + text(b"tiny"),
        text(b"tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"b"),
        text(b"scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<ff", 1, 2),
        text(b"llama.context_length") + struct.pack("<II", 4, context),
    ]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries)


class Header(unittest.TestCase):
    """GGUF headers, whole and broken."""

    def test_the_context_is_found_behind_other_entries(self):
        self.assertEqual(gguf_header.read_context_length(io.BytesIO(header(8192))), 8192)

    def test_what_is_broken_is_an_error(self):
        whole = header(8192)
        for data in (b"", b"GGML" + whole[4:], whole[:-1], whole[:24] + whole[24:60], whole[:4] + b"\x09" + whole[5:]):
            with self.assertRaises(gguf_header.HeaderError):
                gguf_header.read_context_length(io.BytesIO(data))


if __name__ == "__main__":
    unittest.main()
