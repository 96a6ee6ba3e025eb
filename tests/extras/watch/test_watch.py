"""extras/watch/watch.sh on a real Slurm, the summary at a job's end, and what they make of figures.

GPUs are stand-ins for nvidia-smi and rocm-smi, which answer only to the options that the real ones know.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from baking import TEMPLATE, bake
from needs import needs_namespaces
from slurm_cluster import Cluster
from submitting import apptainer_project, cluster
from submitting import project_of_extras as project
from two_nodes import ANSWERS, ENVIRONMENT
from waiting import wait_for

sys.path.insert(0, str(TEMPLATE / "extras/watch"))

import progress
import samples
import screen
import words

# A title, a link, the clipboard, another screen, a reset, a way back in the line; C1 in UTF-8, and as a byte alone.
NASTY = "\x1b]0;t\x07\x1b]8;;http://x\x1b\\\x1b]52;c;eA==\x07\x1b[?1049h\x1bc\x1bP1\x9b2J\x08\x7f\udc9b ü"
WATCHED = Path(__file__).with_name("watched.py")
SETTINGS = {**ENVIRONMENT, "NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1", "PREFLIGHT": "0"}
# index, use, used memory, memory, power; node2 has a GPU that does nothing.
NVIDIA = """\
#!/bin/bash
[[ $* == "--query-gpu=index,utilization.gpu,memory.used,memory.total,power.draw --format=csv,noheader,nounits" ]] ||
    { echo "Field is not a valid field to query." && exit 2; }
case $SLURMD_NODENAME in
    node1) printf '%s\\n' "0, 98, 71680, 81920, 640.12" "1, 96, 61440, 81920, 600.00" ;;
    *) printf '%s\\n' "0, 0, 4, 81920, [N/A]" "1, 60, 10240, 81920, 300.00" ;;
esac
"""
AMD = """\
#!/bin/bash
[[ $* == "--showuse --showmeminfo vram --csv" ]] || { echo "usage: rocm-smi" && exit 2; }
echo
echo "device,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)"
echo "card0,95,68702699520,34351349760"
echo "card1,93,68702699520,10960896"
"""


@pytest.fixture
def start(cluster, project, tmp_path):
    """Returns start(*options of sbatch, **environment) -> number of a job that runs until the test is over."""
    (tmp_path / "watched.py").write_text(WATCHED.read_text())
    jobs = []

    def submit(*options, steps=1000000, **environment):
        words = [*options, project / "slurm/submit_multinode.sh", "watched.py", "6000", steps]
        jobs.append(cluster.sbatch(*map(str, words), cwd=tmp_path, env={**SETTINGS, **environment}))
        return jobs[-1]

    yield submit
    for job in jobs:
        cluster.run("scancel", "--signal=KILL", "--full", str(job), check=False)
        cluster.run("scancel", str(job), check=False)
        cluster.wait(job)


def watch(cluster, project, folder, *words, check=True, **environment):
    return cluster.run(
        "bash", project / "extras/watch/watch.sh", *map(str, words), cwd=folder, check=check, env=environment
    )


def shows(cluster, project, folder, job, *patterns, **environment):
    """Wait until the screen has a line for each pattern; return the screen. Ranks may still be on their way."""
    seen = []

    def found():
        done = watch(cluster, project, folder, job, "--once", check=False, **environment)
        seen[:] = [done.stdout + done.stderr]
        return all(re.search(pattern, done.stdout, re.MULTILINE) for pattern in patterns)

    wait_for(found, lambda: f"{patterns} in:\n{seen[0]}")
    return seen[0]


def tool(folder, name, text):
    """Put a program into a folder; return a PATH that finds it first."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return f"{folder}:/usr/local/bin:/usr/bin:/bin"


def pipes_have_times():
    """Return whether this kernel notes when a pipe is written to."""
    _, sink = os.pipe()
    before = os.fstat(sink).st_mtime_ns
    time.sleep(0.05)
    os.write(sink, b"x")
    return os.fstat(sink).st_mtime_ns != before


