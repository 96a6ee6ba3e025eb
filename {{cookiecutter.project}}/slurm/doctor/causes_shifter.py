"""The cause of containers that Shifter starts."""

from causes import Cause

BY_STARTER = (
    Cause(
        name="mounts of Shifter",
        patterns=(r"BIND MOUNT FAILED from", r"FAILED to find (?:real path for )?volume"),
        says="the container cannot mount a folder, which is missing on a node or in the image",
        fix="Name folders that exist on every node in BINDS of env.sh, and mount them where the image has them.",
        source="Shifter",
    ),
)
