"""A row for slurm/doctor.py: the cause that only STALL_TIMEOUT can have."""

from causes import Cause

BY_SLURM = (
    Cause(
        name="stuck",  # the job ended itself, as Slurm would
        patterns=(r"stuck: nothing was printed for \d+ s",),
        says="the ranks waited for something that never came",
        fix="Look at where each rank was, below: one that stands alone kept the others waiting.",
        source="this project",
        waiting=True,
    ),
)
