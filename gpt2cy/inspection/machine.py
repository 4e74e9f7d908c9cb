# SPDX-License-Identifier: Apache-2.0
"""What this machine gives our own kernels: multiply-adds a second, and bytes a second from memory.

    peak        a product whose numbers stay in the second-level cache
    bandwidth   one row times a matrix that no cache holds: each weight is read once, and used once

Both are the best of many short samples, since a sample that somebody disturbed says nothing of the machine.
perf/limits.c measures the same limits without our kernels: ours reach 80 to 95 % of those.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt2cy.kernels import dispatch, host, raw
from gpt2cy.kernels.threads import get_num_threads

_MIB = 1 << 20
_NEAR = (336, 384, 1024)  # m, K, N of the product that measures the peak
_DEEP = 1024  # K of the matrix that measures the bandwidth


@dataclass(frozen=True)
class Machine:
    """What was measured.

    Attributes
    ----------
    peak : float
        GFLOP/s; a multiply-add counts as two.
    bandwidth : float
        GB/s read from memory.
    isa : str
    n_threads : int
    """

    peak: float
    bandwidth: float
    isa: str
    n_threads: int

    def seconds(self, flops: float, n_bytes: float) -> float:
        """Return the least time that so much work takes here: the roofline.

        Examples
        --------
        >>> from gpt2cy.inspection.machine import Machine
        >>> Machine(peak=100.0, bandwidth=20.0, isa="avx2", n_threads=1).seconds(1e9, 1e9)
        0.05
        """
        return max(flops / self.peak, n_bytes / self.bandwidth) / 1e9

    def bound(self, flops: float, n_bytes: float) -> str:
        """Return which of the two limits it: "compute" or "memory"."""
        return "compute" if flops / self.peak >= n_bytes / self.bandwidth else "memory"


def measure(seconds: float = 0.5) -> Machine:
    """Measure with the instruction set and the threads in use.

    Parameters
    ----------
    seconds : float
        How long, about.

    Notes
    -----
    The matrix for the bandwidth takes `beyond_caches` bytes, or half of the memory that is left: if that is
    very little, a cache may hold it, and the bandwidth is the cache's.

    Examples
    --------
    >>> from gpt2cy.inspection import machine
    >>> machine.measure(0.05).peak > 0
    True
    """
    n_threads = get_num_threads()
    peak = _best(seconds / 2, *_NEAR, n_threads)
    left = host.available_memory()
    n_bytes = beyond_caches() if left is None else min(beyond_caches(), left // 2)
    columns = max(1, n_bytes // (4 * _DEEP))
    bandwidth = _best(seconds / 2, 1, _DEEP, columns, n_threads) * 2  # 2 flops for 4 bytes
    return Machine(peak, bandwidth, dispatch.isa(), n_threads)


def beyond_caches() -> int:
    """Return bytes of weights that no cache keeps from one pass to the next: 64 to 512 MiB."""
    return min(512 * _MIB, max(64 * _MIB, 8 * last_cache()))


def last_cache(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """Return the bytes of the first processor's largest cache; 32 MiB where the system does not say."""
    sizes = []
    for path in Path(folder).glob("index*/size"):
        try:
            text = path.read_text().strip()
            sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
        except (OSError, ValueError, IndexError):
            continue
    return max(sizes, default=32 * _MIB)


def _best(seconds, m, depth, columns, n_threads):
    """GFLOP/s of the fastest of some products [m, K] by [K, N]: at least three, for about `seconds`."""
    weights = raw.pack(np.broadcast_to(np.float32(0.01), (depth, columns)))
    rows, out = np.ones((m, depth), np.float32), np.empty((m, columns), np.float32)
    samples = []
    begin = time.perf_counter()
    while len(samples) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        raw.gemm(rows, weights, n_threads=n_threads, out=out)
        samples.append(time.perf_counter() - start)
    return 2e-9 * m * depth * columns / min(samples)
