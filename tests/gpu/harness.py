"""Runs a table of steps on a machine with a GPU, and prints their verdicts as a table. steps.py has the table.

A step is a function. It returns figures, or it raises Skipped with a reason, or any other exception, and has failed
then. Each step runs in a process of its own, below a time limit of its own. So a step that hangs, or that ends its
process, takes no other step with it. After a step, all processes that it has started are ended.

Everything is in results.json of --out too: the machine, and of each step its verdict, seconds, figures and the full
text of a failure. Exit code 0: no step has failed. 1: a step has failed. 2: the steps cannot run here.

Python 3.9 or newer. The programs that the steps start need torch; this file does not import it, so that no process of
the harness holds memory of a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

HERE = Path(__file__).resolve().parent
LEAST_TORCH = (2, 6)
# Each process of a step has this variable, with a value that no other step has.
MARK = "GPU_STEP"
REASON_WIDTH = 100  # in the table; results.json has it all
DESCRIPTION_LIMIT = 120  # seconds in which torch has to be imported and to find the GPUs
# A scheduler, or a launcher, may have started this command. The programs of a step shall not take themselves for its
# ranks. CUDA_VISIBLE_DEVICES stays: it says which GPUs are ours.
INHERITED = ("SLURM", "SBATCH", "PET_", "OMPI_", "PMI", "PRTE_", "TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_")
INHERITED += ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "NPROC_PER_NODE", "RUN_DIR", "LAUNCHER")
INHERITED += ("RESTART_COUNT", "NCCL_DEBUG", "OMP_NUM_THREADS", "ALLOW_CPU", "REQUIRE_RDMA", "RUNAI_NUM_OF_GPUS")


class Skipped(Exception):
    """A step cannot be done here; the text says why."""


class Machine(NamedTuple):
    """What a step gets."""

    project: Path  # a project that the template has written
    folder: Path  # the step's own, empty at its start
    facts: dict[str, Any]  # as describe_machine() returns them

    @property
    def device(self) -> str:
        """Return "cuda", or "cpu" with --rehearse."""
        return "cuda" if self.facts["gpus"] else "cpu"

    @property
    def ranks(self) -> int:
        """Return a rank for each GPU; on CPUs two."""
        return len(self.facts["gpus"]) or 2


class Step(NamedTuple):
    """A row of the table."""

    name: str
    run: Callable[[Machine], dict]  # returns figures
    limit_s: int  # seconds


# ---- for the functions of steps --------------------------------------------------------------------------------------


def require(condition: object, text: str) -> None:
    """Fail with a text unless the condition holds. Unlike assert, it is there with python -O too."""
    if not condition:
        raise AssertionError(text)


def require_gpu(machine: Machine) -> None:
    """Skip a step that means nothing on CPUs."""
    if machine.device == "cpu":
        raise Skipped("needs a GPU")


def run(command: list[object], machine: Machine, exit_code: int = 0, **environment: str) -> str:
    """Run a command in the step's folder; return what it prints. It fails if its exit code is another one."""
    words = [str(word) for word in command]
    print("$", shlex.join([*(f"{name}={value}" for name, value in environment.items()), *words]), flush=True)
    done = subprocess.run(
        words,
        cwd=machine.folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    print(done.stdout, flush=True)  # into the step's log, which a failure shows
    require(done.returncode == exit_code, f"exit code {done.returncode}, not {exit_code}, of {shlex.join(words)}")
    return done.stdout


def ranks_command(machine: Machine, program: object, *arguments: object) -> list[object]:
    """Return the command that starts ranks on this machine, as a job does on a node."""
    return ["bash", machine.project / "launch/torchrun.sh", program, *arguments]


def run_ranks(
    machine: Machine, count: int, program: object, *arguments: object, exit_code: int = 0, **environment: str
) -> str:
    """Run a program on so many ranks of this machine; return what they print."""
    command = ranks_command(machine, program, *arguments)
    return run(command, machine, exit_code, NPROC_PER_NODE=str(count), **environment)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return the median of several rounds, and the smallest and largest of them."""
    rounds = list(values)
    return {
        "median": round(statistics.median(rounds), 4),
        "low": round(min(rounds), 4),
        "high": round(max(rounds), 4),
        "rounds": len(rounds),
    }


def require_between(what: str, figures: dict[str, float], low: float, high: float) -> None:
    """Fail if all rounds lie on the same wrong side of the bounds. Noise in some rounds changes no verdict."""
    is_outside = figures["high"] < low or figures["low"] > high
    require(not is_outside, f"{what} is {in_words(figures)}: expected {low:g} to {high:g} in some round")


# ---- the machine -----------------------------------------------------------------------------------------------------


def describe_machine() -> dict[str, Any]:
    """Return GPUs, driver and versions. It imports torch, so it runs in a process of its own."""
    import torch

    gpus = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(number)
        facts = {"memory_mib": properties.total_memory >> 20, "capability": [properties.major, properties.minor]}
        gpus.append({"name": properties.name, **facts})
    return {
        "gpus": gpus,
        "driver": driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "is_nvidia": not torch.version.hip,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,
        "python": sys.version.split()[0],
        "cpus": len(os.sched_getaffinity(0)),
    }


def driver_version() -> str | None:
    """Return the version of the GPU driver that is loaded, as the vendor's command or the kernel says."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError):
        return subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[0]
    with contextlib.suppress(OSError):
        return Path("/sys/module/amdgpu/version").read_text().strip()
    return None


def ask_for_machine() -> dict[str, Any]:
    """Return what describe_machine() says in another process; exit with a sentence if that does not work."""
    command = [sys.executable, "-c", "import harness, json; print(json.dumps(harness.describe_machine()))"]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DESCRIPTION_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        refuse(f"torch of {sys.executable} did not list the GPUs within {DESCRIPTION_LIMIT} s: look at nvidia-smi")
    if done.returncode:
        error = (done.stderr.strip().splitlines() or ["no message"])[-1]
        refuse(f"{sys.executable} cannot import torch ({error}): set PYTHON to a Python that has torch 2.6 or newer")
    return json.loads(done.stdout.splitlines()[-1])


def refuse(message: str) -> NoReturn:
    """Exit with code 2: the steps cannot run."""
    print(f"tests/gpu: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


def refuse_unfit_machine(facts: dict[str, Any], rehearse: bool) -> None:
    """Exit with code 2 without a GPU, or with a torch that is too old."""
    version = tuple(int(number) for number in facts["torch"].split("+")[0].split(".")[:2])
    if version < LEAST_TORCH:
        refuse(f"torch {facts['torch']} is too old: set PYTHON to a Python that has torch 2.6 or newer")
    if not facts["gpus"] and not rehearse:
        refuse(
            f"torch {facts['torch']} sees no GPU on this machine, and these steps need one. If nvidia-smi lists one, "
            "install a torch for CUDA, or set PYTHON to a Python that has it. --rehearse runs on the CPU what can"
        )


# ---- one step --------------------------------------------------------------------------------------------------------


def run_step_here(step: Step, machine: Machine, result: Path) -> None:
    """Run the function of a step in this process, and write its verdict into a file."""
    try:
        outcome = {"verdict": "ok", "figures": step.run(machine)}
    except Skipped as reason:
        outcome = {"verdict": "skipped", "reason": str(reason)}
    except Exception as error:  # whatever it is, the step has failed
        outcome = {"verdict": "failed", "reason": first_line(error), "failure": traceback.format_exc()}
    result.write_text(json.dumps(outcome))


def first_line(error: Exception) -> str:
    """Return an exception in one line."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def run_step(step: Step, args: argparse.Namespace, facts: dict[str, Any]) -> dict[str, Any]:
    """Run a step in a process of its own; return its verdict. It fails if it has not ended at its time limit."""
    folder = args.out / step.name.replace(" ", "-").replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result, log = folder / "result.json", folder / "log.txt"
    mark = f"{os.getpid()}-{time.time_ns()}"
    environment = clean_environment() | {MARK: mark, "PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}
    if not facts["gpus"]:
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, os.path.abspath(sys.argv[0]), "--step", step.name]
    command += ["--out", str(args.out), "--project", str(args.project), "--facts", json.dumps(facts)]
    begin, limit = time.monotonic(), step.limit_s * args.patience
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            process.wait(limit)
            ended = f"its process ended with exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"it had not ended after its limit of {limit} s"
        finally:
            end_processes(mark)
            process.wait()
    seconds = round(time.monotonic() - begin, 1)
    printed = log.read_text(errors="replace")
    outcome = json.loads(result.read_text()) if result.exists() else {"verdict": "failed", "reason": ended}
    if outcome["verdict"] == "failed":
        outcome["failure"] = "\n".join(filter(None, [outcome.get("failure", ended), "The step printed:", printed]))
    return {"name": step.name, "seconds": seconds, "limit_s": limit, **outcome}


def clean_environment() -> dict[str, str]:
    """Return the environment without what a scheduler or launcher has left in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}


def end_processes(mark: str) -> None:
    """End all processes of a step. torchrun puts ranks into sessions of their own, so the mark finds them."""
    for _ in range(50):  # one that is just being started may be missed once
        found = processes_of(mark)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def processes_of(mark: str) -> list[int]:
    """Return the processes that have this mark in their environment. One that has ended has no environment."""
    variable, found = f"{MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


# ---- the table -------------------------------------------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    """Return a line for each step: verdict, seconds, name, and figures or a reason."""
    width = max(len(row["name"]) for row in results)
    lines = []
    for row in results:
        said = in_words(row["figures"]) if row["verdict"] == "ok" else row["reason"][:REASON_WIDTH]
        lines.append(f"{row['verdict']:<8} {row['seconds']:6.1f} s  {row['name']:<{width}}  {said}".rstrip())
    return "\n".join(lines)


def in_words(figures: dict[str, Any]) -> str:
    """Return figures in a line: of several rounds the median, with the smallest and the largest."""
    if "median" in figures:
        return f"{figures['median']:g} ({figures['low']:g} to {figures['high']:g}, {figures['rounds']} rounds)"
    parts = []
    for name, value in figures.items():
        text = in_words(value) if isinstance(value, dict) else str(value)
        parts.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)