LAUNCHERS = [
    "torchrun",
    *(pytest.param(name, marks=pytest.mark.drill) for name in ("spawn", "srun", "mpirun", "mpirun-ranks")),
]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_on_cpus(cluster, project, tmp_path, start, launcher):
    """Under each launcher: the training, each rank's last line, and the rank that is idle."""
    job = start(LAUNCHER=launcher)
    silent = (r"\ds, [1-9]\d*s", r"s( x2|, \d+s)")
    if launcher in ("srun", "mpirun-ranks") and not pipes_have_times():
        silent = (r"\? x2", r"\? x2")
    said = shows(
        cluster,
        project,
        tmp_path,
        job,
        rf"^job {job}, demo: RUNNING for 0:\d\d:\d\d of 0:30:00, 2 node\(s\)\. \d\d:\d\d:\d\d$",
        r"^training: step \d+ of 1000000, loss \d\.\d{4}, 1,23[45] tokens/s, done in \d.*, at \d\d:\d\d$",
        r"^! the walltime is over in 0:[12]\d:\d\d, but the training needs ",
        r"^! idle: rank 1 \(node1\)$",
        r"^node   ranks  cores used  load +memory \[GiB\] +last line of each rank$",
        rf"^node1  0-1    0\.\d +\d+\.\d +\d.* of \d.*  {silent[0]}$",
        rf"^node2  2-3    [01]\.\d .*{silent[1]}$",
    )
    assert "no rank computes" not in said


def test_gpus(cluster, project, tmp_path, start):
    job = start("--time=1-00:00:00", steps=100)
    said = shows(
        cluster,
        project,
        tmp_path,
        job,
        r"^node   ranks  GPU use \[%\]  GPU memory \[GiB\]  power \[W\]  cores used  last line of each rank$",
        r"^node1  0-1     98  96      70\.0 of 80\.0      640 600    [01]\.\d         \d+s, \d+s$",
        r"^node2  2-3      0  60      10\.0 of 80\.0      300        [01]\.\d         \d+s",
        r"^! idle: GPU 0 of node2$",
        r"^! unequal: node2 uses its GPUs to 30 %, the other nodes to 97 %$",
        PATH=tool(tmp_path / "bin", "nvidia-smi", NVIDIA),
    )
    assert "idle: rank" not in said, "a GPU of rank 1 is in use"


@pytest.mark.drill
def test_gpus_of_amd(cluster, project, tmp_path, start):
    shows(
        cluster,
        project,
        tmp_path,
        start(),
        r"^node1  0-1     95  93      32\.0 of 64\.0      -          [01]\.\d ",
        PATH=tool(tmp_path / "bin", "rocm-smi", AMD),
    )


def test_all_ranks_sleep(cluster, project, tmp_path, start):
    (tmp_path / "watched.py").write_text("import time; time.sleep(6000)")
    shows(
        cluster,
        project,
        tmp_path,
        start(),
        "^training: no rank has a metrics.jsonl open$",
        "^! no rank computes: the job hangs",
        "^node2  2-3 ",
    )


def test_a_job_of_an_array(cluster, project, tmp_path, start):
    job = start("--array=3", "--nodes=1")
    shows(cluster, project, tmp_path, f"{job}_3", "^job [0-9]+, demo: RUNNING", "^node1  0-1 ")


def test_on_a_terminal_until_the_job_ends(cluster, project, tmp_path, start):
    """The screen is drawn anew, and the job's end ends it."""
    job = start()
    shows(cluster, project, tmp_path, job, "^node2  2-3 ")
    typescript = tmp_path / "typescript"
    command = f"stty cols 60 rows 5; bash {shlex.quote(str(project / 'extras/watch/watch.sh'))} {job} --every 1"
    done = []
    thread = threading.Thread(target=lambda: done.append(on_a_terminal(cluster, command, typescript)))
    thread.start()
    wait_for(lambda: typescript.exists() and typescript.read_text().count("\033[H") >= 3, "three screens")
    cluster.run("scancel", str(job))
    thread.join()
    assert done[0].returncode == 0, done
    screens = typescript.read_text().split("\033[H")[1:]
    lines = [line.rstrip("\r\n") for line in screens[1].split("\033[K")]
    assert lines[0].startswith(f"job {job}, demo: RUNNING for ")
    assert all(len(line.strip()) <= 60 for line in lines[:-1]), lines
    assert re.search(
        rf"job {job} is (COMPLETING|CANCELLED|FAILED) now\. Why a job ended: python3 slurm/doctor", screens[-1]
    )


def test_ctrl_c_ends_the_step_and_not_the_job(cluster, project, tmp_path, start):
    needs_namespaces(cluster)
    job = start()
    shows(cluster, project, tmp_path, job, "^node2  2-3 ")
    script = shlex.quote(str(project / "extras/watch/watch.sh"))
    command = f"timeout --foreground --signal=INT 6 bash {script} {job} --every 1"
    on_a_terminal(cluster, command, tmp_path / "typescript")
    said = (tmp_path / "typescript").read_text()
    assert f"job {job} goes on" in said and "Traceback" not in said
    wait_for(lambda: "node.sh" not in str(cluster.running("node2")), "the end of the step")
    assert "RUNNING" in cluster.run("squeue", "-h", "-o%T", f"--jobs={job}").stdout


