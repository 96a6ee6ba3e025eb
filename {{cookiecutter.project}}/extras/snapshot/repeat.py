#!/usr/bin/env python3
"""Prints the command that repeats a job, and how to get the code that it ran.

  python3 extras/snapshot/repeat.py 123          the newest attempt of a job
  python3 extras/snapshot/repeat.py logs/123.0   one attempt
  python3 extras/snapshot/repeat.py --foreign logs/123.0
                                                 one of another user, who has made its run.json readable: read the
                                                 command before you run it

The job wrote run.json into the folder of the attempt when it started (record.py), and this script reads it. The first
lines of what it prints begin with # and say which code, software and nodes the job had. The last line is the command:
bash <(python3 extras/snapshot/repeat.py 123) submits the job once more.
It runs on login nodes: Python 3.6, standard library only.

Exit code 2: there is no run.json, it is another user's, or the arguments are wrong.
"""

import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

MODULE = "/extras/snapshot/run_module.py"
MASK = "***"  # in place of what looked like a key
PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\udc80-\udc9f]")  # the last are bytes that are no UTF-8


def main():
    """Print comments and commands."""
    words = sys.argv[1:]
    is_foreign = words[:1] == ["--foreign"]
    if is_foreign:
        del words[0]
    if len(words) != 1 or words[0].startswith("-"):
        asked = sys.argv[1:] in (["-h"], ["--help"])
        print(__doc__.strip(), file=sys.stdout if asked else sys.stderr)  # bash <(…) would run what stands in stdout
        sys.exit(0 if asked else 2)
    folder = folder_of(words[0])
    try:
        with open(os.path.join(folder, "run.json")) as file:
            if not is_foreign:
                refuse_foreign(file)
            run = json.load(file)
        words = submitted(run)
        lines = ["# " + printable(line) for line in describe(run, folder)]
        if not words:
            lines.append("# how it was submitted is not known: the command asks for what Slurm gave it")
        submit = " ".join([*settings(run), *map(quoted, words or from_allocation(run))])
        lines.append("cd -- {} && {}".format(quoted(run["folder"]), submit))
        if MASK in submit:
            die(f"run.json has no keys, and *** in their place. Type the command with them: {lines[-1]}")
        text = "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")
    except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        die(f"{folder}/run.json cannot be read ({error!r}): record.py has not written it, or is at work")
    sys.stdout.buffer.write(text)


def refuse_foreign(file):
    """Refuse an open run.json that another user has written: bash <(…) would run its command under this user's name."""
    owner = os.fstat(file.fileno()).st_uid
    if owner != os.getuid():
        die(f"the user with number {owner} has written {file.name}: --foreign prints its command, to be read")


def die(message):
    """End with a message, and nothing in stdout that bash <(…) would run."""
    sys.stderr.write(f"extras/snapshot/repeat.py: {printable(message)}\n")
    sys.exit(2)


def printable(text):
    """Return text on one line: a second line would be no comment, and a terminal obeys control characters."""
    return CONTROL.sub(lambda found: "^" + chr(ord(found[0]) & 0x7F ^ 0x40), text)


def quoted(word):
    """Return a word as bash reads it, on one line."""
    if not CONTROL.search(word):
        return shlex.quote(word)

    def escaped(found):
        return "".join(f"\\x{byte:02x}" for byte in os.fsencode(found[0]))

    return "$'" + re.sub(rf"{CONTROL.pattern}|[\\']", escaped, word) + "'"


def folder_of(name):
    """Return the folder of logs. `name` is this folder, or the number of a job, which means its newest attempt."""
    folders = [name] if os.path.isdir(name) else glob.glob(glob.escape(os.path.join(PROJECT, "logs", name)) + ".*")
    folders = [folder for folder in folders if os.path.exists(os.path.join(folder, "run.json"))]
    if not folders:
        die(
            f"no run.json of '{name}' in {os.path.join(PROJECT, 'logs')}: expected the number of a job"
            " that this project has started, or its folder of logs"
        )
    return max(folders, key=lambda folder: os.path.getmtime(os.path.join(folder, "run.json")))


def describe(run, folder):
    """Yield lines about the code, software and nodes of a job."""
    nodes = ",".join(run["nodes"])
    yield f"job {run['job']}, attempt {run['attempt']}, {run['started']}, on {len(run['nodes'])} node(s): {nodes}"
    versions = [f"{name} {version}" for name, version in sorted(run["versions"].items())]
    yield ", ".join([*python_of(folder), *versions])
    yield from describe_code(run, folder)


def python_of(folder):
    """Return which Python and torch packages.txt names; nothing if a short job has not written it."""
    path = os.path.join(folder, "packages.txt")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    python = [line[2:] for line in lines if line.startswith("# Python")]
    return python + [line.split()[0].replace("==", " ") for line in lines if line.lower().startswith("torch==")]


