#!/usr/bin/env python3
"""Prints the command that repeats a job, and how to get the code that it ran.

  python3 slurm/repeat.py 123          the newest attempt of a job
  python3 slurm/repeat.py logs/123.0   one attempt

It reads run.json in the folder of the attempt, which the job has written when it started: launch/code/record.py.
The first lines of what it prints begin with # and say which code, software and nodes the job had. The others are
commands: bash <(python3 slurm/repeat.py 123) submits the job once more.
It runs on login nodes: Python 3.6, standard library only.

Exit code 2: there is no run.json, or the arguments are wrong.
"""

import glob
import json
import os
import shlex
import sys

PROJECT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def main():
    """Print comments and commands."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    folder = folder_of(sys.argv[1])
    with open(os.path.join(folder, "run.json")) as file:
        run = json.load(file)
    for line in describe(run, folder):
        print("# " + line)
    print("cd " + shlex.quote(run["folder"]))
    print(" ".join([*settings(run), *map(shlex.quote, command(run))]))


def folder_of(name):
    """Return the folder of logs of an attempt: of the newest one that has a run.json, for a job's number."""
    folders = [name] if os.path.isdir(name) else glob.glob(os.path.join(PROJECT, "logs", glob.escape(name) + ".*"))
    folders = [folder for folder in folders if os.path.exists(os.path.join(folder, "run.json"))]
    if not folders:
        sys.stderr.write(
            f"slurm/repeat.py: no run.json of '{name}' in {os.path.join(PROJECT, 'logs')}: expected the number of a job"
            " that this project has started, or its folder of logs\n"
        )
        sys.exit(2)
    return max(folders, key=lambda folder: os.path.getmtime(os.path.join(folder, "run.json")))


def describe(run, folder):
    """Return lines about the code, software and nodes of a job."""
    nodes = ",".join(run["nodes"])
    yield f"job {run['job']}, attempt {run['attempt']}, {run['started']}, on {len(run['nodes'])} node(s): {nodes}"
    versions = [f"{name} {version}" for name, version in sorted(run["versions"].items())]
    yield ", ".join([f"torch {run['torch']}", str(run["python"]), *versions])
    yield from describe_code(run, folder)
    if not run["submitted"]:
        yield "how it was submitted is not known: the command asks for the nodes, queue, account and time that it had"


def describe_code(run, folder):
    """Return lines about the code of a job: which it was, and how to get it if it is no longer there."""
    code = run["code"] or {"git": None, "snapshots": []}
    git, changes = code["git"], os.path.join(os.path.realpath(folder), "changes.diff")
    gone = [copy for copy in code["snapshots"] if not os.path.isdir(copy)]
    has_changes = os.path.exists(changes)
    if git and git.get("commit"):
        yield "commit {} of {}{}".format(git["commit"], git["branch"], ", with changes.diff" if has_changes else "")
        if git.get("changed_submodules"):
            yield "changed since, and not in changes.diff: the submodules " + ", ".join(git["changed_submodules"])
    if gone:
        yield "the copy of the sources that it ran was removed: " + ", ".join(gone)
    elif code["snapshots"]:
        return
    elif is_unchanged(run, git, changes):
        yield "the sources in {} are the same now".format(git["repository"])
        return
    elif not (git and git.get("commit")):
        yield "its code is not known: {} is under no git, and the job had no SNAPSHOT=1".format(run["project"])
        return
    if git and git.get("commit"):
        tree = "{}-{}".format(git["repository"].rstrip("/"), git["commit"][:8])
        yield "the sources have changed since. To get those of the job into a folder of their own:"
        apply = f" && git -C {shlex.quote(tree)} apply {shlex.quote(changes)}" if has_changes else ""
        if os.path.exists(os.path.join(git["repository"], ".gitmodules")):
            apply += f" && git -C {shlex.quote(tree)} submodule update --init --recursive"
        yield "git -C {} worktree add --detach {} {}{}".format(
            shlex.quote(git["repository"]), shlex.quote(tree), git["commit"], apply
        )


def is_unchanged(run, git, changes):
    """Return whether the sources of a job without a snapshot are what they were then."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(PROJECT, "launch", "code"))
    import git_state

    try:
        now, diff = git_state.state_of(run["project"])
    except (git_state.GitError, OSError):
        return False
    before = b""
    if os.path.exists(changes):
        with open(changes, "rb") as file:
            before = file.read()
    if not (now and git) or now["changed_submodules"] or git.get("changed_submodules"):
        return False  # what was changed in a submodule is not known
    return now["commit"] == git.get("commit") and diff == before


def settings(run):
    """Return NAME=VALUE for each setting of env.sh that was another for this job, and for the copies that it ran."""
    changed = dict(run["changed_settings"])
    if run["code"] and run["code"]["snapshots"]:
        changed["SNAPSHOTS"] = ":".join(run["code"]["snapshots"])
    for name in ("NPROC_PER_NODE", "OMP_NUM_THREADS", "ALLOW_CPU", "STAGE_FORMAT"):
        if name in run["environment"]:
            changed.setdefault(name, run["environment"][name])
    return [f"{name}={shlex.quote(value)}" for name, value in changed.items() if isinstance(value, str)]


def command(run):
    """Return the words of the sbatch command."""
    if run["submitted"]:
        return run["submitted"]
    options = [f"--{name}={value}" for name, value in run["allocation"].items()]
    script = os.path.join(scripts_of(run), "slurm", "submit_multinode.sh")
    return ["sbatch", *options, script, *run["program"]]


def scripts_of(run):
    """Return the folder of the project whose scripts a job ran: with SNAPSHOT=1 the copy."""
    for copy in run["code"]["snapshots"][:1] if run["code"] else []:
        original = os.path.realpath(os.path.join(copy, "original"))
        inside = os.path.relpath(run["project"], original)
        return os.path.normpath(os.path.join(copy, os.path.basename(original), inside))
    return run["project"]


if __name__ == "__main__":
    main()
