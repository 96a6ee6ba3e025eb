"""Writes run.json into the folder of a run's logs: which code, software and machines the run had.

    python3 launch/code/record.py [OPTIONS] -- [PROGRAM ARGUMENTS]     --help names the options

The script that starts the ranks calls this one in the background, so that they do not wait for it. It writes run.json
with what it knows, and writes it anew when it knows more. First comes git's state, then the image's checksum. Last come
the packages, which rank 0 lists (launch/stacks/python/rank_packages.py). changes.diff beside run.json has what was not
committed.

Nobody but you can read these files. Of env.sh they have the project's settings, and not your own variables, which may
be keys. The value of a name such as WANDB_API_KEY or --hub-token is written as ***.

Read from the environment: RUN_DIR (the folder of logs), PROJECT_DIR, SNAPSHOTS (see snapshot.py), and variables of the
scheduler.
It runs on compute nodes: Python 3.6, standard library only.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH=1 leaves this folder out

from git_state import GitError, private, state_of

# The project that runs. With SNAPSHOT=1 this is the copy, and PROJECT_DIR names the original.
OWN_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# Options of sbatch, and the variables in which a job finds what they have given it.
ALLOCATION = {
    "nodes": "SLURM_JOB_NUM_NODES",
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "qos": "SLURM_JOB_QOS",
}
PACKAGES_WITHIN = 1800  # seconds that rank 0 may take to start, as from a container that is still fetched
# The settings of env.sh, of Slurm, Run:ai and local projects.
SETTINGS = {
    *("BAD_NODE_DAYS", "BINDS", "CONTAINER_EXEC", "CONTAINER_SRUN_ARGS", "CPU_RANKS_PER_NODE", "IMAGE"),
    *("KEEP_CONTAINER", "LAUNCHER", "MASTER_ADDR_SUFFIX", "MAX_REQUEUES", "MAX_RESTARTS"),
    *("MIN_NODES", "MODULES", "NNODES", "NPROC_PER_NODE", "PREFLIGHT", "PYTHON", "RANK_PREFIX", "RUNTIME"),
    *("SNAPSHOT", "SPARES", "STALL_ACTION", "STALL_TIMEOUT", "STOP_SIGNAL"),
    *("TORCHRUN_OPTIONS", "VENV", "WHEELS"),
    # of single sites
    *("APPTAINER_TMPDIR", "HF_HOME", "HF_HUB_OFFLINE", "PIP_EXTRA_INDEX_URL", "TRITON_HOME", "WANDB_MODE"),
    *("XDG_CACHE_HOME",),
    # Run:ai
    *("CHECK_VOLUMES", "CPUS_PER_NODE", "FORWARD", "GPUS_PER_NODE", "HOST_IPC", "JOB_PREFIX", "KEEP_ENTRYPOINT"),
    *("LARGE_SHM", "MEMORY_PER_NODE", "NODE_POOLS", "POD_PROJECT_DIR", "PREEMPTIBLE", "RDMA", "RDMA_ANNOTATIONS"),
    *("RDMA_RESOURCES", "RDZV_TIMEOUT", "REQUIRE_RDMA", "RETRIES", "RUNAI_CLI", "RUNAI_OPTIONS", "RUNAI_PROJECT"),
    *("RUN_AS_GID", "RUN_AS_UID", "SECRETS", "VOLUMES"),
}
# The end of a variable's or an option's name whose value is a key: WANDB_API_KEY, --hub-token; not --max-tokens.
KEY = r"((?:^|[-_.,=:\s])(?:api-?key|key|token|secret|password|passwd|passphrase|credentials?))"
IS_KEY = re.compile(KEY + "$", re.IGNORECASE)
HAS_KEY = re.compile(KEY + r"=[^,\s]+", re.IGNORECASE)  # NAME=VALUE in a text
PASSWORD = re.compile(r"(://)[^/\s@]+@")  # of a URL, http://user:password@host
MASK = "***"
# run.json takes variables that begin with one of these, or contain OF_MPI: they change how a run communicates and
# computes.
TAKEN = (
    *("NCCL_", "GLOO_", "UCX_", "FI_", "MPICH_", "RDZV_", "NPROC_PER_NODE"),
    *("TORCH_", "PYTORCH_", "CUDA_", "ROCR_", "HIP_", "HSA_", "MIOPEN_", "OMP_", "MKL_"),
    "ALLOW_CPU",
)
OF_MPI = "_MCA_"  # a parameter of an MPI library


def main():
    """Write what is known, then what takes longer."""
    args = read_arguments()
    folder, project = os.environ["RUN_DIR"], os.environ["PROJECT_DIR"]
    run = facts_at_once(args, project)
    write(run, folder)
    run["code"] = code(project, folder)
    write(run, folder)
    if args.image:
        run["image"] = image(args, os.path.join(project, "logs"))
        write(run, folder)
    run.update(wait_for_packages(folder, args.parent))
    if args.nodes_file:
        with open(args.nodes_file) as file:
            run["nodes"] = sorted(set(file.read().splitlines()))
    write(run, folder)


def read_arguments():
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="", help="the container's image: a file, or its name in a registry")
    parser.add_argument("--digest-command", default="", help="what prints the digest of an IMAGE that is no file")
    parser.add_argument("--nodes-file", default="", help="a file with a node per line, complete once rank 0 runs")
    parser.add_argument("--nodes", default="", help="the nodes of the ranks, separated by commas")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="the process of the script that calls this one"
    )
    parser.add_argument("--script", default="", help="the job's script, with its #SBATCH lines")
    parser.add_argument("program", nargs="*", help="the program and its arguments, as they were typed")
    args = parser.parse_args()
    if not {"RUN_DIR", "PROJECT_DIR"}.issubset(os.environ):
        parser.exit(2, "launch/code/record.py: call the submit script, which starts this file for each run\n")
    return args


def write(run, folder):
    """Replace run.json in one step, so that no reader finds half of it."""
    unfinished = os.path.join(folder, "run.json.new")
    with open(unfinished, "w", opener=private) as file:
        json.dump(run, file, indent=1)
        file.write("\n")
    os.replace(unfinished, os.path.join(folder, "run.json"))


# ---- what is known at once ----------------------------------------------------------------------------------------


def facts_at_once(args, project):
    """Return what the environment, and files on this node, tell."""
    settings, changed = settings_of(os.path.join(OWN_PROJECT, "env.sh"))
    facts = {
        "job": os.environ.get("SLURM_JOB_ID") or os.path.basename(os.environ["RUN_DIR"]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "project": project,
        "folder": os.getcwd(),
        "program": masked_words(args.program),
        "settings": masked(settings),
        "changed_settings": masked(changed),
        "environment": masked({name: os.environ[name] for name in sorted(os.environ) if is_taken(name)}),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "nodes": [name for name in args.nodes.split(",") if name],
        "versions": versions(),
        "code": None,
        "image": {"name": args.image} if args.image else None,
        "python": None,
        "torch": None,
        "packages": None,
    }
    if "SLURM_JOB_ID" in os.environ:
        facts.update(facts_of_slurm(args))
    return facts


def is_taken(name):
    """Return whether run.json takes a variable."""
    return name.startswith(TAKEN) or OF_MPI in name


def masked(variables):
    """Return variables, strings and lists of strings, without keys."""
    found = {}
    for name, value in variables.items():
        if isinstance(value, list):
            found[name] = masked_words(value)
        else:
            found[name] = MASK if value and IS_KEY.search(name) else masked_text(value)
    return found


def masked_words(words):
    """Return the words of a command without keys: of NAME=key, --name=key, or --name and the word after it."""
    found, before = [], ""
    for word in words:
        is_key = before.startswith("-") and not word.startswith("-") and IS_KEY.search(before)
        found.append(MASK if is_key else masked_text(word))
        before = word
    return found


def masked_text(text):
    """Return a text without the values of NAME=key, also in --export=ALL,NAME=key, and without passwords of URLs."""
    name, equals, value = text.partition("=")
    if value and IS_KEY.search(name):
        return name + equals + MASK  # all of it: a comma may be part of the key
    return PASSWORD.sub(r"\1" + MASK + "@", HAS_KEY.sub(r"\1=" + MASK, text))


def facts_of_slurm(args):
    """Return what Slurm's variables, its commands and the job's script tell."""
    words = submitted(args)
    allocation = {option: os.environ[name] for option, name in ALLOCATION.items() if os.environ.get(name)}
    if words is None:
        allocation.update(time_limit())
    return {
        "array_task": os.environ.get("SLURM_ARRAY_TASK_ID"),
        "attempt": int(os.environ.get("RESTART_COUNT") or 0),
        "allocation": allocation,
        "submitted": words and masked_words(words),
        "header": masked_words(header(args.script)),
    }


def submitted(args):
    """Return the words of the sbatch command that submitted this job; None if they are not known.

    slurm/submit_multinode.sh leaves them in SUBMITTED. With sbatch alone, Slurm's accounting has them, if there is one.
    """
    words = words_of(os.environ.get("SUBMITTED", ""))
    # A job hands on its SUBMITTED to the jobs that it submits. Then another program stands at the end.
    if words and words[len(words) - len(args.program) :] == args.program:
        return words
    job = os.environ.get("SLURM_JOB_ID", "")
    line = output_of("sacct", "--noheader", "--parsable2", "--allocations", "--format=SubmitLine", "--jobs=" + job)
    words = words_of(line.split("\n")[0])
    is_whole = words[len(words) - len(args.program) :] == args.program  # the accounting keeps no quotes
    return words if words and is_whole and os.path.basename(words[0]) == "sbatch" else None


def words_of(line):
    """Return the words of a command; [] if a quote is not closed."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


