"""Rows for slurm/doctor.py: causes that only LAUNCHER=mpirun and LAUNCHER=mpirun-ranks have."""

from causes import Cause

BY_STARTER = (
    Cause(
        name="slots of mpirun",
        patterns=(r"not enough slots",),
        says="mpirun shall start more processes than the job has slots for",
        fix="mpirun starts as many ranks on a node as the job has tasks there: ask for them with --ntasks-per-node.",
        source="Open MPI",
    ),
    Cause(
        name="daemons of mpirun",
        patterns=("The Slurm process starter requires a minimum Slurm version level",),
        says="mpirun could not start its helper process (prted) on each node. Then it asks for a newer Slurm, even"
        " if Slurm is new enough",
        fix="Submit again: srun may have failed, or a killed prted has left a folder /tmp/prted.HOST.PID.UID on a node."
        " If that does not help, use LAUNCHER=torchrun or LAUNCHER=srun, which need no prted.",
        source="Open MPI 5",
    ),
    Cause(
        name="mpirun lost a node",
        patterns=("(?:PRTE|ORTE) has lost communication with a remote daemon",),
        says="mpirun lost a node: the node died, its network failed, or mpirun's process there was killed",
        fix="The output names the node a few lines after the proof (Remote daemon). Submit again with --exclude=NODE,"
        " and tell your site.",
        source="Open MPI",
    ),
)
