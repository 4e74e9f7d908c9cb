# SPDX-License-Identifier: Apache-2.0
"""Other programs' doors to gpt2cy; each module needs the program that it is for.

lm_eval     a model for EleutherAI's lm-evaluation-harness
"""
