"""The cause that only STALL_TIMEOUT can have: the job ended itself, as no rank moved."""

from causes import SLURM, Cause

CAUSES = (
    Cause(
        name="stuck",
        said_by=SLURM,  # the job ends itself, as Slurm would
        way="waited",
        patterns=(r"stuck: nothing was printed for \d+ s",),
        says="the ranks waited for something that never came (STALL_TIMEOUT)",
        fix="Look at where each rank was, below: one that stands alone kept the others waiting.",
        source="slurm/lib.sh of this project (2026-11-23)",
    ),
)