def heading(facts: dict[str, Any], date: str) -> str:
    """Return the line above the table: what ran on what, and when."""
    names = [gpu["name"] for gpu in facts["gpus"]]
    if not names:
        return f"REHEARSAL on CPUs: no GPU has run, torch {facts['torch']}, {date}"
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    versions = f"driver {facts['driver']}, torch {facts['torch']}, CUDA {facts['cuda']}, NCCL {facts['nccl']}"
    return f"{gpus}, {versions}, {date}"


def main(steps: tuple[Step, ...]) -> NoReturn:
    """Run all steps, or those that are named; or be the process of one of them."""
    parser = argparse.ArgumentParser(description="Run on a machine with a GPU what needs one.")
    parser.add_argument("--project", type=Path, required=True, help="a project that the template has written")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of results.json (build/gpu)")
    parser.add_argument("--only", metavar="WORDS", action="append", help="run the steps whose names contain WORDS")
    parser.add_argument("--list", action="store_true", help="print the names of the steps and their limits")
    parser.add_argument(
        "--patience", type=int, default=1, metavar="N", help="multiply all limits, where files are slow"
    )
    parser.add_argument("--rehearse", action="store_true", help="without a GPU run on the CPU what can run there")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--facts", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out, args.project = args.out.resolve(), args.project.resolve()
    if args.step:
        step = next(step for step in steps if step.name == args.step)
        folder = args.out / args.step.replace(" ", "-").replace("/", "-")
        (folder / "work").mkdir()
        run_step_here(step, Machine(args.project, folder / "work", args.facts), folder / "result.json")
        sys.exit(0)

    steps = tuple(step for step in steps if not args.only or any(words in step.name for words in args.only))
    if args.list:
        print("\n".join(f"{step.limit_s:5} s  {step.name}" for step in steps))
        sys.exit(0)
    if not steps:
        refuse(f"no step is named like --only {args.only}: --list prints the names")
    if not (args.project / "launch/torchrun.sh").exists():
        refuse(f"--project {args.project}: expected a project that the template has written")
    if args.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # A job that is cancelled shall end its step, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    facts = ask_for_machine()
    refuse_unfit_machine(facts, args.rehearse)
    sys.exit(run_steps(steps, args, facts))


