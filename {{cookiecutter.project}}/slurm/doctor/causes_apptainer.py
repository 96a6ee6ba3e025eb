"""The causes of containers that Apptainer starts."""

from causes import Cause

BY_STARTER = (
    Cause(
        name="mounts of Apptainer",
        patterns=(r"FATAL: .* destination \S+ doesn't exist in container",),
        says="the container cannot mount a folder, which is missing in the image",
        fix="In BINDS of env.sh, mount folders where the image has them.",
        source="Apptainer",
    ),
    Cause(
        name="image of Apptainer",
        patterns=(r"FATAL: +(?:could not open image|Unable to handle|[Ww]hile )",),
        says="the container image is not there, or does not start",
        fix="Set IMAGE in env.sh to an image at a path that all nodes see.",
        source="Apptainer",
    ),
)
