# SPDX-License-Identifier: Apache-2.0
"""Where the limits of this process's control groups are written."""

import os


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
    folders = {}
    for path in sorted(paths):
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            for mount in ("", controller, "cpu,cpuacct"):  # v2 has no mount of its own
                folders[os.path.join(root, mount, *parts[:depth])] = None
    return list(folders)
