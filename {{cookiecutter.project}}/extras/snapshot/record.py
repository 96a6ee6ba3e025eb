"""Writes run.json into the folder of a run's logs: which code, program, settings and machines the run had.

    python3 extras/snapshot/record.py --project FOLDER [OPTIONS] -- [PROGRAM ARGUMENTS]     --help names the options

hooks.sh calls it in the background when the ranks start, so that they do not wait for it. changes.diff beside run.json
has what was not committed. Nobody but you can read these files. They have no keys, as far as names tell: the value of
WANDB_API_KEY or --hub-token is written as ***.

Read from the environment: RUN_DIR (the folder of logs), and variables of the scheduler.
It runs on compute nodes: Python 3.6, standard library only.
"""

import argparse
import glob
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

# The project that runs: with SNAPSHOT=1 the copy.
OWN_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# Options of sbatch, and the variables in which a job finds what they have given it.
ALLOCATION = {
    "nodes": "SLURM_JOB_NUM_NODES",
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "qos": "SLURM_JOB_QOS",
}
# A setting with a default, NAME="${NAME:-default}": the environment of the submission may have another value.
SETTING = re.compile(r'^(?:export )?"?([A-Z][A-Z0-9_]*)="?\$\{\1:?-(.*?)\}', re.MULTILINE)
# Variables that one may set beside the settings, and that change what a job does. They have no default.
FURTHER = {"NPROC_PER_NODE": None, "OMP_NUM_THREADS": None, "ALLOW_CPU": None}
# The end of a variable's or an option's name whose value is a key: WANDB_API_KEY, --hub-token; not --max-tokens.
KEY = r"((?:^|[-_.,=:\s])(?:api-?key|key|token|secret|password|passwd|passphrase|credentials?))"
IS_KEY = re.compile(KEY + "$", re.IGNORECASE)
HAS_KEY = re.compile(KEY + r"=[^,\s]+", re.IGNORECASE)  # NAME=VALUE in a text
PASSWORD = re.compile(r"(://)[^/\s@]+@")  # of a URL, http://user:password@host
MASK = "***"
# run.json takes variables that begin with one of these, or contain OF_MPI: they change how a run communicates and
# computes.
TAKEN = (
    *("NCCL_", "GLOO_", "UCX_", "FI_", "MPICH_", "RDZV_", "TORCH_", "PYTORCH_"),
    *("CUDA_", "ROCR_", "HIP_", "HSA_", "MIOPEN_", "OMP_", "MKL_"),
)
OF_MPI = "_MCA_"  # a parameter of an MPI library


def main():
    """Write what is known, then git's state, which may take longer."""
    args = read_arguments()
    folder = os.environ["RUN_DIR"]
    run = facts_at_once(args)
    write(run, folder)
    run["code"] = code(args, folder)
    write(run, folder)


def read_arguments():
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", default="", help="the project's folder that the user edits")
    parser.add_argument("--copy", action="append", default=[], help="a copy of sources that runs, logs/snapshots/HASH")
    parser.add_argument("--image", default="", help="the container's image: a file, or its name in a registry")
    parser.add_argument("--digest-command", default="", help="what prints the digest of an IMAGE that is no file")
    parser.add_argument("--nodes", default="", help="the nodes of the ranks, separated by commas")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="the process whose first environment has the given settings"
    )
    parser.add_argument("program", nargs="*", help="the program and its arguments, as they were typed")
    args = parser.parse_args()
    if "RUN_DIR" not in os.environ or not args.project:
        parser.exit(2, "extras/snapshot/record.py: call the submit script, which starts this file for each run\n")
    return args


def write(run, folder):
    """Replace run.json in one step, so that no reader finds half of it."""
    unfinished = os.path.join(folder, "run.json.new")
    with open(unfinished, "w", opener=private) as file:
        json.dump(run, file, indent=1)
        file.write("\n")
    os.replace(unfinished, os.path.join(folder, "run.json"))


# ---- what is known at once ----------------------------------------------------------------------------------------


