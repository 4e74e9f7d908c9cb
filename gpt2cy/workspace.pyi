# SPDX-License-Identifier: Apache-2.0
from typing_extensions import disjoint_base

@disjoint_base
class Workspace: ...

def parts_of(
    lengths: list[int], positions: list[int], width: int, inner: int, n_threads: int
) -> list[tuple[int, list[list[int]]]]: ...