def on_a_terminal(cluster, command, typescript):
    return cluster.run("script", "--quiet", "--return", "--command", command, typescript, check=False)


@pytest.mark.drill
@pytest.mark.parametrize("name", ["cluster24", "cluster26"])
def test_newer_slurms(request, name, project, tmp_path):
    """The screen, and the last line of the job."""
    cluster = request.getfixturevalue(name)
    (tmp_path / "watched.py").write_text(WATCHED.read_text())
    words = [project / "slurm/submit_multinode.sh", "watched.py", "20", "1000000"]
    job = cluster.sbatch(*words, cwd=tmp_path, env={**SETTINGS, "MEASURE_EVERY": "2"})
    shows(
        cluster, project, tmp_path, job, r"^! idle: rank 1 \(node1\)$", r"^node2  2-3    [01]\.\d ", "^training: step"
    )
    assert cluster.wait(job).output.splitlines()[-1].startswith("CPUs: a rank used 0.")


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_in_apptainer(containers, sif, tmp_path, tmp_path_factory, launcher):
    """Processes in a container are found as others: the training, the idle rank, and the last line of the job."""
    needs_namespaces(containers)
    own = apptainer_project(tmp_path_factory, sif, "watch")
    (own / "watched.py").write_text(WATCHED.read_text())
    words = [own / "slurm/submit_multinode.sh", "watched.py", "20", "1000000"]
    job = containers.sbatch(*words, cwd=own, env={**SETTINGS, "LAUNCHER": launcher, "MEASURE_EVERY": "2"})
    patterns = [r"^! idle: rank 1 \(node1\)$", r"^node1  0-1    \d", r"^node2  2-3    [01]\.\d ", "^training: step"]
    shows(containers, own, own, job, *patterns)
    assert containers.wait(job).output.splitlines()[-1].startswith("CPUs: a rank used 0.")


@pytest.mark.drill
def test_a_node_that_does_not_answer(project, tmp_path):
    """Its power is gone, and Slurm does not know it yet. The other node is shown all the same."""
    (tmp_path / "watched.py").write_text(WATCHED.read_text())
    with Cluster(tmp_path / "cluster", nodes=2) as cluster:
        needs_namespaces(cluster)
        words = [project / "slurm/submit_multinode.sh", "watched.py", "6000", "100"]
        job = cluster.sbatch("--no-kill", *words, cwd=tmp_path, env=SETTINGS)
        shows(cluster, project, tmp_path, job, "^node2  2-3 ")
        cluster.crash("node2")
        done = watch(cluster, project, tmp_path, job, "--once", check=False)
        assert done.returncode == 1
        assert "! no answer: node2\n" in done.stdout and re.search("^node2  no sample$", done.stdout, re.MULTILINE)
        assert re.search("^node1  0-1 ", done.stdout, re.MULTILINE), done.stdout


def test_wrong_use_is_refused(cluster, project, tmp_path):
    def refused(*words):
        done = watch(cluster, project, tmp_path, *words, check=False)
        assert done.returncode == 2 and done.stdout == "", done.stdout
        return done.stderr

    assert "'': expected the number of a job, as 4711 or 4711_3" in refused()
    assert "'demo': expected the number of a job" in refused("demo")
    assert "'8': give the number of one job only" in refused("7", "8")
    assert "unknown option '--twice': expected --once, or --every SECONDS" in refused("7", "--twice")
    assert "--every '0': expected seconds" in refused("7", "--every", "0")
    assert "Slurm knows no job 999999" in refused("999999")
    job = cluster.submit("--wrap=true", cwd=tmp_path)
    assert f"job {job.id} is COMPLETED: only a running one has ranks" in refused(job.id)
    job = cluster.sbatch("--wrap=true", "--hold", cwd=tmp_path)
    assert f"job {job} waits in the queue, and has no ranks yet: squeue --start" in refused(job)
    cluster.run("scancel", str(job))


# ---- the summary at the end of a job ---------------------------------------------------------------------------------


