# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of GPT-2 models: their formats, names and configurations."""
