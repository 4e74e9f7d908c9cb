# SPDX-License-Identifier: Apache-2.0
"""What was built and what it runs on."""

import platform
import sys

import numpy as np

from gpt2cy._version import __version__
from gpt2cy.kernels import dispatch, threads


def show_config() -> dict:
    """Print the build and the machine as gpt2cy sees them, and return them.

    Returns
    -------
    dict
        version, isa, available_isas, num_threads, openmp (a date as yyyymm, or None in a serial build),
        compiler, build, numerics_version, python, numpy, machine.

    Examples
    --------
    >>> import gpt2cy
    >>> config = gpt2cy.show_config()
    gpt2cy ...
    >>> config["isa"] in config["available_isas"]
    True
    """
    config = {
        "version": __version__,
        "isa": dispatch.isa(),
        "available_isas": dispatch.available(),
        "num_threads": threads.get_num_threads(),
        "openmp": threads.openmp_version() or None,
        "compiler": dispatch.compiler(),
        "build": dispatch.build(),
        "numerics_version": dispatch.numerics_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.machine()} {sys.platform}",
    }
    print(f"gpt2cy {__version__}")
    for key, value in config.items():
        if key != "version":
            print(f"  {key:16} {', '.join(value) if isinstance(value, list) else value}")
    if "debug" in dispatch.build():
        print("  *** DEBUG BUILD: bounds checks on, slow. Build without GPT2CY_DEBUG for speed. ***")
    if config["openmp"] is None:
        print("  *** SERIAL BUILD: no OpenMP, one thread. ***")
    return config
