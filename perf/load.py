# SPDX-License-Identifier: Apache-2.0
"""How long does a model take to load from the page cache, and how much memory?

    python perf/load.py --quick
    python perf/load.py --torch /path/to/a/python/that/has/torch/and/safetensors

    gpt2cy        GPT.from_pretrained of a safetensors file: read, packed, ready to run
    numpy copy    the same file mapped and copied once: what cannot be avoided
    torch module  safetensors.torch.load_file, then load_state_dict into a plain module that is there already

Each repetition takes fresh memory. Each engine runs in a process of its own, in turns. What each loads is
first compared with the file, to the bit. Peak memory is that of a process which loads once, above what it had
before (Linux); the copy's own includes the pages of the file that it maps.
"""

import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bench
import harness
import safetensors.numpy
import shapes

from gpt2cy.weights.hf_config import to_hf

TIED = {"tie_weights": True, "lm_head_bias": False}  # as ENGINES have it
MODELS = {name: dataclasses.replace(shapes.MODELS[name], **TIED) for name in ("gpt2", "tiny")}
CHILD = """
import json, re, statistics, sys, time
sys.path.append(sys.argv[3] + "/engines")
folder, repetitions = sys.argv[1], int(sys.argv[2])
path = folder + "/model.safetensors"
{setup}
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
if not repetitions:
    {prepare}
    loaded = {load}
    sys.exit(None if {right} else "what was loaded is not what is in the file")
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
        "setup": """
import gpt2cy, safetensors.numpy, gpt2cy.weights.load, gpt2cy.weights.sources
def right(model):
    file = safetensors.numpy.load_file(path)
    found = {name: array for name, array in model.named_parameters()}
    return found.keys() == file.keys() and all((found[name] == file[name]).all() for name in file)
""",
        "prepare": "pass",
        "load": "gpt2cy.GPT.from_pretrained(folder)",
        "right": "right(loaded)",
    },
    "numpy copy": {
        "setup": "import numpy as np",
        "prepare": "pass",
        "load": "np.array(np.memmap(path, np.float32, 'r', offset=0, shape=None))",
        "right": "loaded.tobytes() == open(path, 'rb').read()",
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
def right(module):
    found = module.state_dict()
    assert found.pop("lm_head.weight").data_ptr() == found["wte.weight"].data_ptr()
    file = safetensors.torch.load_file(path)
    turned = {name: a.T if name.startswith("h.") and name.endswith(LINEAR) else a for name, a in file.items()}
    return found.keys() == turned.keys() and all(torch.equal(found[name], turned[name]) for name in turned)
def empty():
    with torch.device("meta"):
        module = GPT2(config, head_bias=False)
    module = module.to_empty(device="cpu")
    module.lm_head.weight = module.wte.weight
    return module
""",
        "prepare": "module = empty()",
        "load": "take(module)",
        "right": "right(loaded)",
    },
}


def main(argv=None):
    args = arguments(argv)
    config = MODELS[args.model]
    nbytes = 4 * config.n_params
    pythons = dict.fromkeys(ENGINES, sys.executable) | {"torch module": args.torch}
    pythons = {name: python for name, python in pythons.items() if python}
    rows, lines = [], []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), config)
        for (name, python), threads in itertools.product(pythons.items(), args.threads):
            ask(name, python, folder, threads, 0)
        for threads in args.threads:
            rows += measure(pythons, folder, threads, args)
    for row in rows:
        shown = [harness.spread(row), f"x{row['ratio']:.2f}", f"{row['peak'] / nbytes:.2f}"]
        lines.append([row["engine"], row["threads"], *shown])
    print(f"{args.model}, {nbytes / 1e6:.0f} MB of float32; {args.rounds} rounds")
    print(harness.table(["engine", "threads", "ms: median (low-high)", "/ gpt2cy", "peak / weights"], lines))
    result = {"versions": bench.versions(), "unit": "ms", "better": "less"}
    harness.finish(args, {**result, "model": args.model, "nbytes": nbytes, "rows": rows})
    return 0


def measure(pythons, folder, threads, args):
    """Time every engine in turns; return the rows."""
    rounds, peaks, names = {name: [] for name in pythons}, {}, [*pythons]
    for turn in range(args.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            answer = ask(name, pythons[name], folder, threads, args.repetitions)
            rounds[name].append(statistics.median(answer["ms"]))
            peaks.setdefault(name, answer["peak"])
    return [
        {"engine": name, "threads": threads, **figures, "peak": peaks[name]}
        for name, figures in harness.summarize(rounds).items()
    ]


def write(folder, config):
    """A folder as transformers writes it, and GPTConfig's fields for the other engine."""
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    (folder / "gpt2cy.json").write_text(json.dumps(fields))
    (folder / "config.json").write_text(json.dumps(to_hf(config)))
    safetensors.numpy.save_file(shapes.weights(config), folder / "model.safetensors")


def ask(name, python, folder, threads, repetitions):
    """Load so many times, in a process of its own; 0: once, to compare what came with the file."""
    code = CHILD.format(**ENGINES[name])
    # -P: what is in the folder that one stands in, perhaps a tree that is not built, is not imported.
    environment = harness.worker_environment(os.environ, threads) | {"GPT2CY_NUM_THREADS": str(threads)}
    command = [python, "-P", "-c", code, folder, str(repetitions), str(harness.HERE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}, not timed: {done.stderr.strip()}")
    return json.loads(done.stdout or "null")


def arguments(argv):
    parser = harness.parser(__doc__)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with torch and safetensors")
    parser.add_argument("--repetitions", type=harness.positive, default=5, help="in each round; their median")
    return harness.arguments(parser, argv, "load")


if __name__ == "__main__":
    sys.exit(main())
