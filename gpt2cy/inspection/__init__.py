# SPDX-License-Identifier: Apache-2.0
"""Looking into a running model.

record     every named point of a forward pass (layers/tap.pxd)
profile    time, flops and bytes of every operation
"""

from gpt2cy.inspection.profiling import Profile, profile
from gpt2cy.inspection.record import record

__all__ = ["Profile", "profile", "record"]
