"""The cause that only STALL_TIMEOUT can have: the job ended itself, as no rank moved."""

from causes import Cause

BY_SLURM = (  # the job ends itself, as Slurm would
    Cause(
        name="stuck",
        patterns=(r"stuck: nothing was printed for \d+ s",),
        says="the ranks waited for something that never came (STALL_TIMEOUT)",
        fix="Look at where each rank was, below: one that stands alone kept the others waiting.",
        source="this project",
        way="waited",
    ),
)