def time_limit():
    """Return {"time": LIMIT} of this job, as scontrol prints it; {} if it has none, or scontrol does not answer."""
    job = output_of("scontrol", "--oneliner", "show", "job", os.environ.get("SLURM_JOB_ID", ""))
    limit = re.search(r" TimeLimit=([0-9:-]+)", job)
    return {"time": limit.group(1)} if limit else {}


def header(script):
    """Return the options in the #SBATCH lines of a script."""
    options = []
    if script:
        with open(script, errors="replace") as file:
            for line in file:
                if line.strip() and not line.startswith("#"):
                    break  # sbatch reads no further than to the first command
                if line.startswith("#SBATCH "):
                    options += shlex.split(line[len("#SBATCH ") :], comments=True)
    return options


def settings_of(file):
    """Return the settings of env.sh as this run has them, and those of them that were set for this run alone.

    Other variables that env.sh exports, such as NCCL_NET, are recorded by their names (TAKEN).
    """
    with open(file, encoding="utf-8", errors="replace") as lines:
        assigned = re.findall(r"^(?:export )?\"?([A-Z][A-Z0-9_]*)=(.*)", lines.read(), re.MULTILINE)
    names = sorted({name for name, _ in assigned} & SETTINGS)
    lists = {name for name, value in assigned if value.startswith("(")}
    # Those with a default, NAME="${NAME:-default}". env.sh sets the others whatever the environment has.
    changeable = {name for name, value in assigned if "${" + name + ":-" in value or "${" + name + "-" in value}
    now = evaluate(file, names, lists, dict(os.environ))
    rest = {name: value for name, value in os.environ.items() if name not in changeable}
    usual = evaluate(file, names, lists, rest)
    return now, {name: now[name] for name in now if name in changeable and now[name] != usual.get(name)}