def summary(cluster, project, folder, program="watched.py 6 100", **environment):
    (folder / "watched.py").write_text(WATCHED.read_text())
    words = [project / "slurm/submit_multinode.sh", *program.split()]
    return cluster.submit(*words, cwd=folder, env={**SETTINGS, "MEASURE_EVERY": "1", **environment})


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun-ranks"])
def test_the_last_line_of_a_job(cluster, project, tmp_path, launcher):
    job = summary(cluster, project, tmp_path, LAUNCHER=launcher)
    assert job.state == "COMPLETED"
    said = r"CPUs: a rank used 0\.\d\d cores on average, memory of a node at most \d+\.\d of \d+\.\d GiB"
    assert re.fullmatch(said, job.output.splitlines()[-1]), job.output


def test_the_last_line_of_a_job_with_gpus(cluster, project, tmp_path):
    job = summary(cluster, project, tmp_path, PATH=tool(tmp_path / "bin", "nvidia-smi", NVIDIA))
    wanted = "GPUs: on average 64 % in use (least: 0 %, GPU 0 of node2), memory at most 70.0 of 80.0 GiB"
    assert job.output.splitlines()[-1] == wanted


@pytest.mark.parametrize(
    ("program", "every"),
    [
        ("watched.py 0 100", "30"),
        *(pytest.param(*row, marks=pytest.mark.drill) for row in [("watched.py 3 100", "0"), ("fails.py", "1")]),
    ],
)
def test_no_summary(cluster, project, tmp_path, program, every):
    """Of a job that is too short, of one that does not want it, and of one that fails."""
    (tmp_path / "fails.py").write_text("import time; time.sleep(4); raise SystemExit(3)")
    job = summary(cluster, project, tmp_path, program, MEASURE_EVERY=every)
    assert job.state == ("FAILED" if program == "fails.py" else "COMPLETED")
    assert "CPUs: " not in job.output and "GPUs: " not in job.output


def test_a_setting_that_is_no_number(cluster, project, tmp_path):
    job = summary(cluster, project, tmp_path, MEASURE_EVERY="often")
    assert job.exit_code == 2 and "MEASURE_EVERY='often': expected whole seconds" in job.output


@pytest.mark.drill
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_alone_and_deleted(cluster, tmp_path, launcher):
    """In a project without other extras; without its folder its setting is refused, and nothing is measured."""
    own = bake(tmp_path / "own", **ANSWERS, extras="watch")
    job = summary(cluster, own, tmp_path, LAUNCHER=launcher)
    assert job.state == "COMPLETED" and job.output.splitlines()[-1].startswith("CPUs: a rank used "), job.output
    shutil.rmtree(own / "extras/watch")
    refused = summary(cluster, own, tmp_path, LAUNCHER=launcher)
    assert refused.exit_code == 2 and ": extras/watch is not in this project" in refused.output
    job = summary(cluster, own, tmp_path, LAUNCHER=launcher, MEASURE_EVERY="0")
    assert job.state == "COMPLETED" and "CPUs: " not in job.output, job.output


# ---- what is made of the figures -------------------------------------------------------------------------------------


def told(nodes, samples_of=2):
    """Return nodes by name that have told samples: of each a list of lines, with SECONDS for the time so far."""
    by_name = {name: samples.Node(name) for name in nodes}
    reader = samples.Reader(by_name)
    for number in range(samples_of):
        for index, (name, lines) in enumerate(nodes.items()):
            for line in (f"node host={name} load=1.50 used=2048 total=8192", *lines, f"end {10 * number}.0"):
                reader.add(f" {index}: {line.replace('SECONDS', str(10 * number))}", now=time.monotonic())
    return by_name


def busy(*uses):
    """Return lines of a node whose GPUs are used so much, each by a rank."""
    gpus = [f"nvidia {index}, {use}, 1024, 2048, 100" for index, use in enumerate(uses)]
    return gpus + [f"rank {index} cpu=SECONDS.0 silent=1" for index in range(len(uses))]


def test_lines_that_are_torn_or_of_others_do_no_harm():
    reader = samples.Reader({})
    lines = ["prolog says hello", "0: rank x cpu=", "0: end", "0: node host=a", "0: nvidia 0, 5", "0: rank 1 cpu=1"]
    for line in [*lines, "0: nvidia 0, [N/A], [N/A], [N/A], [N/A]", "0: amd card0,1", "0: rank 3 cpu=1.5 silent="]:
        assert reader.add(line, 0.0) is None
    node = reader.add("0: end 7.5", 0.0)
    (gpu, other), sample = node.last().gpus, node.last()
    assert (node.name, sample.time, sample.load, sample.ranks) == ("a", 7.5, None, {3: (1.5, None)})
    assert {gpu.use, gpu.used, gpu.total, gpu.power, other.use, other.used} == {None}


