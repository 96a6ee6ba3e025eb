"""The causes of containers that srun starts with pyxis, by --container-image or by the .toml of an EDF."""

from causes import Cause

BY_STARTER = (
    Cause(
        name="folders of enroot",
        patterns=(r"pyxis: .*mkdir: cannot create directory .*: Permission denied",),
        says="enroot may not make its folders on the node",
        fix="Tell your site: /etc/enroot/enroot.conf has to name folders that each user may write to.",
        source="pyxis",
    ),
    Cause(
        name="mounts of pyxis",
        patterns=(
            r"--container-mounts: source path does not exist",
            r"enroot-mount: failed to (?:re)?mount",
        ),
        says="the container cannot mount a folder, which is missing on a node or in the image",
        fix="Name folders that exist on every node, in BINDS of env.sh or in mounts of an EDF's .toml. Mount them where"
        " the image has them.",
        source="pyxis, enroot",
    ),
    Cause(
        name="image of pyxis",
        patterns=(
            r"pyxis: (?:failed to|couldn't) \S",
            r"pyxis: container start failed",
            r"pyxis: child \d+ failed with error code",
        ),
        says="the container image is not there, or does not start",
        fix="Read the lines around the proof. Set IMAGE in env.sh, or image in an EDF's .toml, to an image that all"
        " nodes see.",
        source="pyxis, enroot",
    ),
)