def evaluate(file, names, lists, environment):
    """Return the values that the settings `names` of env.sh have in an environment: strings, or lists of strings."""
    # The name, the number of words, and each word, with a byte 0 after each.
    script = 'source "$1" >/dev/null; shift; for name; do declare -n value=$name;'
    script += ' printf "%s\\0" "$name" "${#value[@]}" "${value[@]}"; done'
    done = subprocess.run(
        ["bash", "-c", script, "bash", file, *names], env=environment, stdout=subprocess.PIPE, check=False
    )
    words, found = done.stdout.decode(errors="replace").split("\0")[:-1], {}
    while len(words) >= 2:
        name, count = words[0], int(words[1])
        values, words = words[2 : 2 + count], words[2 + count :]
        found[name] = values if name in lists else "".join(values)
    return found


def versions():
    """Return the versions of what a job finds on its nodes; the driver's is that of this node."""
    found = {"kernel": platform.release()}
    slurm = output_of("sinfo", "--version").split()  # slurm 24.11.5
    if len(slurm) > 1:
        found["slurm"] = slurm[1]
    for name in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/sys/module/amdgpu/version"):
        if os.path.exists(name):
            with open(name) as file:
                text = file.read()
            # NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Jan 10 …
            number = re.search(r"\d+\.\d+(\.\d+)*", text.split("Kernel Module")[-1])
            found["driver"] = number.group() if number else text.strip()
            break
    return found


