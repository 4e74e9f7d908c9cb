# SPDX-License-Identifier: Apache-2.0
"""What was built and what it runs on."""

import importlib
import platform
import sys

import numpy as np

from gpt2cy._version import __version__


def _compiled(name):
    """Import a compiled module, or say what is wrong where there is none."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            "gpt2cy is not compiled here. In its source tree, build it in place (python setup.py build_ext "
            "--inplace), or install it (pip install .) and run from another folder."
        ) from error


dispatch, threads = _compiled("gpt2cy.kernels.dispatch"), _compiled("gpt2cy.kernels.threads")


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
    if "NOT OPTIMISED" in dispatch.build():
        print("  *** SLOW BUILD: not optimised. Build without GPT2CY_OPTIMISE for speed. ***")
    if config["openmp"] is None:
        print("  *** SERIAL BUILD: no OpenMP, one thread. ***")
    return config
