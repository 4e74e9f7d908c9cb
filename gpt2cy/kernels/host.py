# SPDX-License-Identifier: Apache-2.0
"""What the host has left for this process: its control groups, and the memory that can still be allocated.

Whether something fits is asked before it is allocated: a machine that swaps is as good as dead. What is
available is the least of the system's own estimate (MemAvailable) and what the control groups leave. Where
neither is known, nothing is refused.
"""

import os

ALWAYS_FITS = 64 << 20  # not worth reading files for
_MIB = 1 << 20


def require_memory(name: str, plan: dict[str, int], reduce: str) -> None:
    """Raise MemoryError if the bytes of a plan do not fit.

    Parameters
    ----------
    name : str
        The argument that asks for them.
    plan : dict
        Bytes by purpose; what is named "total" is not counted.
    reduce : str
        What the caller can reduce, for the message.
    """
    purposes = {name: size for name, size in plan.items() if name != "total" and size}
    total = sum(purposes.values())
    if total <= ALWAYS_FITS:
        return
    left = available_memory()
    if left is not None and total > left:
        parts = ", ".join(f"{name} {size / _MIB:,.0f} MiB" for name, size in purposes.items())
        needed = f"{total / _MIB:,.0f} MiB needed ({parts}), {left / _MIB:,.0f} MiB available"
        raise MemoryError(f"{name}: {needed}: reduce {reduce}")


def available_memory(
    meminfo: str = "/proc/meminfo", root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup"
) -> int | None:
    """Return the bytes that can still be allocated, or None where the system does not say."""
    found = [_system(meminfo), *(_group(folder) for folder in groups("memory", root, membership))]
    known = [left for left in found if left is not None]
    return min(known) if known else None


def _system(meminfo):
    try:
        with open(meminfo) as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _group(folder):
    """What one memory cgroup has left: its limit less what it uses and cannot give back."""
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file "),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    ):
        try:
            most, used = _number(folder, limit), _number(folder, usage)
        except (OSError, ValueError):  # no such file, or "max"
            continue
        return max(0, most - used + _reclaimable(folder, cache))
    return None


def _number(folder, name):
    with open(os.path.join(folder, name)) as file:
        return int(file.read())


def _reclaimable(folder, name):
    try:
        with open(os.path.join(folder, "memory.stat")) as file:
            return next((int(line.split()[1]) for line in file if line.startswith(name)), 0)
    except (OSError, ValueError, IndexError):
        return 0


def groups(controller: str, root: str, membership: str) -> list[str]:
    """Return the folders of this process's cgroups, those above included, of version 1 and 2."""
    paths = {""}
    try:
        with open(membership) as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if not controllers or controller in controllers.split(","):
                    paths.add(path)
    except (OSError, ValueError):
        pass
    folders: dict[str, None] = {}
    for path in sorted(paths):
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            for mount in ("", controller, "cpu,cpuacct"):  # v2 has no mount of its own
                folders[os.path.join(root, mount, *parts[:depth])] = None
    return list(folders)
