"""slurm/doctor.py on programs that fail for real, each in a way of its own, under each launcher of a project.

The programs stand in failures/: nobody of this project wrote them, so to say. Each one prints what libraries print at
the start of good runs (doctor_noise.txt), then fails.

With FAILURES_FOLDER=FOLDER the doctor is not asked: what each job leaves is kept in that folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from baking import bake
from needs import needs_namespaces
from two_nodes import ANSWERS, ENVIRONMENT
from waiting import wait_for

PROGRAMS = Path(__file__).resolve().parent / "failures"
LAUNCHERS = ("torchrun", "srun", "spawn")
KEPT = os.environ.get("FAILURES_FOLDER")
TORCHS_ABORT = "terminate called without an active exception"
ANY = "ANY"  # of ranks: the launcher may name one or another
NONE = ""  # of causes: none may be named


class Failure(NamedTuple):
    """What is true of a failure."""

    program: str
    way: str  # how the first failing process ended; `|` where two names are right
    rank: object  # the one that failed first, or ANY
    code: object  # its exit code, -N for a signal, or ANY
    words: str  # what its last words contain
    cause: str = NONE  # a pattern for what the first cause says; with `?` in front, no cause is right, too
    launchers: tuple = LAUNCHERS

    def __repr__(self):
        return self.program


FAILURES = [
    # It ends with an exit code.
    Failure("exits_with_a_text", "exited", 1, 1, "vocabulary size 50257 does not match checkpoint 32000"),
    Failure("exits_silently", "exited", 1, 3, ""),
    Failure("logs_an_error", "exited", 3, 2, "optimizer.betas: expected two numbers, got 0.9"),
    Failure("says_it_on_stdout", "exited", 2, 4, "tokenizer.model has 0 merges"),
    Failure("wrong_argument", "exited|error", ANY, 2, "argument --max-steps: invalid int value: 'ten'", "?argument"),
    Failure("hydra_override", "exited|error", ANY, 1, "Key 'lrr' is not in struct"),
    Failure("healthy_rank_caught", "exited", 2, 3, "validation set is empty"),
    Failure("failing_rank_caught", "exited", 1, 3, "loss is not finite"),
    Failure("exits_at_once", "exited", 3, 7, "worker pool is gone"),
    Failure("caught_by_all", "exited", 3, 1, "0 of 512 answers can be parsed"),
    Failure("coloured_log", "exited", 3, 5, "gradient norm is not finite"),
    Failure("fails_in_a_thread", "exited|error", 1, 1, "KeyError: 'input_ids'"),
    # Python raises.
    Failure("finds_a_batch_size", "error", 2, 1, "KeyError: 'lr_scheduler'"),
    Failure("raises_from", "error", 1, 1, "RuntimeError: config/base.yaml: lr is no number"),
    Failure("exception_group", "error", 2, 1, "shard 3 has no header"),
    Failure("long_assertion", "error", 0, 1, "that was 60 of 291 tensors"),
    Failure("long_line", "error", 1, 1, "token 50256 at position 131071 is out of range"),
    Failure("recursion", "error", 3, 1, "maximum recursion depth exceeded"),
    Failure("progress_bar", "error", 1, 1, "index 10 is out of bounds for axis 0 with size 10"),
    Failure("boxed_traceback", "error", 3, 1, "KeyError: 'depth'"),
    Failure("tracked_run", "error", 2, 1, "ValueError: 3 labels for 4 images"),
    Failure("words_after_the_error", "error", 1, 1, "ZeroDivisionError: no tokens in this batch"),
    Failure("process_pool", "error", 2, 1, "UnicodeError: document 7 is not UTF-8"),
    Failure("command_fails", "error", 0, 1, "17 GB do not fit into 32 bits"),
    Failure("syntax_error", "error", ANY, 1, "SyntaxError"),
    Failure("missing_module", "error", ANY, 1, "No module named 'transformer_engine_of_ours'", "module"),
    Failure("missing_file", "error", 1, 1, "data/openwebtext/train.bin", "not there|does not exist|no file|not found"),
    Failure("permission_denied", "error", 2, 1, "Permission denied: './tokenize.sh'", "not yours|permi|executable"),
    Failure("disk_full", "error", 0, 1, "No space left on device", "disk|full|space"),
    Failure("stale_file_handle", "error", 3, 1, "Stale file handle", "?file system|storage|handle|mount"),
    Failure("input_output_error", "error", 1, 1, "Input/output error", "?file system|storage|disk|read"),
    Failure("too_many_files", "error", 2, 1, "Too many open files", "open files|file descriptors"),
    Failure("too_many_threads", "error", 1, 1, "can't start new thread", "thread|process"),
    Failure("memory_error", "error", 0, 1, "MemoryError", "memory"),
    Failure("certificate", "error", 0, 1, "CERTIFICATE_VERIFY_FAILED", "certificate"),
    Failure("no_internet", "error", 2, 1, "urlopen error", "address|reach|internet|network|name"),
    # A signal.
    Failure("segmentation_fault", "crashed", 2, -11, "", "?compiled"),
    Failure("fault_handler", "error|crashed", 0, -11, "Fatal Python error: Segmentation fault", "?compiled"),
    Failure("kills_itself", "killed", 3, -9, "", "?killed|memory"),
    Failure("bus_error", "crashed", 1, -7, "", "?compiled|shm|bus"),
    Failure("aborts", "crashed", 0, -6, "", "?compiled"),
    Failure("c_assertion", "error|crashed", 2, -6, "Assertion `heads % kv_heads == 0' failed", "?compiled"),
    Failure("cpp_exception", "error|crashed", 1, -6, "index file of shard 12 is truncated", "?compiled"),
    Failure("is_terminated", "crashed|killed", 3, -15, ""),
    # What torch says.
    Failure("wrong_shapes", "error", ANY, 1, "mat1 and mat2 shapes cannot be multiplied"),
    Failure("state_dict", "error", ANY, 1, "size mismatch for 1.bias"),
    Failure("torn_checkpoint", "error", 0, 1, "OSError: [Errno 22] Invalid argument"),
    Failure("cpu_build", "error", ANY, 1, "Torch not compiled with CUDA enabled", "?CUDA|CPU|GPU"),
    Failure(
        "gpu_memory", "error", 3, 1, "CUDA out of memory. Tried to allocate 2.00 GiB", "memory of a GPU|GPU.*memory"
    ),
    Failure("busy_gpu", "error", 2, 1, "busy or unavailable", "another process|busy|uses the GPU"),
    Failure("illegal_memory", "error", 1, 1, "an illegal memory access was encountered", "?kernel|illegal|address"),
    Failure("recorded_error", "error", 2, 1, "ValueError: dataset has 0 samples after the filter"),
    Failure("frames_of_cpp", "error", 1, 1, "The size of tensor a (2) must match", NONE, ("torchrun", "srun")),
    Failure("worker_raises", "error", 1, 1, "ValueError: sample 17 has no label"),
    Failure("worker_is_killed", "error", 2, 1, "RuntimeError: DataLoader worker", "memory|DataLoader|worker|reads"),
    Failure("shared_memory_full", "error", 3, 1, "/torch_", "/dev/shm"),
    Failure("raises_in_training", "error", 2, 1, "FloatingPointError: loss is nan at step 5"),
    Failure("models_differ", "error", ANY, 1, "DDP expects same model across all ranks"),
    Failure("unused_parameters", "error", ANY, 1, "Expected to have finished reduction in the prior iteration"),
    Failure("port_taken", "error", 0, 1, "EADDRINUSE", "port"),
    Failure("initialised_twice", "error", ANY, 1, "trying to initialize the default process group twice"),
    Failure("wrong_interface", "error", ANY, 1, "Unable to find address for: ib9", "interface"),
    Failure("wrong_address", "error|waited", ANY, 1, "DistNetworkError", "?address|name|reach"),
    Failure("starts_processes", "error", 0, 1, "LookupError: no reference translation for sentence 204"),
    Failure("mpi_without_pmi", "error|exited|crashed", ANY, ANY, "PMI", "PMI|MPI", ("srun",)),
    # Ranks that wait, or lose another one.
    Failure("hangs", "waited", ANY, ANY, "", "?rank 2|waited"),
    # At its end the rank that is done may abort in gloo, too: the others have not closed the connection.
    Failure("returns_early", "peer|waited|error|crashed", ANY, ANY, "", "?rank 1|lost another|process group"),
    Failure(
        "other_size", "error|crashed", 1, -6, "Received data size doesn't match expected size", "?rank 1|size|differ"
    ),
    Failure("other_collective", "waited|error|peer", ANY, ANY, "", "?rank 3|waited"),
    Failure("monitored_barrier", "waited", ANY, ANY, "monitoredBarrier", "?rank 3|waited"),
    Failure("rank_is_late", "waited", ANY, ANY, "", "?rank 1|rendezvous|in time|waited"),
    Failure("nccl_watchdog", "waited", 0, -6, "Watchdog caught collective operation timeout", "?waited"),
    Failure("peer_dies", "killed", 3, -9, "", "?killed|memory"),
]
# A run of each kind of evidence, for every test run.
QUICK = {
    ("exits_with_a_text", "torchrun"),
    ("exits_silently", "srun"),
    ("failing_rank_caught", "srun"),
    ("c_assertion", "srun"),
    ("kills_itself", "srun"),
    ("finds_a_batch_size", "spawn"),
}


def runs():
    """Return each failure under each launcher; all but a few are drills."""
    for failure in FAILURES:
        for launcher in failure.launchers:
            marks = [] if (failure.program, launcher) in QUICK else [pytest.mark.drill]
            yield pytest.param(failure, launcher, id=f"{failure.program}-{launcher}", marks=marks)


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """The project whose jobs fail: without extras, as one that tells the doctor more has tests of its own."""
    project = bake(tmp_path_factory.mktemp("a b") / "failures", **ANSWERS, extras="none")
    if KEPT:
        (project / "slurm/doctor.py").write_text("")  # so that the output has nothing of its report
    return project


@pytest.fixture
def slurm(cluster):
    """The cluster, if its nodes have names of their own."""
    needs_namespaces(cluster)
    return cluster


def submit(slurm, project, folder, program, launcher, *options):
    """Submit a program in a folder of its own, and return the number of its job."""
    folder.mkdir()
    for path in (*PROGRAMS.glob(f"{program}*.py"), PROGRAMS / "startup.py"):
        shutil.copy(path, folder)
    shutil.copy(PROGRAMS.parent / "doctor_noise.txt", folder / "noise.txt")
    environment = {**ENVIRONMENT, "LAUNCHER": launcher, "OMP_NUM_THREADS": "1"}
    environment["TMPDIR"] = str(slurm.node_local)  # ranks that are killed leave files there; it ends with the cluster
    command = [*options, project / "slurm/submit_multinode.sh", f"{program}.py"]
    return slurm.sbatch(*command, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def submitted(request, cluster, failing, tmp_path_factory):
    """The jobs of all runs that were asked for, by program and launcher: Slurm runs them side by side."""
    needs_namespaces(cluster)
    folder, jobs = tmp_path_factory.mktemp("failures"), {}
    for item in request.session.items:
        if getattr(item, "originalname", "") == "test_a_failure":
            program, launcher = item.callspec.params["failure"].program, item.callspec.params["launcher"]
            where = folder / f"{program}-{launcher}"
            jobs[program, launcher] = where, submit(cluster, failing, where, program, launcher)
    return jobs


def host_of(rank, job):
    """Return the node of a rank: two ranks on each."""
    return job.nodes[rank // 2] if isinstance(rank, int) else ANY


def keep(slurm, project, folder, job, name, **expected):
    """Keep what the job has left, and what is true of it."""
    where = Path(KEPT, name)
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    (where / "job.out").write_text((folder / f"demo-{job.id}.out").read_text(errors="replace"))
    if (project / f"logs/{job.id}.0").is_dir():
        shutil.copytree(project / f"logs/{job.id}.0", where / "logs", symlinks=True)
    (where / "record.txt").write_text(slurm.run("scontrol", "show", "job", str(job.id)).stdout)
    (where / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    source = PROGRAMS / f"{name.rpartition('-')[0]}.py"
    (where / "README").write_text(source.read_text().split('"""')[1].splitlines()[0] + "\n" if source.exists() else "")


