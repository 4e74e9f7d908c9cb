# SPDX-License-Identifier: Apache-2.0
from typing import Self

from typing_extensions import disjoint_base

@disjoint_base
class Arena:
    def __new__(cls, nbytes: int) -> Self: ...
    @property
    def nbytes(self) -> int: ...

@disjoint_base
class Spare: ...

@disjoint_base
class Result: ...

def fail_allocations(after: int) -> None: ...
