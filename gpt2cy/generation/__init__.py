# SPDX-License-Identifier: Apache-2.0
"""What is done with a model's logits: numbers about a text (scoring)."""