def describe_code(run, folder):
    """Yield lines about the code of a job: which it was, and how to get it if it is no longer there."""
    code = run["code"] or {"git": None, "snapshots": []}  # None: the job ended before it was known
    git, changes = code["git"], os.path.join(os.path.realpath(folder), "changes.diff")
    is_committed = bool(git and git.get("commit"))
    removed = [copy for copy in code["snapshots"] if not os.path.isdir(copy)]
    if is_committed:
        with_changes = ", with changes.diff" if os.path.exists(changes) else ""
        yield "commit {} of {}{}".format(git["commit"], git["branch"], with_changes)
        if git.get("changed_submodules"):
            yield "changed since, and not in changes.diff: the submodules " + ", ".join(git["changed_submodules"])
        if git.get("left_out"):
            yield "not in changes.diff, as they may hold keys: " + ", ".join(git["left_out"])
    if code["snapshots"] and not removed:
        return  # the command below runs the copies
    if removed:
        yield "the copy of the sources that it ran was removed: " + ", ".join(removed)
    if is_unchanged(run, git, changes):
        yield "the sources in {} are those of the job".format(git["repository"])
    elif is_committed:
        tree = "{}-{}".format(git["repository"].rstrip("/"), git["commit"][:8])
        yield "the sources have changed since. This puts those of the job into another folder; submit from there:"
        yield worktree(git, tree, changes)
    else:
        yield "its code is not known: {} is under no git".format(run["project"])


def worktree(git, tree, changes):
    """Return the command that puts a job's sources into the folder `tree`."""
    into_tree = "git -C " + quoted(tree)
    commands = ["git -C {} worktree add --detach {} {}".format(*map(quoted, (git["repository"], tree, git["commit"])))]
    if os.path.exists(changes):
        commands.append(f"{into_tree} apply {quoted(changes)}")
    if os.path.exists(os.path.join(git["repository"], ".gitmodules")):
        commands.append(f"{into_tree} submodule update --init --recursive")
    return " && ".join(commands)


def is_unchanged(run, git, changes):
    """Return whether the project's sources are now what they were when the job started."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH=1 leaves this folder out
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


# ---- the command -----------------------------------------------------------------------------------------------------


def settings(run):
    """Return NAME=VALUE for the settings that were given to this job."""
    changed = run["changed_settings"]
    odd = [name for name in changed if not re.fullmatch("[A-Z_][A-Z0-9_]*", name)]
    if odd:
        raise ValueError(f"{odd[0]!r} is no setting")
    return [f"{name}={quoted(value)}" for name, value in changed.items()]


def submitted(run):
    """Return the words of the command that submitted a job; None if they are not known."""
    words = run["submitted"] or words_of_sbatch(run)
    if words and os.path.basename(words[0]) not in ("bash", "sbatch"):
        raise ValueError(f"{words[0]!r} is neither bash nor sbatch")
    return words and without_removed_copies(words, run)


def words_of_sbatch(run):
    """Return the words of an sbatch command that Slurm's accounting has, if there is one."""
    line = b""
    if shutil.which("sacct"):
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=SubmitLine", "--jobs=" + run["job"]]
        line = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
    try:
        words = shlex.split(os.fsdecode(line).partition("\n")[0])
    except ValueError:  # a quote that is not closed
        return None
    is_whole = words[len(words) - len(run["program"]) :] == run["program"]  # the accounting keeps no quotes
    return words if words and is_whole and os.path.basename(words[0]) == "sbatch" else None


def from_allocation(run):
    """Return the words of a command that asks for what Slurm gave to a job."""
    options = [f"--{name}={value}" for name, value in run["allocation"].items()]
    script = os.path.join(run["project"], "slurm", "submit_multinode.sh")
    return without_removed_copies(["bash", script, *options, "--", *run["program"]], run)


def without_removed_copies(words, run):
    """Return words of a command, with the folder that was copied in place of copies that were removed."""
    code = run["code"] or {"snapshots": [], "originals": []}
    if all(map(os.path.isdir, code["snapshots"])):
        return words
    modules = [at for at, word in enumerate(words) if word.endswith(MODULE)]
    if modules:  # Python looks for it in the folder in which the command begins
        words = [*words[: modules[0]], "-m", *words[modules[0] + 2 :]]
    for copy, original in zip(code["snapshots"], code["originals"]):
        inside = os.path.join(copy, os.path.basename(original))
        words = [original + word[len(inside) :] if word.startswith(inside + "/") else word for word in words]
    return words


if __name__ == "__main__":
    main()