def run_steps(steps: tuple[Step, ...], args: argparse.Namespace, facts: dict[str, Any]) -> int:
    """Run the steps one after the other, print failures and the table; return the exit code."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    args.out.mkdir(parents=True, exist_ok=True)
    print(heading(facts, date), flush=True)
    results, begin = [], time.monotonic()
    for number, step in enumerate(steps, start=1):
        print(f"{number} of {len(steps)}: {step.name} … ", end="", flush=True)
        results.append(run_step(step, args, facts))
        print(results[-1]["verdict"], flush=True)
        # After each step: a run that is ended leaves what it has found.
        content = {"date": date, "rehearsal": not facts["gpus"], **facts, "steps": results}
        (args.out / "results.json").write_text(json.dumps(content, indent=1) + "\n")

    failed = [row for row in results if row["verdict"] == "failed"]
    for row in failed:
        print(f"\n==== failed: {row['name']}\n{row['failure'].rstrip()}")
    counts = {verdict: sum(row["verdict"] == verdict for row in results) for verdict in ("ok", "failed", "skipped")}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    print(f"\n{heading(facts, date)}\n{table(results)}")
    print(f"{said}, {time.monotonic() - begin:.0f} s in all; figures: {args.out / 'results.json'}", flush=True)
    return 1 if failed else 0
