# SPDX-License-Identifier: Apache-2.0
"""The one place that says the version."""

__version__ = "0.1.0"
