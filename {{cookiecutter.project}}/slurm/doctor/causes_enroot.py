"""The cause of containers that enroot starts alone."""

from causes import Cause

BY_STARTER = (
    Cause(
        name="mounts of enroot",
        patterns=(r"^enroot-mount: failed to (?:re)?mount",),
        says="the container cannot mount a folder, which is missing on a node or in the image",
        fix="Name folders that exist on every node in BINDS of env.sh, and mount them where the image has them.",
        source="enroot",
    ),
)
