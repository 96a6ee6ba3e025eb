"""Where most tests run a job: two nodes of two ranks. Each node has two invented GPUs, so gloo connects the ranks."""

import sys

ANSWERS = {"site": "slurm", "nodes": "2", "gpus_per_node": "2"}
# The tests' own Python, with torch's CPU build, and leave to run on CPUs. The extra snapshot would copy the sources for
# each job: tests/extras/snapshot has jobs that run copies.
PYTHON_ON_CPUS = {"PYTHON": sys.executable, "ALLOW_CPU": "1", "SNAPSHOT": "0"}
# Where tests run as root, Open MPI wants to be told so.
MPIRUN_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ENVIRONMENT = {**PYTHON_ON_CPUS, **MPIRUN_AS_ROOT}