def ask(slurm, project, what, folder):
    """Return what the doctor says of a job, or of an output, as JSON."""
    done = slurm.run("python3", project / "slurm/doctor.py", "--json", str(what), cwd=folder, check=False)
    assert not done.stderr and done.returncode in (0, 1), done
    return json.loads(done.stdout)


def differences(answer, expected):
    """Return what is wrong in an answer: what is true, and what it says."""
    wrong = []
    if answer["way"] not in expected["way"].split("|"):
        wrong.append(f"way: {expected['way']}, not {answer['way']}")
    aborted = answer["exit_code"] == -6 and answer["words"][-1:] == [TORCHS_ABORT]
    if aborted and expected["exit_code"] == 1:  # at times gloo's threads abort a rank after its error
        expected = {**expected, "exit_code": -6}
    for key in ("rank", "host", "exit_code"):
        if expected[key] not in (ANY, answer[key]):
            wrong.append(f"{key}: {expected[key]}, not {answer[key]}")
    causes = [f"{cause['name']}: {cause['says']}" for cause in answer["causes"]]
    pattern = expected["cause"].lstrip("?")
    if causes and not (pattern and re.search(pattern, causes[0])):
        wrong.append(f"cause: {pattern or 'none'}, not {causes[0]}")
    if not causes and pattern and not expected["cause"].startswith("?"):
        wrong.append(f"cause: {pattern}, not none")
    if len(causes) > 1:
        wrong.append(f"more causes: {causes[1:]}")
    words = "\n".join(answer["words"])
    if expected["words"] not in words:
        wrong.append(f"words: {expected['words']}, not {words}")
    if len(answer["words"]) > 25 or re.search(r"[\x00-\x08\x0b-\x1f\x7f]", words):
        wrong.append("words: too many, or with control characters")
    return wrong


