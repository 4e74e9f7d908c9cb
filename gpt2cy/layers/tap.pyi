# SPDX-License-Identifier: Apache-2.0
from contextvars import ContextVar

from typing_extensions import disjoint_base

EDITS: ContextVar[tuple]

@disjoint_base
class Observer: ...