def output_of(*command):
    """Return what a command prints; nothing if there is no such command, or it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


# ---- what takes longer --------------------------------------------------------------------------------------------


def code(project, folder):
    """Return git's state of the sources that run, and put changes.diff into the folder of logs."""
    copies = [name for name in os.environ.get("SNAPSHOTS", "").split(":") if name]
    if copies:  # as the sources were when the job was submitted
        with open(os.path.join(copies[0], "git.json")) as file:
            state = json.load(file)
        diff = b""
        changes = os.path.join(copies[0], "changes.diff")
        if os.access(changes, os.R_OK):  # pods may run as another user than the one who submits
            with open(changes, "rb") as file:
                diff = file.read()
    else:
        try:
            state, diff = state_of(project)
        except (GitError, OSError) as error:
            state, diff = {"error": str(error)}, b""
    changes = os.path.join(folder, "changes.diff")
    if os.path.exists(changes):
        os.remove(changes)  # of an earlier run in the same shell of salloc
    if diff:
        with open(changes, "wb", opener=private) as file:
            file.write(diff)
    return {"git": state, "snapshots": copies}


def image(args, logs):
    """Return an image's name and checksum; for an image that is no file, what --digest-command prints."""
    name = args.image
    if not os.path.isfile(name):
        return {"name": name, "digest": output_of(*shlex.split(args.digest_command)) if args.digest_command else None}
    status = os.stat(name)
    version = f"{os.path.realpath(name)} {status.st_size} {status.st_mtime_ns}"
    known = os.path.join(logs, "image-checksums")  # it takes half a minute for a large image, so once for each
    if os.path.exists(known):
        with open(known) as file:
            for line in file:
                checksum, _, of_version = line.rstrip("\n").partition(" ")
                if of_version == version:
                    return {"name": name, "sha256": checksum}
    digest = hashlib.sha256()
    with open(name, "rb") as file:
        for block in iter(lambda: file.read(1 << 22), b""):
            digest.update(block)
    with open(known, "a") as file:
        file.write(f"{digest.hexdigest()} {version}\n")
    return {"name": name, "sha256": digest.hexdigest()}


def wait_for_packages(folder, parent):
    """Return the Python and the packages of rank 0 once it has listed them; nothing if the run ends before.

    parent: the process whose end is the end of the run. Then this script has another parent.
    """
    file = os.path.join(folder, "packages.txt")
    until = time.time() + PACKAGES_WITHIN
    while not os.path.exists(file):
        if os.getppid() != parent or time.time() > until:
            return {}
        time.sleep(0.2)
    with open(file, encoding="utf-8") as lines:
        first, *packages = lines.read().splitlines()
    torch = [line.split("==")[1].split()[0] for line in packages if line.lower().startswith("torch==")]
    return {"python": first.lstrip("# "), "torch": torch[0] if torch else None, "packages": packages}


if __name__ == "__main__":
    try:
        main()
    except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:  # the run goes on
        print(f"launch/code/record.py: run.json is not complete: {error!r}", file=sys.stderr)
