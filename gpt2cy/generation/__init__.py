# SPDX-License-Identifier: Apache-2.0
"""Text out of a model."""