@pytest.mark.parametrize(("failure", "launcher"), runs())
def test_a_failure(slurm, failing, submitted, failure, launcher):
    folder, number = submitted[failure.program, launcher]
    job = slurm.wait(number, 3 * 3600)
    expected = {"way": failure.way, "rank": failure.rank, "host": host_of(failure.rank, job)}
    expected |= {"exit_code": failure.code, "cause": failure.cause, "words": failure.words}
    assert job.state == "FAILED", job.output
    if KEPT:
        return keep(slurm, failing, folder, job, f"{failure.program}-{launcher}", **expected)
    answer = ask(slurm, failing, job.id, folder)
    wrong = differences(answer, expected)
    assert not wrong, "\n".join([*wrong, json.dumps(answer, indent=1), job.output[-5000:]])
    assert_report(job.output, answer, failure.words)


def assert_report(output, answer, words):
    """The job ends with the report, the cause first, then the words, and behind it the exit code."""
    end = r"^\S+ \S+ (?:torchrun|srun|spawn) ended with exit code \d+\. To ask again, run python3 slurm/doctor\.py \d+$"
    report = re.search(rf"(?ms)^((?:cause: |no cause known)(?:(?!^cause: |^no cause known).)*?){end}", output)[1]
    first = report.splitlines()[0]
    if answer["causes"]:
        assert first == f"cause: {answer['causes'][0]['says']}", report
    else:
        assert first.startswith("no cause known"), report
    assert words in report and len(report.splitlines()) <= 40, report
    assert "\033" not in report, report


