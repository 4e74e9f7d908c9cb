# SPDX-License-Identifier: Apache-2.0
"""Looking into a running model.  ``record`` sees every named point of a forward pass (layers/tap.pxd)."""

from gpt2cy.inspection.record import record

__all__ = ["record"]
