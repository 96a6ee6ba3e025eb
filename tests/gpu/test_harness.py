"""The command for a machine with a GPU: its harness on steps of all fates, and its programs on the CPU.

Nothing here needs a GPU, or says that anything works on one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import harness
import provoke
import pytest
import steps
from baking import REPOSITORY, bake
from waiting import FOREVER, PATIENCE, wait_for

GPU = REPOSITORY / "tests/gpu"
# A table with a step of each fate. The one that hangs has a child in a session of its own, as torchrun's ranks are.
FATES = f"""
import os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {str(GPU)!r})
import harness

def well(machine):
    (machine.folder / "own").touch()
    return {{"ratio": harness.spread([1.0, 1.5, 2.0]), "ranks": machine.ranks}}

def hang(machine):
    print("about to hang", flush=True)
    child = subprocess.Popen(["sleep", "{FOREVER}"], start_new_session=True)
    (machine.folder / "child").write_text(str(child.pid))
    time.sleep({FOREVER})

def fail(machine):
    print("the last words of a program")
    harness.run(["bash", "-c", "echo printed; exit 3"], machine)

def die(machine):
    print("about to die", flush=True)
    os._exit(7)

def skip(machine):
    raise harness.Skipped("needs two moons")

def child(machine):
    return {{"sees": os.environ.get("RANK", "no rank") + " " + os.environ.get("SLURM_JOB_ID", "no job")}}

harness.main((
    harness.Step("well", well, {PATIENCE}),
    harness.Step("hangs", hang, 10),
    harness.Step("fails", fail, {PATIENCE}),
    harness.Step("dies", die, {PATIENCE}),
    harness.Step("is skipped", skip, {PATIENCE}),
    harness.Step("comes last", child, {PATIENCE}),
))
"""
# A torch that takes no time to import.
TORCH = """
__version__, has_gpu = "{version}", {has_gpu}
class version:
    cuda, hip = "12.8", None
class cuda:
    is_available = staticmethod(lambda: has_gpu)
    device_count = staticmethod(lambda: 1)
    class nccl:
        version = staticmethod(lambda: (2, 27, 3))
    class get_device_properties:
        def __init__(self, number):
            self.name, self.total_memory, self.major, self.minor = "NVIDIA Invented", 80 << 30, 9, 0
