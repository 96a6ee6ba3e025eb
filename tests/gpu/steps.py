"""The steps of `make test-gpu`: all that needs a GPU and that no other test can run. harness.py runs this table.

    bash tests/gpu/run.sh                   all steps, about ten minutes on one H200
    bash tests/gpu/run.sh --only doctor     those whose names contain a word
    bash tests/gpu/run.sh --rehearse        on the CPU what can run there: it tries the steps, and says nothing of GPUs

The table STEPS is at the end. Figures are ratios of things that took turns in the step, with their spread.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH=1 leaves this folder out

from harness import (
    HERE,
    Machine,
    Skipped,
    Step,
    main,
    ranks_command,
    require,
    require_between,
    require_gpu,
    run,
    run_ranks,
    spread,
)

ROUNDS = 3  # of commands that take turns
STEPS_OF_TRAINING = 20
# The least that a loss has to fall in these steps [nats]. It begins at ln 256 = 5.5, and falls by 2 on a CPU.
LEAST_FALL = 0.5
# Between programs in float64, which add the same numbers in another order (training/compare.py of a project). With the
# library of Python 3.11.2 as the corpus the losses differ by up to 1.7e-11 in these steps (2026-11-27).
TOLERANCE = 1e-9
# Rounds of ours against others. The targets for CPUs are in docs/figures.md; on GPUs none has been measured.
TIMING = (0.9, 1.1)
LEAST_SPEED = 0.9
# GPT-2 124M, as the flags of training/lm/arguments.py.
GPT2 = ("--vocabulary=50257", "--context=1024", "--layers=12", "--heads=12", "--width=768")
# A model for a rehearsal, which learns faster.
TINY = ("--context=64", "--layers=2", "--heads=2", "--width=64", "--learning-rate=5e-3")


# ---- check, pi, benchmark --------------------------------------------------------------------------------------------


def check_ranks(machine: Machine) -> dict:
    """check/ranks.py finds a GPU for each rank, and the network in NCCL's log."""
    run_ranks(machine, machine.ranks, machine.project / "check/ranks.py", "--json", "ranks.json")
    report = json.loads((machine.folder / "ranks.json").read_text())
    rows = report["rows"]
    require(not report["faults"], f"faults: {report['faults']}")
    require(len(rows) == machine.ranks, f"{len(rows)} rows, not {machine.ranks}")
    if machine.device == "cuda":
        require(len({row["uuid"] for row in rows} - {""}) == machine.ranks, f"not a GPU for each rank: {rows}")
        require(all(row["network"].split()[1:] for row in rows), f"NCCL's log names no network: {rows[0]['network']}")
    return {"ranks": len(rows), "network": rows[0]["network"]}


def pi(machine: Machine) -> dict:
    """pi/pi.py is right on a GPU, and how much faster it is than on all cores of this job."""
    program = machine.project / "pi/pi.py"

    def speed(device: str, intervals: str, **environment: str) -> float:
        output = run_ranks(machine, 1, program, "--intervals", intervals, "--json", "pi.json", **environment)
        require(f"({device})" in output, f"it did not run on {device}")
        result = json.loads((machine.folder / "pi.json").read_text())
        require(abs(result["error"]) < 1e-14, f"pi is wrong by {result['error']}")
        return result["intervals_per_second"]

    if machine.device == "cpu":
        return {"intervals per second": f"{speed('cpu', '1e7'):.1e}"}
    ratios = (speed("cuda", "1e10") / speed("cpu", "1e9", CUDA_VISIBLE_DEVICES="") for _ in range(ROUNDS))
    return {"GPU / CPU": spread(ratios)}


