# SPDX-License-Identifier: Apache-2.0
"""Resident memory of this process, from Linux's /proc; AVAILABLE is False elsewhere."""

import contextlib
import ctypes
import gc
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
AVAILABLE = CLEAR.exists()


def now():
    """Bytes of resident memory, after giving back what the allocator only holds."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def peak(call):
    """By how many bytes resident memory grew at most during a call."""
    before = now()
    CLEAR.write_text("5")  # the highest size is the present one from here on
    result = call()  # noqa: F841 - alive until the peak has been read
    return _status("VmHWM") - before


def growth(call):
    """What a call returns, and by how many bytes resident memory had grown at its end."""
    before = now()
    result = call()
    return result, now() - before


def huge_pages():
    """Bytes in huge pages, or None where the system does not say."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return None
    return _kib(text, "AnonHugePages")


def _status(name):
    return _kib(STATUS.read_text(), name)


def _kib(text, name):
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(name + ":"))