"""


NO_GPU = TORCH.format(version="2.13.0", has_gpu=False)


@dataclass
class Run:
    """What a run of the harness has left."""

    code: int
    output: str
    folder: Path

    @property
    def results(self):
        return json.loads((self.folder / "results.json").read_text())

    @property
    def rows(self):
        return {row["name"]: row for row in self.results["steps"]}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return bake(tmp_path_factory.mktemp("a b"), site="slurm", extras="hangs,watch")


def call(folder, project, table, *words, torch=NO_GPU, **environment):
    """Run a table with a torch that is not real."""
    (folder / "modules").mkdir(parents=True)
    (folder / "modules/torch.py").write_text(torch)
    (folder / "table.py").write_text(table)
    command = [sys.executable, "-B", "table.py", "--project", project, "--out", folder / "out", *words]
    variables = {**os.environ, "PYTHONPATH": str(folder / "modules"), **environment}
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Run(done.returncode, done.stdout, folder / "out")


@pytest.fixture(scope="module")
def fates(tmp_path_factory, project):
    stray = {"RANK": "3", "SLURM_JOB_ID": "4711"}
    return call(tmp_path_factory.mktemp("c d") / "fates", project, FATES, "--rehearse", **stray)


def test_a_step_that_fails_hides_no_other(fates):
    assert fates.code == 1, fates.output
    verdicts = {name: row["verdict"] for name, row in fates.rows.items()}
    assert verdicts == {
        "well": "ok",
        "hangs": "failed",
        "fails": "failed",
        "dies": "failed",
        "is skipped": "skipped",
        "comes last": "ok",
    }
    assert "2 ok, 3 failed, 1 skipped" in fates.output.splitlines()[-1]
    assert fates.rows["well"]["figures"]["ratio"] == {"median": 1.5, "low": 1.0, "high": 2.0, "rounds": 3}


def test_a_step_that_hangs_ends_at_its_limit_with_all_that_it_has_started(fates):
    row = fates.rows["hangs"]
    assert row["reason"] == "it had not ended after its limit of 10 s" and row["seconds"] >= 10
    assert "about to hang" in row["failure"]
    assert has_ended((fates.folder / "hangs/work/child").read_text())


def test_a_run_that_is_cancelled_takes_its_step_with_it(tmp_path, project):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/torch.py").write_text(NO_GPU)
    (tmp_path / "table.py").write_text(FATES.replace("hang, 10", f"hang, {PATIENCE}"))
    command = [sys.executable, "-B", "table.py", "--project", project, "--out", "out", "--rehearse", "--only", "hangs"]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
    run = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL)
    child = tmp_path / "out/hangs/work/child"
    wait_for(lambda: child.exists() and child.read_text(), "the child of the step")
    run.terminate()
    assert run.wait(PATIENCE) == 143
    wait_for(lambda: has_ended(child.read_text()), "the end of the child")


def has_ended(pid):
    """One that nobody has waited for yet is a zombie."""
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


def test_the_text_of_a_failure_is_whole(fates):
    text = fates.rows["fails"]["failure"]
    for words in ("Traceback", "exit code 3, not 0, of bash -c", "the last words of a program", "printed"):
        assert words in text and words in fates.output, text
    assert fates.rows["dies"]["reason"] == "its process ended with exit code 7"
    assert "about to die" in fates.rows["dies"]["failure"]
    assert fates.rows["is skipped"]["reason"] == "needs two moons" and "failure" not in fates.rows["is skipped"]


def test_it_ends_with_the_table_and_says_what_ran_where(fates):
    lines = fates.output.splitlines()
    assert "REHEARSAL on CPUs: no GPU has run" in lines[0] and lines[0] == lines[-8]
    table = [line.split()[0] for line in lines[-7:-1]]
    assert table == ["ok", "failed", "failed", "failed", "skipped", "ok"]
    assert "ratio 1.5 (1 to 2, 3 rounds), ranks 2" in lines[-7]
    assert fates.results["rehearsal"] is True and fates.results["gpus"] == [] and fates.results["torch"] == "2.13.0"


def test_programs_do_not_take_themselves_for_ranks_of_the_job_around(fates):
    assert fates.rows["comes last"]["figures"] == {"sees": "no rank no job"}


def test_what_ran_on_a_gpu_names_it(tmp_path, project):
    ran = call(tmp_path / "run", project, FATES, "--only", "well", torch=TORCH.format(version="2.6.0", has_gpu=True))
    assert ran.code == 0, ran.output
    assert ran.results["gpus"] == [{"name": "NVIDIA Invented", "memory_mib": 80 << 10, "capability": [9, 0]}]
    assert not ran.results["rehearsal"] and ran.results["nccl"] == "2.27.3" and ran.results["date"]
    assert ran.output.startswith("1 x NVIDIA Invented, driver ") and list(ran.rows) == ["well"]


@pytest.mark.parametrize(
    ("torch", "words", "sentence"),
    [
        (NO_GPU, [], "torch 2.13.0 sees no GPU on this machine"),
        (TORCH.format(version="2.5.1+cu124", has_gpu=True), [], "torch 2.5.1+cu124 is too old: set PYTHON to a Python"),
        ("raise ImportError('libcudart')", ["--rehearse"], "cannot import torch (ImportError: libcudart): set PYTHON"),
        ("", ["--only", "nothing"], "no step is named like --only ['nothing']: --list prints the names"),
    ],
)
def test_where_it_cannot_run_it_says_so_and_ends_with_2(tmp_path, project, torch, words, sentence):
    ran = call(tmp_path / "run", project, FATES, *words, torch=torch)
    assert ran.code == 2 and ran.output.startswith("tests/gpu: ") and sentence in ran.output, ran.output
    assert ran.output.count("\n") == 1 and not (ran.folder / "results.json").exists()


def test_without_a_project_it_ends_with_2(tmp_path):
    ran = call(tmp_path / "run", tmp_path, FATES, "--rehearse")
    assert ran.code == 2 and "expected a project that the template has written" in ran.output


def test_a_ratio_fails_if_all_rounds_are_on_the_wrong_side():
    for rounds in ([0.5, 0.6, 0.91], [1.09, 2.0], [0.5, 2.0]):
        harness.require_between("it", harness.spread(rounds), 0.9, 1.1)
    for rounds in ([0.5, 0.6, 0.89], [1.11, 2.0]):
        with pytest.raises(AssertionError, match=r"it is .* rounds\): expected 0.9 to 1.1"):
            harness.require_between("it", harness.spread(rounds), 0.9, 1.1)


# ---- the steps -------------------------------------------------------------------------------------------------------


def test_each_step_has_a_name_and_a_limit_and_each_failure_a_step():
    names = [step.name for step in steps.STEPS]
    assert len(set(names)) == len(names) and all(0 < step.limit_s <= 300 for step in steps.STEPS)
    provoked = {step.run.keywords["failure"] for step in steps.STEPS if step.name.startswith("doctor ")}
    assert provoked == set(provoke.FAILURES)


def test_the_causes_that_are_expected_are_rows_of_the_doctor(project):
    text = (project / "slurm/doctor/causes.py").read_text()
    causes = {step.run.keywords["cause"] for step in steps.STEPS if step.name.startswith("doctor ")} - {""}
    assert causes and all(f'name="{cause}"' in text for cause in causes)


@pytest.fixture
def machine(tmp_path, project):
    """A machine that says to have two GPUs."""
    (tmp_path / "work").mkdir()
    gpus = [{"name": "NVIDIA Invented", "memory_mib": 80 << 10}] * 2
    return harness.Machine(project, tmp_path / "work", {"gpus": gpus, "driver": ""})


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A stand-in for nvidia-smi that lists two GPUs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text(
        '#!/bin/sh\nfor i in 0 1; do echo "GPU $i: NVIDIA Invented (UUID: GPU-$i)"; done\n'
    )
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)


def test_preflight_is_compared_with_nvidia_smi(machine, nvidia_smi, tmp_path):
    assert steps.preflight(machine)["GPUs"] == 2
    # A preflight that counts in another way, and one that never complains.
    for name, words, others in (
        ("launch/count_gpus.sh", "grep -c '^GPU'", "grep -c '^GPU 0'"),
        ("slurm/preflight_node.sh", "if ((listed < wanted)); then", "if ((listed < 0)); then"),
    ):
        broken = tmp_path / "broken"
        shutil.copytree(machine.project, broken)
        text = (broken / name).read_text()
        assert text.count(words) == 1
        (broken / name).write_text(text.replace(words, others))
        with pytest.raises(AssertionError, match=r"preflight counts 1 GPUs|no fault 'nvidia-smi -L sees 2 GPU"):
            steps.preflight(machine._replace(project=broken))
        shutil.rmtree(broken)


def test_parts_of_a_split_gpu_are_listed_by_their_uuid(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(
        '#!/bin/sh\necho "GPU 0: H100 (UUID: GPU-1)"; echo "  MIG 3g.40gb Device 0: (UUID: MIG-2)"\n'
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert steps.listed_uuids() == ["MIG-2"]


@pytest.mark.drill
@pytest.mark.parametrize(
    ("program", "expected", "cause"),
    [
        ("import no_such_module", "module", "module"),
        ("import no_such_module", "GPU memory", "doctor.py names module, not GPU memory"),
        (
            "raise RuntimeError('Expected all tensors to be on the same device, but')",
            "",
            "no cause, the error is quoted",
        ),
        (
            "raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')",
            "",
            "exit code 0, not 1, of ",
        ),
        ("pass", "module", "nothing failed"),
    ],
)
def test_the_doctor_s_answer_is_compared(machine, monkeypatch, program, expected, cause):
    """Each failure is a real one of a rank on the CPU."""
    monkeypatch.setenv("PYTHON", sys.executable)
    (machine.folder / "fails.py").write_text(f"{program}\n")
    compare = (machine, expected, [machine.folder / "fails.py"])
    if expected in ("", "module") and program.startswith(("import", "raise RuntimeError('Exp")):
        assert steps.compare_answer(*compare, LAUNCHER="spawn") == cause
    else:
        with pytest.raises(AssertionError, match=re.escape(cause)):
            steps.compare_answer(*compare, LAUNCHER="spawn")


@pytest.mark.drill
def test_a_failure_that_the_library_allows_is_skipped(machine, monkeypatch):
    monkeypatch.setenv("PYTHON", sys.executable)
    (machine.folder / "allowed.py").write_text("print('NOT PROVOKED: both have added up')\n")
    with pytest.raises(harness.Skipped, match="both have added up"):
        steps.compare_answer(machine, "no GPU", [machine.folder / "allowed.py"], LAUNCHER="spawn")


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The folder that make gpu-bundle writes."""
    folder = tmp_path_factory.mktemp("e f") / "gpu-bundle"
    home = {"HOME": str(folder.parent), "PYTHON": sys.executable}
    command = ["bash", GPU / "run.sh", "--write-bundle", folder]
    subprocess.run(command, env={**os.environ, **home}, check=True, timeout=PATIENCE)
    return folder


