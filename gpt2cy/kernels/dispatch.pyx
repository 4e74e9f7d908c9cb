# SPDX-License-Identifier: Apache-2.0
"""The kernel table: which instruction sets this build and this machine have, and which one is in use.

The best supported one is taken at import, or the one that GPT2CY_ISA names.  No other extension module
links the C kernels: they ask here, so there is one choice in the process.
"""
import os

from gpt2cy.kernels.table cimport G2_NUMERICS_VERSION, g2_table


cdef extern from "table.h" nogil:
    const g2_table *const *g2_tables()
    int g2_supported(const g2_table *table)


cdef extern from *:
    """
    #ifndef GPT2CY_BUILD
    #define GPT2CY_BUILD "unknown"
    #endif
    #ifdef __clang__
    #define G2_COMPILER "Clang " __clang_version__
    #else
    #define G2_COMPILER "GCC " __VERSION__
    #endif
    """
    const char *GPT2CY_BUILD
    const char *G2_COMPILER


cdef const g2_table *in_use = NULL


cdef const g2_table *current() noexcept nogil:
    return in_use


cdef const g2_table *find(str isa) except NULL:
    """The supported table named `isa`; ValueError with the available names where there is none."""
    cdef const g2_table *const *tables = g2_tables()
    cdef int i = 0
    while tables[i] != NULL:
        if tables[i].name.decode() == isa and g2_supported(tables[i]):
            return tables[i]
        i += 1
    raise ValueError(f"isa: expected one of {', '.join(available())} on this machine, got {isa!r}")


def available():
    """Names of the instruction sets that can run here, the best last."""
    cdef const g2_table *const *tables = g2_tables()
    cdef int i = 0
    names = []
    while tables[i] != NULL:
        if g2_supported(tables[i]):
            names.append(tables[i].name.decode())
        i += 1
    return names


def isa():
    """Name of the instruction set in use."""
    return in_use.name.decode()


def fused(str name):
    """Whether `name` has a fused multiply-add, and so equals ``ref`` to the bit."""
    return bool(find(name).fused)


def use(str name):
    """Take another instruction set from the next call on; for tests and benchmarks."""
    global in_use
    in_use = find(name)


def compiler():
    """Name and version of the C compiler."""
    return G2_COMPILER.decode()


def build():
    """How this was built: "optimised", "NOT OPTIMISED" or "debug", and whether serial."""
    return GPT2CY_BUILD.decode()


def numerics_version():
    """Raised by every release that changes a bit of any result."""
    return G2_NUMERICS_VERSION


def _start():
    # Directives switch negative indices off in compiled modules: the best is the last of the list.
    best = max(enumerate(available()))[1]
    try:
        use(os.environ.get("GPT2CY_ISA") or best)
    except ValueError as error:
        raise ValueError(f"GPT2CY_ISA: {error}") from None


_start()
