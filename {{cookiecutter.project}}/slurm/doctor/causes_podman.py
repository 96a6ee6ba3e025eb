"""The cause of containers that podman-hpc starts."""

from causes import Cause

BY_STARTER = (
    Cause(
        name="mounts of podman",
        patterns=(r"statfs .*: no such file or directory",),
        says="the container cannot mount a folder, which is missing on a node",
        fix="Name folders that exist on every node in BINDS of env.sh.",
        source="podman",
    ),
)