def run_bundle(bundle, *words):
    """Run the command of a bundle, with this Python's torch and no GPU."""
    variables = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = ["bash", bundle / "run.sh", *words]
    return subprocess.run(
        command, cwd=bundle.parent, env=variables, capture_output=True, text=True, check=False, timeout=2 * PATIENCE
    )


def test_the_bundle_is_small_and_complete(bundle):
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert not [path for path in files if path.suffix in (".md", ".pyc") or "test_" in path.name]
    assert {path.name for path in bundle.iterdir()} == {
        "project",
        "run.sh",
        *(path.name for path in GPU.glob("*.py") if not path.name.startswith("test_")),
    }
    listed = run_bundle(bundle, "--list")
    assert listed.returncode == 0 and [line.split(" s  ")[1] for line in listed.stdout.splitlines()] == [
        step.name for step in steps.STEPS
    ]


def test_the_bundle_without_a_gpu(bundle):
    ran = run_bundle(bundle)
    assert ran.returncode == 2 and ran.stderr.startswith("tests/gpu: torch ") and ran.stdout == ""
    assert "sees no GPU on this machine" in ran.stderr and "Traceback" not in ran.stderr


def test_a_folder_that_is_no_bundle_is_not_overwritten(tmp_path):
    (tmp_path / "mine").touch()
    command = ["bash", GPU / "run.sh", "--write-bundle", tmp_path]
    done = subprocess.run(
        command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "no bundle: name a new folder" in done.stderr and (tmp_path / "mine").exists()


# Of a rehearsal: they need a GPU.
NEED_A_GPU = {"two ranks on one GPU"}
NEED_A_GPU |= {step.name for step in steps.STEPS if step.name.startswith("doctor ")} - {"doctor no visible GPU"}


@pytest.mark.drill
def test_the_rehearsal_on_the_cpu(bundle):
    ran = run_bundle(bundle, "--rehearse", "--patience", "10", "--out", bundle.parent / "out")
    rows = json.loads((bundle.parent / "out/results.json").read_text())["steps"]
    skipped = {row["name"]: row["reason"] for row in rows if row["verdict"] == "skipped"}
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        assert skipped.pop("training compiled") == "torch.compile needs a C compiler"
    assert skipped == dict.fromkeys(NEED_A_GPU, "needs a GPU")
    assert ran.returncode == 0 and not [row for row in rows if row["verdict"] == "failed"], ran.stdout
