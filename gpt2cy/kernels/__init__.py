# SPDX-License-Identifier: Apache-2.0
"""Cython drivers over the C kernels: tiling, packing and threads.

    gemm   attention   rows        the only parallel loops
      |        |         |
      threads  packed  memory      who computes, with what, where
      |
    dispatch                       the one holder of the kernel table (csrc/table.h)

``raw`` gives tests and benchmarks a door to all of it.  Nothing here knows a layer or a model.
"""
