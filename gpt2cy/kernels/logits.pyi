# SPDX-License-Identifier: Apache-2.0
# For Cython only: see logits.pxd.