@pytest.mark.parametrize(
    "launcher", ["srun", *(pytest.param(name, marks=pytest.mark.drill) for name in ("torchrun", "spawn"))]
)
def test_a_run_that_does_not_fail(slurm, failing, tmp_path, launcher):
    folder = tmp_path / "run"
    job = slurm.wait(submit(slurm, failing, folder, "runs_well", launcher))
    assert job.state == "COMPLETED", job.output
    if KEPT:
        expected = {"way": "none", "rank": None, "host": "", "exit_code": ANY, "cause": NONE, "words": ""}
        return keep(slurm, failing, folder, job, f"runs_well-{launcher}", **expected)
    shutil.copy(folder / f"demo-{job.id}.out", folder / "copy.out")
    for what in (job.id, f"demo-{job.id}.out", "copy.out"):
        answer = ask(slurm, failing, what, folder)
        assert (answer["way"], answer["causes"], answer["rank"]) == ("none", [], None), answer


# ---- what Slurm knows ------------------------------------------------------------------------------------------------


def cancel(slurm, job):
    slurm.run("scancel", str(job))
    return []


def crash(slurm, job):
    """Cut the power of the second node, and return what has to be started again."""
    nodes = re.search(r"\bNodeList=node\[(\d)-(\d)\]", slurm.run("scontrol", "show", "job", str(job)).stdout)
    slurm.crash(f"node{nodes[2]}")
    return [f"node{nodes[2]}"]


def wait_for_the_end(slurm, job):
    return []


ENDED_BY_SLURM = [
    pytest.param("TIMEOUT", ["--time=1"], wait_for_the_end, "walltime|time limit", id="time_limit"),
    pytest.param("CANCELLED", [], cancel, "cancelled", id="scancel"),
    pytest.param("NODE_FAIL", ["--no-requeue"], crash, "node failed|node.*fail", id="node_dies"),
]


@pytest.mark.drill
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("state", "options", "end", "cause"), ENDED_BY_SLURM)
def test_ended_by_slurm(request, slurm, failing, tmp_path, state, options, end, cause, launcher):
    folder = tmp_path / "run"
    number = submit(slurm, failing, folder, "runs_on", launcher, *options)
    output, crashed = folder / f"demo-{number}.out", []
    wait_for(lambda: output.exists() and output.read_text(errors="replace").count("iter 2: ") == 4, "the third step")
    try:
        crashed = end(slurm, number)
        job = slurm.wait(number)
    finally:
        for node in crashed:
            slurm.boot(node)
        slurm.wait_for_nodes()
    expected = {"way": "slurm", "rank": ANY, "host": ANY, "exit_code": ANY, "cause": cause, "words": ""}
    name = request.node.callspec.id.replace(f"-{launcher}", "").replace(f"{launcher}-", "")
    assert job.state == state, job.output
    if KEPT:
        return keep(slurm, failing, folder, job, f"{name}-{launcher}", **expected)
    answer = ask(slurm, failing, job.id, folder)
    wrong = differences(answer, expected)
    assert not wrong, "\n".join([*wrong, json.dumps(answer, indent=1), job.output[-5000:]])
