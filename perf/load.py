# SPDX-License-Identifier: Apache-2.0
"""How long a model of gpt2's size takes to load from the page cache, and how much memory.

    python perf/load.py
    python perf/load.py --torch /path/to/a/python/that/has/torch/and/safetensors

    gpt2cy        GPT.from_pretrained of a safetensors file: read, packed, ready to run
    numpy copy    the same file mapped and copied once: what cannot be avoided
    torch module  safetensors.torch.load_file, then load_state_dict into a plain module that is there already

Each repetition takes fresh memory. Each engine runs in a process of its own, in turns. What gpt2cy loads is
first compared with what was written. Peak memory is that of a process which loads once, above what it had
before (Linux); the copy's own includes the pages of the file that it maps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np
import safetensors.numpy
import shapes

import gpt2cy
from gpt2cy.weights.hf_config import to_hf

CHILD = """
import json, re, statistics, sys, time
sys.path.append(sys.argv[3] + "/engines")
folder, repetitions = sys.argv[1], int(sys.argv[2])
path = folder + "/model.safetensors"
{setup}
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
before, grown, times = peak(), None, []
for _ in range(repetitions):
    {prepare}
    start = time.perf_counter()
    loaded = {load}
    times.append(1e3 * (time.perf_counter() - start))
    grown = peak() - before if grown is None else grown
    del loaded
print(json.dumps({{"ms": times, "peak": grown}}))
"""

ENGINES = {
    "gpt2cy": {
        "setup": "import gpt2cy, safetensors, gpt2cy.weights.load, gpt2cy.weights.sources",
        "prepare": "pass",
        "load": "gpt2cy.GPT.from_pretrained(folder)",
    },
    "numpy copy": {
        "setup": "import numpy as np",
        "prepare": "pass",
        "load": "np.array(np.memmap(path, np.float32, 'r', offset=0, shape=None))",
    },
    "torch module": {
        "setup": """
import torch, safetensors.torch
from torch_engine import GPT2
config = json.load(open(folder + "/gpt2cy.json"))
LINEAR = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
def take(module):
    state = safetensors.torch.load_file(path)
    state = {name: a.T if name.startswith("h.") and name.endswith(LINEAR) else a for name, a in state.items()}
    state["lm_head.weight"] = state["wte.weight"]
    module.load_state_dict(state)
    return module
def empty():
    with torch.device("meta"):
        module = GPT2(config, head_bias=False)
    module = module.to_empty(device="cpu")
    module.lm_head.weight = module.wte.weight
    return module
""",
        "prepare": "module = empty()",
        "load": "take(module)",
    },
}


def main(argv=None):
    """Measure; return 1 if a model did not come back as it was written."""
    args = arguments(argv)
    config = shapes.MODELS[args.model]
    pythons = dict.fromkeys(ENGINES, sys.executable) | {"torch module": args.torch}
    pythons = {name: python for name, python in pythons.items() if python}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), config)
        if not comes_back(Path(folder)):
            print("the weights that were loaded are not those that were written", file=sys.stderr)
            return 1
        rounds = {name: [] for name in pythons}
        peaks = {}
        for turn in range(args.rounds):
            for name in [*pythons][turn % len(pythons) :] + [*pythons][: turn % len(pythons)]:
                answer = ask(name, pythons[name], folder, args)
                rounds[name].append(statistics.median(answer["ms"]))
                peaks.setdefault(name, answer["peak"])
    nbytes = 4 * config.n_params
    figures = harness.summarize(rounds)
    lines = [
        [
            name,
            f"{f['median']:.1f} ({f['low']:.1f}-{f['high']:.1f})",
            f"x{f['ratio']:.2f}",
            f"{peaks[name] / nbytes:.2f}",
        ]
        for name, f in figures.items()
    ]
    print(f"{args.model}, {nbytes / 1e6:.0f} MB of float32; threads: {args.threads}; {args.rounds} rounds")
    print(harness.table(["engine", "ms: median (low-high)", "/ gpt2cy", "peak / weights"], lines))
    if args.output:
        result = {
            "machine": harness.machine(), "threads": args.threads, "model": args.model, "nbytes": nbytes,
            "versions": {"gpt2cy": gpt2cy.__version__, "numpy": np.__version__},
            "rows": [{"engine": name, **f, "peak": peaks[name]} for name, f in figures.items()],
        }  # fmt: skip
        harness.write(args.output, "load", result)
        print(f"wrote {args.output}")
    return 0


def write(folder, config):
    """A folder as transformers writes it, and GPTConfig's fields for the other engine."""
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    (folder / "gpt2cy.json").write_text(json.dumps(fields))
    (folder / "config.json").write_text(json.dumps(to_hf(config)))
    safetensors.numpy.save_file(shapes.weights(config), folder / "model.safetensors")


def comes_back(folder):
    written = safetensors.numpy.load_file(folder / "model.safetensors")
    loaded = gpt2cy.GPT.from_pretrained(folder).named_parameters()
    return all(np.array_equal(array, written.pop(name)) for name, array in loaded) and not written


def ask(name, python, folder, args):
    code = CHILD.format(**ENGINES[name])
    environment = harness.worker_environment(os.environ, args.threads) | {
        "GPT2CY_NUM_THREADS": str(args.threads)
    }
    command = [python, "-c", code, folder, str(args.repetitions), str(harness.HERE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    return json.loads(done.stdout)


def arguments(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tied = [name for name, config in shapes.MODELS.items() if config.tie_weights]
    parser.add_argument("--model", choices=tied, default="gpt2")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with torch and safetensors")
    parser.add_argument("--threads", type=int, default=gpt2cy.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=5, help="in each round; their median counts")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