def facts_at_once(args):
    """Return what the environment, and files on this node, tell."""
    facts = {
        "job": os.environ.get("SLURM_JOB_ID") or os.path.basename(os.environ["RUN_DIR"]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "project": args.project,
        "folder": os.getcwd(),
        "program": masked_words(args.program),
        "changed_settings": changed_settings(args.parent),
        "environment": masked({name: os.environ[name] for name in sorted(os.environ) if is_taken(name)}),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "nodes": [name for name in args.nodes.split(",") if name],
        "versions": versions(),
        "image": image(args) if args.image else None,
        "code": None,
    }
    if "SLURM_JOB_ID" in os.environ:
        facts.update(facts_of_slurm(args))
    return facts


def is_taken(name):
    """Return whether run.json takes a variable."""
    return name.startswith(TAKEN) or OF_MPI in name


def masked(variables):
    """Return variables without keys."""
    return {name: MASK if value and IS_KEY.search(name) else masked_text(value) for name, value in variables.items()}


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


def changed_settings(process):
    """Return the settings of env.sh and of extras that were set for this run: the submit script has begun with them.

    Keys are left out: another run finds them where this one did.
    """
    defaults = dict(FURTHER)
    for path in [os.path.join(OWN_PROJECT, "env.sh"), *glob.glob(os.path.join(OWN_PROJECT, "extras/*/settings.sh"))]:
        with open(path, encoding="utf-8", errors="replace") as lines:
            defaults.update(SETTING.findall(lines.read()))
    with open(f"/proc/{process}/environ", "rb") as file:
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0")]
    given = {name: value for name, _, value in pairs if name in defaults and value != defaults[name]}
    return masked({name: given[name] for name in sorted(given) if not IS_KEY.search(name)})


def facts_of_slurm(args):
    """Return what Slurm's variables and its commands tell."""
    words = submitted(args.program)
    allocation = {option: os.environ[name] for option, name in ALLOCATION.items() if os.environ.get(name)}
    if words is None:
        allocation.update(time_limit())
    return {
        "array_task": os.environ.get("SLURM_ARRAY_TASK_ID"),
        "attempt": int(os.environ.get("RESTART_COUNT") or 0),
        "allocation": allocation,
        "submitted": words and masked_words(words),
    }


def submitted(program):
    """Return the words of the command that submitted this job; None if sbatch alone did.

    A job hands SNAPSHOT_SUBMITTED on to the jobs that it submits. Then another program stands at the end.
    """
    words = shlex.split(os.environ.get("SNAPSHOT_SUBMITTED", ""))
    return words if "--" in words and words[words.index("--") + 1 :] == program else None


def time_limit():
    """Return {"time": LIMIT} of this job, as scontrol prints it; {} if it has none, or scontrol does not answer."""
    job = output_of("scontrol", "--oneliner", "show", "job", os.environ.get("SLURM_JOB_ID", ""))
    limit = re.search(r" TimeLimit=([0-9:-]+)", job)
    return {"time": limit.group(1)} if limit else {}


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


def image(args):
    """Return an image's name, and a file's size and time; for one that is no file, what --digest-command prints."""
    if os.path.isfile(args.image):
        status = os.stat(args.image)
        changed = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(status.st_mtime))
        return {"name": args.image, "file": os.path.realpath(args.image), "bytes": status.st_size, "changed": changed}
    return {"name": args.image, "digest": output_of(*shlex.split(args.digest_command)) if args.digest_command else None}


def output_of(*command):
    """Return what a command prints; nothing if there is no such command, or it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


# ---- what takes longer --------------------------------------------------------------------------------------------


def code(args, folder):
    """Return git's state of the sources that run, and put changes.diff into the folder of logs."""
    if args.copy:  # as the sources were when the job was submitted
        with open(os.path.join(args.copy[0], "git.json")) as file:
            state = json.load(file)
        diff = b""
        changes = os.path.join(args.copy[0], "changes.diff")
        if os.access(changes, os.R_OK):  # pods may run as another user than the one who submits
            with open(changes, "rb") as file:
                diff = file.read()
    else:
        try:
            state, diff = state_of(args.project)
        except (GitError, OSError) as error:
            state, diff = {"error": str(error)}, b""
    changes = os.path.join(folder, "changes.diff")
    if os.path.exists(changes):
        os.remove(changes)  # of an earlier run in the same shell of salloc
    if diff:
        with open(changes, "wb", opener=private) as file:
            file.write(diff)
    originals = [os.path.realpath(os.path.join(copy, "original")) for copy in args.copy]
    return {"git": state, "snapshots": args.copy, "originals": originals}


if __name__ == "__main__":
    try:
        main()
    except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:  # the run goes on
        print(f"extras/snapshot/record.py: run.json is not complete: {error!r}", file=sys.stderr)
