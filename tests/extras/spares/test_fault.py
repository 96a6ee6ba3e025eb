"""extras/spares/fault.py: whether another start of a failed run may succeed, for extras/spares/hooks.sh."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from baking import TEMPLATE, bake
from doctor_cases import (
    CAUSES,
    GOOD,
    PEER,
    ask,
    doctor,
    failing,
    mpirun_output,
    project,
    read,
    spawn_output,
    srun_output,
    traceback,
)
from two_nodes import ANSWERS

spec = importlib.util.spec_from_file_location("fault", TEMPLATE / "extras/spares/fault.py")
FAULT = importlib.util.module_from_spec(spec)
spec.loader.exec_module(FAULT)

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
VERSIONS = "RuntimeError: NVML: Driver/library version mismatch"
LOST_A_NODE = "PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : node1\n  Remote daemon: node2\n"


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (failing(traceback("KeyError: 'x'")), "program"),
        (failing(traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")), "program"),
        (srun_output("", "Exited with exit code 3"), "program"),
        (srun_output("", "Killed"), "unknown"),
        (spawn_output("", "was ended by signal 11", 139), "unknown"),
        (mpirun_output(""), "unknown"),
        (GOOD + traceback(PEER, "[node1:0] [rank0]: "), "unknown"),
        (failing(traceback("OSError: [Errno 116] Stale file handle: '/scratch/data.bin'")), "unknown"),
        (failing(traceback(ECC)), "node node2"),
        # A rank of another node complains first, of the connection to the one that broke.
        (GOOD + traceback(PEER, "[node1:0] [rank0]: ") + traceback(ECC, "[node2:3] [rank3]: "), "node node2"),
        # A container may have a driver's library of its own, on all nodes.
        (failing(traceback(VERSIONS)), "unknown"),
        (failing(traceback("KeyError: 'x'")) + LOST_A_NODE, "program"),
        # mpirun has lost a node, and the ranks have words of their own for that.
        (GOOD + traceback(PEER, "[node1:0] ") + LOST_A_NODE, "unknown"),
        (GOOD + traceback("mpi4py.MPI.Exception: MPI_ERR_PROC_FAILED: Process Failure") + LOST_A_NODE, "unknown"),
        (GOOD + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of the step tasks", "program"),
        (GOOD, "unknown"),
    ],
    ids=lambda value: value if len(value) < 20 else "output",  # an id has no lines
)
def test_whose_fault_it_is(ask, output, fault):
    answer = ask(output)
    assert FAULT.fault_of(answer) == fault, answer


def test_the_causes_have_the_names_of_the_doctor():
    assert set(FAULT.MAY_PASS) | FAULT.OF_NODE <= {cause.name for cause in CAUSES}
    assert not FAULT.OF_NODE & FAULT.MAY_PASS.keys()


def test_the_node_at_fault_is_that_of_the_log(doctor, project):
    """torchrun may number the nodes in another order than slurm/job.sh: rank 0 of this job is on node2."""
    run = project / "logs/900014.0"
    for node, text in ((0, ""), (1, traceback(ECC, "[rank0]: "))):
        folder = run / f"node{node}-node{node + 1}/0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
        os.utime(folder / "stderr.log", (node, node))
    assert call(doctor("--json", run).stdout) == (0, b"node node2\n", b"")


def call(answer):
    """Return exit code, standard output and standard error of extras/spares/fault.py on an answer of the doctor."""
    command = [sys.executable, TEMPLATE / "extras/spares/fault.py"]
    done = subprocess.run(command, input=answer, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_node_whose_name_is_not_known_is_not_blamed():
    answer = {"causes": [{"name": "GPU hardware"}], "way": "error", "host": ""}
    assert call(json.dumps(answer).encode()) == (0, b"unknown\n", b"")


def test_without_an_answer():
    expected = b"extras/spares/fault.py: expected the output of slurm/doctor.py --json as its input\n"
    for text in (b"", b"no cause known\n"):
        assert call(text) == (2, b"", expected)


ATTEMPTS = """\
PROJECT_DIR='{project}' code=1 hosts=(node1)
source "$PROJECT_DIR/slurm/project.sh" x
source "$PROJECT_DIR/extras/spares/hooks.sh"
spares_whose_fault() {{ echo unknown; }}
explain_failure() {{ :; }}
for spares_lasted in {seconds}; do
    spares_another_start_may_help >/dev/null
    echo $?
done
"""


@pytest.mark.parametrize(
    ("seconds", "codes"), [("5 5", "0 1"), ("700 5 5", "0 0 1"), ("5 700 5 5", "0 0 0 1"), ("5 700 700 700", "0 0 0 0")]
)
def test_two_attempts_that_fail_soon_for_an_unknown_reason_end_the_job(tmp_path, seconds, codes):
    """Those of ten minutes or more do not count."""
    project = bake(tmp_path, **ANSWERS, extras="spares")
    code = ATTEMPTS.format(project=project, seconds=seconds)
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (codes.split(), ""), done
