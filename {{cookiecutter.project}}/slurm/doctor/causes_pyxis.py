"""The cause of containers that srun starts with pyxis, by --container-image or by the .toml of an EDF."""

from causes import Cause

BY_STARTER = (
    Cause(
        name="pyxis",
        patterns=(  # the line that says why comes first here, and last in an output
            r"pyxis: .*mkdir: cannot create directory .*: Permission denied",
            r"--container-mounts: source path does not exist",
            r"pyxis: +enroot-mount: failed to (?:re)?mount",
            r"pyxis: (?:failed to|couldn't) \S",
            r"pyxis: container start failed",
            r"pyxis: child \d+ failed with error code",
        ),
        says="the container does not start: its image, or a folder that it mounts, is not where it should be",
        fix="Read the lines around the proof. IMAGE of env.sh, or image in an EDF's .toml, has to be where all nodes"
        " see it. Folders in BINDS, or in mounts of the .toml, have to exist on every node and in the image.",
        source="pyxis, enroot",
    ),
)
