# SPDX-License-Identifier: Apache-2.0
"""Does a kernel need more instructions than it did? Counted by callgrind, whatever else the machine is doing.

    python perf/instructions.py            compare with perf/results/instructions-MACHINE.json
    python perf/instructions.py --write    count anew and keep the counts

instructions.c runs every kernel once on fixed inputs, compiled as the package compiles it. A count belongs to
a version of a compiler: with the recorded one a kernel may need 2 % more, with another version of it 10 %.
callgrind knows no AVX-512. Exit code 1: some kernel needs more; 2: nothing could be compared.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import csrc
import harness

SOURCE = harness.HERE / "instructions.c"
RECORDED = harness.RESULTS / f"instructions-{csrc.MACHINE}.json"
KERNELS = re.findall(r"count_(\w+)\(void\)", SOURCE.read_text())
ISAS = {"x86_64": ("ref", "base", "avx2"), "aarch64": ("ref", "neon")}.get(csrc.MACHINE, ("ref",))
SAME_COMPILER, OTHER_VERSION = 0.02, 0.10


class CannotCount(Exception):
    """Says why."""


def compiler_version(compiler="cc"):
    """Its first line, which names it, and its version."""
    try:
        said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotCount(f"no C compiler {compiler!r} here: {error}") from None
    return said.splitlines()[0]


def family(version):
    """The compiler without its version: "cc (Debian 12.2.0-14) 12.2.0" and any other GCC give "gcc"."""
    return "clang" if "clang" in version.lower() else "gcc"


def count(compiler="cc"):
    """{isa: {kernel: instructions}} of every instruction set that can be counted on this machine."""
    if shutil.which("valgrind") is None:
        raise CannotCount("no valgrind here")
    compiler_version(compiler)
    with tempfile.TemporaryDirectory() as folder:
        program = csrc.link(SOURCE, csrc.objects(Path(folder), compiler), Path(folder), compiler)
        return {isa: counts for isa in ISAS if (counts := count_isa(program, isa, Path(folder)))}


def count_isa(program, isa, folder):
    """{kernel: instructions}, empty where valgrind or the processor does not know the instruction set."""
    output = folder / f"counted-{isa}"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", "--toggle-collect=count_*"]
    command += [f"--dump-after=count_{kernel}" for kernel in KERNELS]
    done = subprocess.run([*command, program, isa], capture_output=True, text=True)
    if done.returncode == 3:
        return {}
    if done.returncode:
        raise CannotCount(f"valgrind cannot run {isa}: {done.stderr.strip()[-500:]}")
    counts = {}
    for dump in folder.glob(f"counted-{isa}.*"):
        text = dump.read_text()
        kernel = re.search(r"^desc: Trigger: --dump-after=count_(\w+)$", text, re.MULTILINE)
        counts[kernel[1]] = int(re.search(r"^totals: (\d+)", text, re.MULTILINE)[1])
    return {kernel: counts[kernel] for kernel in KERNELS}


def compare(recorded, counted, allowed):
    """Lines of a table, and those kernels that need more than `allowed` beyond what was recorded."""
    lines, worse = [], []
    for isa, kernels in counted.items():
        for kernel, now in kernels.items():
            before = recorded.get(isa, {}).get(kernel)
            more = now / before - 1 if before else 0.0
            lines.append([isa, kernel, before or "-", now, f"{100 * more:+.1f} %"])
            if before and now > before * (1 + allowed):
                worse.append(f"{isa} {kernel}: {now} instructions, {before} were recorded")
    return lines, worse


def main(argv=None):
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--write", action="store_true", help=f"keep the counts in {RECORDED.name}")
    parser.add_argument("--file", type=Path, default=RECORDED, help="instead of that file")
    args = parser.parse_args(argv)
    try:
        counted, version = count(), compiler_version()
    except CannotCount as error:
        print(error, file=sys.stderr)
        return 2
    if args.write:
        valgrind = subprocess.run(["valgrind", "--version"], capture_output=True, text=True).stdout.strip()
        result = {"unit": "instructions", "better": "less", "compiler": version, "valgrind": valgrind}
        harness.write(args.file, "instructions", {**result, "counts": counted})
        print(f"wrote {args.file}")
        return 0
    if not args.file.exists():
        print(f"nothing is recorded in {args.file}", file=sys.stderr)
        return 2
    recorded = json.loads(args.file.read_text())
    if family(recorded["compiler"]) != family(version):
        print(f"recorded with {recorded['compiler']}, not comparable with {version}", file=sys.stderr)
        return 2
    allowed = SAME_COMPILER if recorded["compiler"] == version else OTHER_VERSION
    lines, worse = compare(recorded["counts"], counted, allowed)
    print(f"recorded with {recorded['compiler']}; here {version}: {100 * allowed:.0f} % are allowed\n")
    print(harness.table(["isa", "kernel", "recorded", "now", "more"], lines))
    for line in worse:
        print(f"MORE: {line}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