def all_reduce(machine: Machine, count: int | None = None) -> dict:
    """benchmark/all_reduce.py receives right data at all sizes. count: ranks, else one for each GPU."""
    count = count or machine.ranks
    largest = "64M" if machine.device == "cuda" else "1M"
    program = machine.project / "benchmark/all_reduce.py"
    run_ranks(machine, count, program, "--max", largest, "--json", "all_reduce.json")
    found = json.loads((machine.folder / "all_reduce.json").read_text())
    results = found["results"]
    require(found["backend"] == ("nccl" if machine.device == "cuda" else "gloo"), f"backend {found['backend']}")
    require(results and all(result["wrong"] == 0 for result in results), "wrong data, see the column 'wrong'")
    return {"ranks": count, "sizes": len(results)}


def all_reduce_on_all_gpus(machine: Machine) -> dict:
    """The same on all GPUs, where there are several."""
    if machine.ranks == 1:
        raise Skipped("needs two GPUs")
    return all_reduce(machine)


def event_timing(machine: Machine) -> dict:
    """The benchmark's clock agrees with a loop written by hand, in turns."""
    run_ranks(machine, machine.ranks, HERE / "event_timing.py", machine.project, "ratios.json")
    ratios = json.loads((machine.folder / "ratios.json").read_text())
    figures = {f"{size} ours / by hand": spread(values) for size, values in ratios.items()}
    for what, rounds in figures.items():
        require_between(what, rounds, *TIMING)
    return figures


# ---- training --------------------------------------------------------------------------------------------------------


