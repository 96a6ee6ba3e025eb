"""The cause of containers that Apptainer starts."""

from causes import Cause

BY_STARTER = (
    Cause(
        name="Apptainer",
        patterns=(r"FATAL: +(?:could not open image|Unable to handle|[Ww]hile |container creation failed)",),
        says="the container does not start: its image, or a folder that it mounts, is not where it should be",
        fix="In env.sh, set IMAGE to an image at a path that all nodes see, and mount folders of BINDS where the image"
        " has them.",
        source="Apptainer",
    ),
)
