# SPDX-License-Identifier: Apache-2.0
"""What is done with a model's logits: text out of it, and numbers about a text."""