def train(machine: Machine, name: str, out: str, *flags: object, **environment: str) -> dict:
    """Run train_NAME.py on a rank for each GPU, single on one; return its losses, and where it began."""
    count = 1 if name == "single" else machine.ranks
    program = machine.project / f"training/train_{name}.py"
    shape = () if machine.device == "cuda" else TINY
    batch = math.ceil(32 / machine.ranks) * machine.ranks  # for single, too: the same losses need the same batch
    arguments = ["--out", out, "--steps", STEPS_OF_TRAINING, "--global-batch", batch]
    arguments += [*shape, *flags]
    output = run_ranks(machine, count, program, *arguments, **environment)
    began = re.search(r"ranks +\d+ \((\w+), (\w+).*start +at step (\d+)", output, re.S)
    require(began, f"it did not say where it begins: {output}")
    require(began[1] == machine.device, f"it ran on {began[1]}, not on {machine.device}")
    rows = [json.loads(line) for line in (machine.folder / out / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row and row["step"] > int(began[3])]
    return {"dtype": began[2], "first_step": int(began[3]), "losses": losses}


def learn(machine: Machine, name: str, out: str, dtype: str, *flags: object) -> list[float]:
    """Train in a precision, and require that the loss falls. Returns the losses."""
    found = train(machine, name, out, "--dtype", dtype, *flags)
    require(found["dtype"] == dtype, f"dtype {found['dtype']}, not {dtype}")
    losses = found["losses"]
    require(losses[0] - losses[-1] > LEAST_FALL, f"the loss fell by too little: {losses}")
    return losses


def training(machine: Machine, name: str) -> dict:
    """A training program learns in float32."""
    losses = learn(machine, name, "run", "float32")
    return {"loss fell by": round(losses[0] - losses[-1], 3)}


def same_losses(machine: Machine) -> dict:
    """Single, DDP and FSDP have the same losses in float64."""
    losses = {name: train(machine, name, name, "--dtype", "float64")["losses"] for name in ("single", "ddp", "fsdp")}
    differences = [abs(loss - losses["single"][step]) for run in losses.values() for step, loss in enumerate(run)]
    require(max(differences) <= TOLERANCE, f"losses differ by {max(differences)}: {losses}")
    return {"largest difference": f"{max(differences):.1e}"}


def compiled(machine: Machine) -> dict:
    """--compile has the losses of a run without it, and how much faster it is."""
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        raise Skipped("torch.compile needs a C compiler")
    flags = ("--steps", "40", "--log-every", "5", "--dtype", "float32")
    plain = train(machine, "single", "plain", *flags)["losses"]
    # A new cache: it is empty unless something is compiled, and no earlier run has filled it. torch hands its path to
    # the compiler without quotes, so it may have no space.
    with tempfile.TemporaryDirectory() as cache:
        losses = train(machine, "single", "compiled", *flags, "--compile", TORCHINDUCTOR_CACHE_DIR=cache)["losses"]
        require(list(Path(cache).glob("*/*.py")), "nothing was compiled: torch's cache has no kernel")
    difference = max(abs(a - b) for a, b in zip(plain, losses))
    require(difference < 0.05, f"the losses differ by {difference}: {plain} and {losses}")
    speeds = [logged_speeds(machine.folder / out) for out in ("plain", "compiled")]
    return {"compiled / plain": spread(fast / slow for slow, fast in zip(*speeds))}


def logged_speeds(out: Path) -> list[float]:
    """Return the tokens/s of each line of progress but the first two, in which kernels are still being made."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "loss" in row and row["step"] % 5 == 0]
    return [row["tokens_per_second"] for row in rows[2:]]


def resume(machine: Machine, name: str) -> dict:
    """It learns in bfloat16, and resumed it has the same losses, bit by bit, as a run that was not interrupted."""
    half = STEPS_OF_TRAINING // 2
    whole = learn(machine, name, "whole", "bfloat16", "--save-every", half)
    flags = ("--dtype", "bfloat16", "--save-every", half)
    shutil.copytree(machine.folder / "whole", machine.folder / "resumed", symlinks=True)  # latest is a link
    newest = sorted((machine.folder / "resumed").glob("checkpoint-*"))
    require(len(newest) == 2, f"expected two checkpoints: {newest}")
    newest[-1].unlink()
    resumed = train(machine, name, "resumed", *flags, "--resume")
    require(resumed["first_step"] == half, f"it resumed after step {resumed['first_step']}, not {half}")
    if resumed["losses"] != whole[half:]:
        again = train(machine, name, "again", *flags)["losses"]
        same = "has the same losses" if again == whole else f"has other losses too: {again}"
        require(False, f"resumed: {resumed['losses']}, whole: {whole}; a second whole run {same}")
    return {"loss fell by": round(whole[0] - whole[-1], 3), "bit equal steps": len(resumed["losses"])}


def trace(machine: Machine) -> dict:
    """--profile writes a trace with the steps, and with kernels of the GPU."""
    train(machine, "single", "traced", "--profile", "5:6")
    with gzip.open(machine.folder / "traced/trace-rank0-steps5-6.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    names = {event.get("name") for event in events}
    kind = "kernel" if machine.device == "cuda" else "cpu_op"
    count = sum(event.get("cat") == kind for event in events)
    require({"ProfilerStep#5", "ProfilerStep#6"} <= names, "a step is missing in the trace")
    require(count, f"the trace has no event of the kind {kind}")
    return {f"{kind} events": count}


def speed(machine: Machine) -> dict:
    """GPT-2 124M: the program against a plain loop, Lightning and Accelerate, in turns."""
    shape, rounds = TINY, 3
    if machine.device == "cuda":
        least_memory = min(gpu["memory_mib"] for gpu in machine.facts["gpus"])
        batch = 8 if least_memory > 38_000 else 2
        shape, rounds = (*GPT2, f"--global-batch={batch}"), 12
    output = "speed.json"
    run([sys.executable, HERE / "speed.py", machine.project, output, rounds, *shape], machine)
    found = json.loads((machine.folder / output).read_text())
    others = {name: values for name, values in found["tokens_per_second"].items() if name != "ours"}
    ours = found["tokens_per_second"]["ours"]
    figures = {f"ours / {name}": spread(a / b for a, b in zip(ours, values)) for name, values in others.items()}
    if machine.device == "cuda":  # on CPUs perf/ddp_step.py measures it, on a quiet machine
        require_between("ours / plain", figures["ours / plain"], LEAST_SPEED, float("inf"))
    figures["not installed"] = " ".join(found["not_installed"]) or "none"
    return figures


# ---- GPUs as the scripts see them ------------------------------------------------------------------------------------


def nvidia_smi_list() -> str:
    """Return what nvidia-smi lists: a line for each GPU, and for each part (MIG) of one that is split."""
    if not shutil.which("nvidia-smi"):
        raise Skipped("needs nvidia-smi")
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout


def listed_uuids() -> list[str]:
    """Return the UUIDs that nvidia-smi lists: those of the parts where a GPU is split."""
    output = nvidia_smi_list()
    return re.findall(r"UUID: (MIG-[^)\s]+)", output) or re.findall(r"UUID: ([^)\s]+)", output)


def visible_devices(machine: Machine) -> dict:
    """launch/count_gpus.sh counts as torch does, for CUDA_VISIBLE_DEVICES by index, by UUID, empty."""
    count_gpus = ["bash", "-c", 'source "$1"; count_gpus', "bash", machine.project / "launch/count_gpus.sh"]
    count_in_torch = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    values = {"empty": ""}
    if machine.device == "cuda":
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        values |= {"as it is": os.environ.get("CUDA_VISIBLE_DEVICES"), "first": first, "UUID": listed_uuids()[0]}
    counts = {}
    for name, value in values.items():
        environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
        ours = run(count_gpus, machine, **environment).split()[-1]
        torch = run([sys.executable, "-c", count_in_torch], machine, **environment).split()[-1]
        require(ours == torch, f"CUDA_VISIBLE_DEVICES {name} ({value!r}): count_gpus says {ours}, torch {torch}")
        counts[name] = int(ours)
    require(counts["empty"] == 0, f"an empty CUDA_VISIBLE_DEVICES leaves {counts['empty']} GPUs")
    return counts


def preflight(machine: Machine) -> dict:
    """preflight_node.sh reads the real nvidia-smi: right with all GPUs, and with one too many wanted it says so."""
    found = preflight_lines(machine)
    counted = int(found["gpus"][0])
    if machine.device == "cpu":
        require(counted == 0, f"{counted} GPUs, where torch has none")
        return {"GPUs": counted}
    whole = len(re.findall("^GPU", nvidia_smi_list(), re.M))
    require(counted == whole, f"preflight counts {counted} GPUs, nvidia-smi lists {whole}")
    listed = len(listed_uuids())
    loaded = "1" if machine.facts["driver"] else "0"
    require(found["drivers"] == [loaded], f"preflight counts {found['drivers']} drivers, not {loaded}")
    faults = preflight_lines(machine, SLURM_GPUS_ON_NODE=str(listed)).get("fault", [])
    require(not any("nvidia-smi" in fault for fault in faults), f"a fault where all is well: {faults}")
    faults = preflight_lines(machine, SLURM_GPUS_ON_NODE=str(listed + 1)).get("fault", [])
    expected = f"nvidia-smi -L sees {listed} GPU(s), not {listed + 1}"
    require(any(expected in fault for fault in faults), f"no fault '{expected}': {faults}")
    return {"GPUs": counted}


def preflight_lines(machine: Machine, **environment: str) -> dict[str, list[str]]:
    """Run preflight_node.sh as slurm/preflight.sh has srun run it; return the texts of each kind of line."""
    scripts = [machine.project / name for name in ("launch/count_gpus.sh", "slurm/preflight_node.sh")]
    (machine.folder / "preflight.sh").write_text("\n".join(path.read_text() for path in scripts))
    of_a_step = {"SLURMD_NODENAME": socket.gethostname(), "SLURM_NODEID": "0"}
    of_a_step |= {"RUN_DIR": str(machine.folder), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    # All GPUs of the node count here, and not those of CUDA_VISIBLE_DEVICES.
    command = ["env", "-u", "CUDA_VISIBLE_DEVICES"] if machine.device == "cuda" else ["env"]
    output = run([*command, "bash", "preflight.sh"], machine, **of_a_step, **environment)
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        _, kind, text = line.split("\t")
        found.setdefault(kind, []).append(text)
    require(found["at"][-1] == "end", f"the check did not end: {found['at'][-1]}")
    return found


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def watch(machine: Machine) -> dict:
    """extras/watch/node.sh samples a rank that trains: its GPU's use, memory and power from the real nvidia-smi."""
    job = str(10**9 + os.getpid())  # no job of Slurm has such a number
    program = machine.project / "training/train_ddp.py"
    width = 1024 if machine.device == "cuda" else 64  # large enough to keep a GPU busy
    flags = ["--out", "run", "--steps", 10**6, "--save-every", 10**6, "--width", width]
    command = ranks_command(machine, program, *flags)
    environment = {**os.environ, "SLURM_JOB_ID": job, "NPROC_PER_NODE": "1"}
    words = [str(word) for word in command]
    printed = machine.folder / "training.txt"
    with printed.open("w") as output:
        ranks = subprocess.Popen(words, cwd=machine.folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    # It runs until the end of this step, whose processes the harness ends.
    wait_for(lambda: "step 10/" in printed.read_text(), f"'step 10/' in {printed}", ranks)
    output = run([machine.project / "extras/watch/node.sh", job, 2, 3], machine)
    node = read_samples(machine.project, output)
    samples = list(node.samples)
    require(
        len(samples) == 3 and all(0 in sample.ranks for sample in samples), f"not three samples of rank 0: {output}"
    )
    require(node.cores()[0] > 0, "rank 0 has used no CPU")
    require(samples[-1].metrics, "the metrics.jsonl of rank 0 was not found")
    if machine.device == "cpu":
        return {"samples": len(samples)}
    listed = listed_uuids()
    if listed[0].startswith("MIG"):
        raise Skipped("nvidia-smi says no use of a part of a GPU (MIG)")
    for sample in samples:
        require(len(sample.gpus) == len(listed), f"{len(sample.gpus)} GPUs, nvidia-smi lists {len(listed)}")
    totals = [gpu.total for gpu in samples[-1].gpus]
    expected = machine.facts["gpus"][0]["memory_mib"]
    require(any(0.9 < total / expected < 1.1 for total in totals), f"memory {totals} MiB, torch says {expected}")
    require(any(gpu.use for sample in samples for gpu in sample.gpus), f"no GPU is used: {output}")
    return {"samples": len(samples), "use": max(gpu.use for sample in samples for gpu in sample.gpus)}


def read_samples(project: Path, output: str) -> object:
    """Return the node of which node.sh printed these lines, as extras/watch/watch.sh reads it."""
    sys.path.insert(0, str(project / "extras/watch"))
    from samples import Reader

    nodes: dict = {}
    reader = Reader(nodes)
    for line in output.splitlines():
        reader.add(line, time.monotonic())
    require(len(nodes) == 1, f"not the samples of one node: {output}")
    return next(iter(nodes.values()))


def wait_for(is_there: Callable[[], object], what: str, process: subprocess.Popen) -> None:
    """Wait until something is there, or until the limit of the step; fail if the process that makes it ends."""
    print(f"waiting for {what}", flush=True)
    while not is_there():
        require(process.poll() is None, f"{what} never came: its process ended with exit code {process.returncode}")
        time.sleep(0.2)


def one_gpu() -> dict[str, str]:
    """Return the variable with which all ranks see the first GPU alone."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}


def shared_gpu(machine: Machine) -> dict:
    """check/ranks.py says that two ranks share a GPU, where NCCL would fail with an error of its own."""
    require_gpu(machine)
    output = run_ranks(machine, 2, machine.project / "check/ranks.py", exit_code=1, **one_gpu())
    require("ranks 0, 1 share one GPU of" in output, "no sentence says that ranks share a GPU")
    return {"ranks": 2}


# ---- a collective that is stuck --------------------------------------------------------------------------------------


def stuck_collective(machine: Machine) -> dict:
    """Stacks of ranks in a stuck collective while it hangs, and the flight recorder's dump after its timeout.

    With two GPUs rank 1 does not enter it. With one, NCCL may have only one rank there: its GPU is busy for so long
    that the collective does not begin.
    """
    count = min(machine.ranks, 2)
    logs = machine.folder / "logs"
    logs.mkdir()
    words = [str(word) for word in ranks_command(machine, HERE / "stuck_collective.py", machine.folder)]
    environment = {**os.environ, "RUN_DIR": str(logs), "NPROC_PER_NODE": str(count)}
    environment["PYTHONPATH"] = str(machine.project / "extras/hangs/python")
    # NCCL's watchdog waits four times as long before it ends the rank: a minute by default (H200, torch 2.11).
    environment["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "5000"
    with open(machine.folder / "output.txt", "w") as output:
        ranks = subprocess.Popen(words, cwd=machine.folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    wait_for(lambda: len(list(machine.folder.glob("entered-*"))) == count, "all ranks at the stuck collective", ranks)
    time.sleep(2)  # a rank counts as waiting after one second
    stacks = machine.project / "extras/hangs"
    pipeline = f"'{stacks}/collect.sh' 'RUN_DIR={logs}' | '{sys.executable}' '{stacks}/group.py'"
    live = run(["bash", "-c", pipeline], machine)
    told = set(re.findall(r"stuck_collective\.py:\d+ in (\w+)", live))
    expected = {"enter"} if count == 1 else {"enter", "stay_away"}
    require(expected <= told, f"the stacks do not name {expected - told}")
    missing = "rank 1 on .* has not entered all_reduce number 2"
    if machine.device == "cpu":  # NCCL's recorder is not read while a rank runs
        require(re.search(missing, live), f"no line says '{missing}'")

    ranks.wait()
    print((machine.folder / "output.txt").read_text())
    require(ranks.returncode, "the collective did not time out")
    left = sorted(path.name for path in logs.glob("*-rank-*"))
    require(("nccl-rank-0" if machine.device == "cuda" else "collectives-rank-0") in left, f"no dump: {left}")
    dump = run([sys.executable, "-c", PRINT_DUMP, stacks, logs], machine)
    calls = [json.loads(line.split(" ", 1)[1]) for line in dump.splitlines() if line.startswith("collective ")]
    unfinished = {(call["kind"], call["number"]) for call in calls if not call["finished"]}
    require(("all_reduce", 2) in unfinished, f"all_reduce number 2 is not unfinished: {calls}")
    require(any(call["number"] == 1 and call["finished"] for call in calls), f"number 1 has not ended: {calls}")
    if count == 2:
        after = run(["bash", "-c", f"'{sys.executable}' '{stacks}/group.py' '{logs}'; true"], machine)
        require("not entered all_reduce number 2" in after or "left no record" in after, "no rank is named as missing")
    return {"ranks": count, "dump": " ".join(left)}


# A program: prints what ranks have left in the folder of a run, a line for each collective.
PRINT_DUMP = """
import sys
sys.path.insert(0, sys.argv[1])
import records
print(*records.left_by_ranks(sys.argv[2]), sep="\\n")
"""


# ---- failures for the doctor -----------------------------------------------------------------------------------------


def doctor(machine: Machine, failure: str, cause: str, count: int = 1) -> dict:
    """A failure of provoke.py is provoked, and slurm/doctor.py has to name its cause.

    cause: the name of a row in slurm/doctor/causes.py; '' where it knows none, and has to quote the error instead.
    """
    if failure != "no-visible-gpu":
        require_gpu(machine)
    environment = {} if count == 1 else one_gpu()
    if failure == "no-visible-gpu":
        environment = {"CUDA_VISIBLE_DEVICES": ""}
    return {"answer": compare_answer(machine, cause, [HERE / "provoke.py", failure], count, **environment)}


def compare_answer(machine: Machine, cause: str, program: list[object], count: int = 1, **environment: str) -> str:
    """Run ranks that fail; return the cause that doctor.py names, and fail if it is another than `cause`."""
    words = [str(word) for word in ranks_command(machine, *program)]
    variables = {**os.environ, **environment, "NPROC_PER_NODE": str(count)}
    output = machine.folder / "output.txt"
    with output.open("w") as file:
        done = subprocess.run(words, cwd=machine.folder, env=variables, stdout=file, stderr=file, check=False)
    text = output.read_text(errors="replace")
    print(text, flush=True)
    if done.returncode == 0 and "NOT PROVOKED" in text:
        raise Skipped("this torch or NCCL allows it: " + text.partition("NOT PROVOKED: ")[2].splitlines()[0])
    require(done.returncode, "nothing failed")
    ask = [sys.executable, machine.project / "slurm/doctor.py", "--json", output]
    answer = json.loads(run(ask, machine, exit_code=0 if cause else 1))
    named = answer["causes"][0]["name"] if answer["causes"] else ""
    require(named == cause, f"doctor.py names {named or 'no cause'}, not {cause or 'none'}")
    if not cause:
        error = last_error(text)
        require(error in "\n".join(answer["words"]), f"doctor.py does not quote the error: {error}")
    return named or "no cause, the error is quoted"


def last_error(text: str) -> str:
    """Return the line of a rank's exception, without the rank's label, up to 80 characters."""
    errors = re.findall(r"^\[\S+\] (?:\[rank\d+\]: )?([\w.]*(?:Error|Exception)\b.*)", text, re.M)
    require(errors, "the output has no exception of a rank")
    return errors[0][:80]


# ---- the table -------------------------------------------------------------------------------------------------------

# Limits in seconds. Each is several times what the step may take. Most of a step is imports of torch, so a slow file
# system needs them.
STEPS = (
    Step("check ranks", check_ranks, 90),
    Step("visible devices", visible_devices, 90),
    Step("preflight", preflight, 30),
    Step("watch", watch, 150),
    Step("two ranks on one GPU", shared_gpu, 90),
    Step("pi", pi, 240),
    Step("all-reduce on one rank", partial(all_reduce, count=1), 90),
    Step("all-reduce on all GPUs", all_reduce_on_all_gpus, 120),
    Step("event timing", event_timing, 120),
    *(Step(f"training {name} float32", partial(training, name=name), 120) for name in ("single", "ddp", "fsdp")),
    Step("training same losses", same_losses, 240),
    Step("training compiled", compiled, 300),
    *(Step(f"resume {name} bfloat16", partial(resume, name=name), 240) for name in ("single", "ddp", "fsdp")),
    Step("profiler trace", trace, 120),
    Step("speed of GPT-2", speed, 300),
    Step("stuck collective", stuck_collective, 180),
    Step("doctor out of memory", partial(doctor, failure="out-of-memory", cause="GPU memory"), 90),
    Step("doctor device-side assert", partial(doctor, failure="device-side-assert", cause=""), 90),
    Step("doctor illegal memory access", partial(doctor, failure="illegal-memory-access", cause=""), 90),
    Step("doctor invalid device ordinal", partial(doctor, failure="invalid-device-ordinal", cause="no GPU"), 90),
    Step("doctor mixed devices", partial(doctor, failure="mixed-devices", cause=""), 90),
    Step("doctor no visible GPU", partial(doctor, failure="no-visible-gpu", cause="no GPU"), 90),
    Step("doctor duplicate GPU", partial(doctor, failure="duplicate-gpu", cause="no GPU", count=2), 120),
)

if __name__ == "__main__":
    main(STEPS)