def test_idle_ranks_are_named_with_their_gpu():
    idle = ["nvidia 0, 90, 1, 2, 3", "nvidia 1, 0, 1, 2, 3", "rank 8 cpu=SECONDS silent=1", "rank 9 cpu=5 silent=1"]
    nodes = told({"a": busy(90, 91), "b": idle})
    assert samples.remarks(nodes.values()) == [
        "idle: rank 9 (GPU 1 of b)",
        "unequal: b uses its GPUs to 45 %, the other nodes to 90 %",
    ]
    assert samples.remarks(told({"a": busy(90, 91), "b": busy(89, 95)}).values()) == []


def test_nodes_with_less_cores_in_use():
    nodes = {name: ["rank 0 cpu=SECONDS silent=1"] for name in "abc"} | {"d": ["rank 3 cpu=1 silent=1"]}
    nodes["d"] = ["rank 3 cpu=SECONDS silent=1"]
    by_name = told(nodes)
    by_name["d"].samples[-1].ranks[3] = (6.0, 1.0)
    wanted = ["unequal: the ranks on d use 0.6 cores, those on other nodes 1.0"]
    assert samples.remarks(by_name.values()) == wanted


def test_a_thousand_nodes_fit_on_a_screen():
    """Those that are named come first, and a line sums up the others."""
    nodes = {f"n{number:04}": busy(95, 96, 97, 98) for number in range(1000)}
    nodes["n0777"] = busy(95, 96, 0, 98)
    by_name = told(nodes)
    lines = screen.table(list(by_name.values()), samples.remarks(by_name.values()), 20)
    assert len(lines) == 20
    assert lines[1].startswith("n0777  0-3     95  96   0  98  1.0 of 2.0 ")
    assert lines[2].startswith("n0000 ")
    assert lines[-1] == "982 more node(s): GPU use 95 to 98 %, on average 96 %"
    assert len(screen.table(list(by_name.values()), [], None)) == 1001


def test_control_characters_are_shown(monkeypatch):
    """In the name of the job, the nodes, and what srun says."""
    nodes = {NASTY: samples.Node(NASTY)}
    silent = SimpleNamespace(arguments=[5], steps=(), started=0.0, nodes=nodes, last_error=lambda: NASTY)
    facts = {"name": NASTY, "state": "RUNNING", "start": None, "end": None, "output": ""}
    monkeypatch.setattr(screen, "facts_of", lambda job: facts)
    for width in (None, 80):
        lines = screen.screen("7", silent, width, None)
        assert max(map(len, lines)) <= (width or 1000)
        assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in "".join(lines))
    assert "^[]52;c;" in "\n".join(lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [([1, 1, 1], "1s x3"), ([3, 200, 200, None], "3s, 3m x2, ?"), ([7200], "2h"), ([], "")],
)
def test_how_long_ranks_are_silent(seconds, text):
    assert screen.last_lines(seconds) == text


def test_ranges_and_durations():
    assert (words.ranges([5, 0, 1, 2, 8]), words.ranges([])) == ("0-2,5,8", "")
    assert [words.duration(seconds) for seconds in (0, 3661, 90061)] == ["0:00:00", "1:01:01", "1-1:01:01"]


def test_a_training_s_end(tmp_path):
    """Steps that are written together count once; the first line may be cut, and the last one not be whole."""
    rows = [f'{{"step": {step}, "steps": 50, "loss": 1.5, "time": {1000 + step // 5}}}' for step in range(1, 21)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(['5, "loss": 1}', *rows, '{"step": 21, "lo']))
    known = progress.Training(tmp_path / "metrics.jsonl")
    assert (known.step, known.steps, known.loss, known.val_loss, known.seconds_per_step) == (20, 50, 1.5, None, 0.25)
    assert (known.seconds_left(1004), known.seconds_left(1006)) == (7.5, 5.5)
    assert known.is_late(1065) and not known.is_late(1063)
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    known = progress.Training(tmp_path / "metrics.jsonl")
    assert (known.step, known.seconds_left(0), known.is_late(1e9)) == (3, None, False)
    (tmp_path / "metrics.jsonl").write_text("")
    assert screen.in_words(progress.Training(tmp_path / "metrics.jsonl"), 0) == "no step yet"
