# SPDX-License-Identifier: Apache-2.0
"""Cython drivers over the C kernels: tiling, packing and threads.

    gemm  attention  rows  logits    the parallel loops; one more, around a block, is in layers/block
      |       |        |      |
      threads    packed    memory    who computes, with what, where
      |                      |
    dispatch               host      the one holder of the kernel table; what memory is left

``raw`` gives tests and benchmarks a door to all of it.  Nothing here knows a layer or a model.
"""
