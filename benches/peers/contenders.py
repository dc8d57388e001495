"""Who takes part in a comparison: how each is asked, whether it is there, and how it is installed."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

from common import UNSUPPORTED_MODEL

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OURS = "candlewick"
OTHER_BUILD = "other-build"

# What is installed, each by itself: one that fails does not keep the others away. The versions that the scripts beside this
# file were written for and that docs/performance.md has figures of.
PACKAGES = {"llama-cpp-python": "0.3.36", "xllamacpp": "2026.10.11549", "mistralrs": "0.9.5"}


@dataclasses.dataclass
class Contender:
    """One program with its flags. Variants of one peer share their group, of which the better one counts."""

    name: str
    group: str
    command: list
    environment: dict = dataclasses.field(default_factory=dict)
    # What must exist, and what to do where it does not.
    needs: pathlib.Path = None
    advice: str = ""
    module: str = None

    def absence(self):
        """Why it cannot take part; None if it can."""
        if not self.needs.exists():
            return f"{self.needs} is not there: {self.advice}"
        if self.module:
            found = subprocess.run([self.command[0], "-c", f"import {self.module}"], capture_output=True, text=True)
            if found.returncode != 0:
                return f"the package does not load: {_last_line(found.stderr)}"
        return None

    def measure(self, flags, timeout):
        """The lines of JSON of one test, in a process of its own. Raises `Failure`."""
        environment = dict(os.environ, **self.environment)
        try:
            done = subprocess.run(
                self.command + flags, capture_output=True, text=True, timeout=timeout, env=environment
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"not done after {timeout} s", is_final=True) from None
        if done.returncode != 0:
            text = _last_line(done.stderr) or f"exit status {done.returncode}"
            raise Failure(text, is_final=done.returncode == UNSUPPORTED_MODEL)
        try:
            return [json.loads(line) for line in done.stdout.splitlines()]
        except ValueError:
            raise Failure(f"answers {done.stdout[:200]!r}, which is not JSON", is_final=True) from None


class Failure(Exception):
    """A test that gave no figure; `is_final` where the other tests of this model need not be tried."""

    def __init__(self, text, is_final):
        super().__init__(text)
        self.is_final = is_final


def _last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def everyone(threads, venv, kernel=None, program=None, against=None):
    """Our side, and all peers. `program` and `against` are builds of our own: the one that is measured instead of the
    usual one, and one more peer."""
    python = venv / "bin" / "python"
    rayon = {"RAYON_NUM_THREADS": str(threads)}

    def script(name, group, file, module, flags=(), environment=None):
        return Contender(
            name,
            group,
            [str(python), str(HERE / file), *flags],
            environment or {},
            needs=python,
            advice="run compare.py --setup",
            module=module,
        )

    def built(name, path, build, environment=None, flags=()):
        return Contender(name, name, [str(path), *flags], environment or {}, needs=path, advice=build)

    level = ["--kernel", kernel] if kernel else []
    usual = ROOT / "target" / "release" / "examples" / "bench"
    ours = built(OURS, program or usual, "run cargo build --release --example bench", flags=level)
    candle = venv / "candle" / "release" / "examples" / "peer_candle"
    other = [built(OTHER_BUILD, against, "name a build of the example bench", flags=level)] if against else []
    return ours, other + [
        script("llama.cpp, repacked", "llama.cpp", "run_llama_cpp.py", "llama_cpp"),
        script("llama.cpp, as stored", "llama.cpp", "run_llama_cpp.py", "llama_cpp", ["--no-repack"]),
        # Without flash attention, decoding behind a depth can be faster on a CPU.
        script(
            "llama.cpp, as stored, plain attention",
            "llama.cpp",
            "run_llama_cpp.py",
            "llama_cpp",
            ["--no-repack", "--no-flash-attention"],
        ),
        script("xllamacpp, repacked", "xllamacpp", "run_xllamacpp.py", "xllamacpp"),
        script("xllamacpp, as stored", "xllamacpp", "run_xllamacpp.py", "xllamacpp", ["--no-repack"]),
        script("mistralrs", "mistralrs", "run_mistralrs.py", "mistralrs", environment=rayon),
        built("candle-transformers", candle, "run compare.py --setup", environment=rayon),
    ]


def versions(venv):
    """The installed version of each package."""
    code = "import importlib.metadata as m, json\n"
    code += "print(json.dumps({d.metadata['Name'].replace('_', '-'): d.version for d in m.distributions()}))"
    python = venv / "bin" / "python"
    if not python.exists():
        return {}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return {name: found[name] for name in PACKAGES if name in found}


def set_up(venv):
    """Builds our program and candle's, makes the environment and installs the peers. True if all of it worked."""
    # candle chooses its vector code at compile time, so it is built for this processor; ours chooses at run time.
    native = dict(os.environ, RUSTFLAGS="-C target-cpu=native")
    steps = [
        (
            "the program bench",
            ["cargo", "build", "--release", "--example", "bench", "--target-dir", str(ROOT / "target")],
            None,
        ),
        (
            "candle-transformers for this processor",
            ["cargo", "build", "--release", "--example", "peer_candle", "--target-dir", str(venv / "candle")],
            native,
        ),
        ("the Python environment", [sys.executable, "-m", "venv", str(venv)], None),
    ]
    # The source distribution is built for this processor, without its part for pictures and sound.
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--no-binary", "llama-cpp-python"]
    built = dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
    steps += [(name, [*pip, f"{name}=={version}"], built) for name, version in PACKAGES.items()]
    failed = []
    for name, command, environment in steps:
        print(f"== {name}", flush=True)
        try:
            succeeded = subprocess.run(command, cwd=ROOT, env=environment).returncode == 0
        except OSError as error:
            print(f"{command[0]}: {error}", flush=True)
            succeeded = False
        if not succeeded:
            failed.append(name)
    for name in failed:
        print(f"failed: {name}")
    return not failed
