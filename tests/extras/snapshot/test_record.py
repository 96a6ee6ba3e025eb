"""record.py by itself: what run.json and changes.diff say. git_state.py, which asks git, changes nothing.

test_snapshot.py has the run.json of jobs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from baking import TEMPLATE
from sources import apply_changes, commit, git, repository, write
from waiting import PATIENCE

FOLDER = "extras/snapshot"
CODE = {f"{FOLDER}/{name}.py": (TEMPLATE / FOLDER / f"{name}.py").read_text() for name in ("record", "git_state")}
SETTINGS = """\
export PYTHON="${PYTHON:-python3}"
LAUNCHER="${LAUNCHER:-torchrun}"
export TORCHRUN_OPTIONS="${TORCHRUN_OPTIONS-}"
MODULES=(a "b c")
BINDS=()
export PATH="/opt/mine:$PATH"
echo "env.sh says something"
"""


@pytest.fixture
def project(tmp_path):
    files = {"env.sh": SETTINGS, "train.py": "first", ".gitignore": "logs/\n__pycache__/\n"}
    return repository(tmp_path / "my project", {**files, **CODE})


@pytest.fixture
def record(project, tmp_path):
    """Returns record(*arguments, of=project, **environment) -> run.json. A shell calls it, like the submit script."""
    folder = project / "logs/7.0"
    folder.mkdir(parents=True)

    def call(*arguments, of=project, **environment):
        clean = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
        clean |= {"RUN_DIR": str(folder), **environment}
        words = [sys.executable, "-B", project / "extras/snapshot/record.py", "--project", of, *arguments]
        command = ["bash", "-c", 'export LAUNCHER=later && "$@" && :', "bash", *map(str, words)]
        done = subprocess.run(
            command, env=clean, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert sorted(path.name for path in folder.glob("*.new")) == []
        return json.loads((folder / "run.json").read_text())

    return call


def test_what_a_run_was(record, project, tmp_path):
    run = record("--nodes=a,b", "--", "train.py", "--lr", "1e-3", "a b", "-m", NCCL_DEBUG="INFO", LOADEDMODULES="x/1:y")
    assert (run["project"], run["folder"], run["job"]) == (str(project), str(tmp_path), "7.0")
    assert run["program"] == ["train.py", "--lr", "1e-3", "a b", "-m"]
    assert (run["nodes"], run["modules"], run["environment"]) == (["a", "b"], ["x/1", "y"], {"NCCL_DEBUG": "INFO"})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", run["started"])
    assert run["versions"]["kernel"] == os.uname().release
    assert run["image"] is None and "allocation" not in run


def test_no_program(record):
    assert record("--")["program"] == []


def test_the_settings_of_this_run_alone(record, project):
    """What the submit script was given, of env.sh and of extras; not PATH, nor what it has set itself since."""
    write(project, {"extras/watch/settings.sh": 'MEASURE_EVERY="${MEASURE_EVERY:-30}"\n'})
    given = {"TORCHRUN_OPTIONS": "--a 'b c'\n\"d\"", "MEASURE_EVERY": "5", "NPROC_PER_NODE": "2"}
    assert record("--", UNKNOWN="x", **given)["changed_settings"] == given
    assert record("--", LAUNCHER="srun")["changed_settings"] == {"LAUNCHER": "srun"}
    assert record("--", LAUNCHER="torchrun")["changed_settings"] == {}


KEYS = {
    "HF_TOKEN": "hf_1234",
    "TORCHRUN_OPTIONS": "--proxy=http://me:hidden1@proxy:80",
    "NCCL_API_KEY": "hidden2",
}


def test_no_key_gets_into_the_record(record, project, tmp_path):
    """Neither from variables that a user has added to env.sh, as far as names tell, nor from words."""
    own = "".join(f'export {name}="${{{name}:-}}"\n' for name in KEYS)
    write(project, {"env.sh": SETTINGS + own})
    words = ["p.py", "--hub-token", "hidden4", "--api_key=hidden5,hidden5", "hub.token=hidden6", "ftp://u:hidden7@h/x"]
    kept = ["--max-tokens", "512", "--tokenizer=gpt2", "--token", "--lr=1"]
    submitted = " ".join(["bash", "job.sh", "--export=ALL,HF_TOKEN=hidden8,A=1", "--", *words, *kept])
    run = record("--", *words, *kept, SLURM_JOB_ID="1", SNAPSHOT_SUBMITTED=submitted, **KEYS)
    written = (project / "logs/7.0/run.json").read_text()
    assert "hidden" not in written and "hf_1234" not in written
    assert run["changed_settings"] == {"TORCHRUN_OPTIONS": "--proxy=http://***@proxy:80"}
    masked = ["p.py", "--hub-token", "***", "--api_key=***", "hub.token=***", "ftp://***@h/x", *kept]
    assert run["program"] == masked
    assert run["submitted"] == ["bash", "job.sh", "--export=ALL,HF_TOKEN=***,A=1", "--", *masked]
    assert run["environment"] == {"NCCL_API_KEY": "***"}


@pytest.mark.parametrize(
    ("umask", "names", "private"),
    [(0o022, ["mine", ".env", "key.pem", "id_rsa"], True), (0o077, ["mine"], False), (0o077, [".env"], True)],
)
def test_private_files_are_named_only(record, project, umask, names, private):
    """By their mode or their name; with umask 077 all files have that mode, and it says nothing."""
    for name in names:
        write(project, {name: "hidden"})
        (project / name).chmod(0o600)
    write(project, {"open.py": "shown"})
    before = os.umask(umask)
    try:
        run = record("--")
    finally:
        os.umask(before)
    diff = (project / "logs/7.0/changes.diff").read_text()
    assert ("hidden" not in diff) == private and "shown" in diff
    assert run["code"]["git"]["left_out"] == (sorted(names) if private else [])
    assert run["code"]["git"]["untracked"] == sorted([*names, "open.py"])


def test_nobody_else_reads_the_record(record, project):
    write(project, {"new.py": "shown"})
    for name in ("run.json", "changes.diff"):
        write(project / "logs/7.0", {name: "of an earlier run"})
    record("--")
    for name in ("run.json", "changes.diff"):
        assert (project / "logs/7.0" / name).stat().st_mode & 0o777 == 0o600
        command = ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups", "cat", project / "logs/7.0" / name]
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_what_slurm_gave(record):
    slurm = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_PARTITION": "main", "RESTART_COUNT": "3"}
    slurm |= {"SNAPSHOT_SUBMITTED": "'bash' 'job.sh' '--nodes=2' '--' 'a b' 'it'\\''s'"}
    run = record("--", "a b", "it's", SLURM_ARRAY_TASK_ID="4", **slurm)
    assert (run["job"], run["attempt"], run["array_task"]) == ("12", 3, "4")
    assert run["allocation"] == {"nodes": "2", "partition": "main"}
    assert run["submitted"] == ["bash", "job.sh", "--nodes=2", "--", "a b", "it's"]
    assert record("--", "another.py", **slurm)["submitted"] is None, "these words are of the job that submitted it"


def test_the_versions_of_the_scheduler(record, tmp_path):
    (write(tmp_path / "bin", {"sinfo": "#!/bin/bash\necho slurm 25.11.2\n"}) / "sinfo").chmod(0o755)
    assert record("--", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")["versions"]["slurm"] == "25.11.2"


def test_an_image_that_is_a_file(record, tmp_path):
    """Its size and time tell it from another one of the same name."""
    image = write(tmp_path, {"image.sif": "first"}) / "image.sif"
    os.utime(image, (10**9, 10**9))
    (tmp_path / "link.sif").symlink_to(image)
    found = record(f"--image={tmp_path}/link.sif", "--")["image"]
    assert found.pop("changed").startswith("2001-09-0")
    assert found == {"name": f"{tmp_path}/link.sif", "file": str(image), "bytes": 5}


def test_an_image_of_a_registry(record):
    name = "registry.example.org/torch:1"
    assert record(f"--image={name}", "--digest-command=echo sha256:12 'a b'", "--")["image"] == {
        "name": name,
        "digest": "sha256:12 a b",
    }
    assert record(f"--image={name}", "--")["image"] == {"name": name, "digest": None}
    assert record(f"--image={name}", "--digest-command=no-such-program", "--")["image"]["digest"] == ""


# ---- code ------------------------------------------------------------------------------------------------------------


def test_all_is_committed(record, project):
    code = record("--")["code"]
    head = git(project, "rev-parse", "HEAD").strip()
    state = {"repository": str(project), "commit": head, "branch": "main", "clean": True, "untracked": []}
    assert code["git"] == {**state, "left_out": [], "changed_submodules": []} and code["snapshots"] == []
    assert not (project / "logs/7.0/changes.diff").exists()


NEW = {"new.py": "new", 'sub dir/ü \t"q".py': "x\n", "empty.py": "", "no newline": "x", "crlf.py": "a\r\nb\r\n"}


def test_the_diff_leads_to_the_same_sources(record, project, tmp_path):
    """Edited, new, renamed, deleted and binary files, executable bits and links, whatever the user's git is set to."""
    write(project, {"old.py": "old\n", "moved.py": "moved\n" * 9, "a.txt": "a"})
    (project / "binary").write_bytes(bytes(range(256)))
    commit(project)
    write(project, {"train.py": "edited", **NEW})
    (project / "old.py").unlink()
    (project / "moved.py").rename(project / "sub dir/moved.py")
    (project / "binary").write_bytes(bytes(reversed(range(256))))
    (project / "new binary").write_bytes(b"\0\1\2")
    (project / "a.txt").chmod(0o755)
    (project / "link").symlink_to("train.py")
    git(project, "add", "new.py", "moved.py")  # staged, or partly
    for name, value in {
        "color.ui": "always",
        "diff.noprefix": "true",
        "diff.external": "false",
        "diff.mnemonicPrefix": "true",
        "core.autocrlf": "false",
        "diff.renames": "copies",
        "apply.whitespace": "fix",
    }.items():
        git(project, "config", name, value)
    code = record("--")["code"]
    assert code["git"]["clean"] is False
    again = apply_changes(project, code["git"]["commit"], project / "logs/7.0/changes.diff", tmp_path / "again")
    assert tree(again) == tree(project)


def test_changes_in_a_submodule(record, project, tmp_path):
    """They are named, and not in the diff, which can be applied all the same."""
    library = repository(tmp_path / "library", {"lib.py": "lib"})
    for name in ("same", "sub dir/module"):
        git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", library, name)
    commit(project)
    assert record("--")["code"]["git"]["clean"] is True
    for change in ({"lib.py": "edited"}, {"new.py": "new"}):
        git(project / "sub dir/module", "checkout", "--quiet", ".")
        write(project / "sub dir/module", change)
        code = record("--")["code"]["git"]
        assert (code["clean"], code["changed_submodules"]) == (False, ["sub dir/module"])
        assert not (project / "logs/7.0/changes.diff").exists()
    write(project, {"train.py": "edited"})
    code = record("--")["code"]["git"]
    again = apply_changes(project, code["commit"], project / "logs/7.0/changes.diff", tmp_path / "again")
    assert (again / "train.py").read_text() == "edited"


def tree(folder):
    """Return name, kind and content of what lies in a folder, without logs."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if name.split("/", maxsplit=1)[0] in (".git", "logs") or (path.is_dir() and not path.is_symlink()):
            continue
        found[name] = os.readlink(path) if path.is_symlink() else (os.access(path, os.X_OK), path.read_bytes())
    return found


def test_names_and_settings_of_git_that_could_mislead_it(record, project, tmp_path):
    git(project, "config", "diff.context", "0")
    write(project, {"train.py": "\n".join(map(str, range(9)))})
    commit(project)
    git(project, "sparse-checkout", "set", "--no-cone", "/*", "!/elsewhere/")
    changes = {":notes.txt": "a", "*.py": "b", "elsewhere/new.py": "c"}
    write(project, {"train.py": "0\n1\n2\n3\nedited\n5\n6\n7\n8", **changes})
    code = record("--")["code"]["git"]
    assert sorted(code["untracked"]) == sorted(changes)
    again = apply_changes(project, code["commit"], project / "logs/7.0/changes.diff", tmp_path / "again")
    assert tree(again) == tree(project)


def test_a_diff_of_an_earlier_run_in_the_same_folder_goes(record, project):
    write(project, {"train.py": "edited"})
    record("--")
    assert (project / "logs/7.0/changes.diff").exists()
    git(project, "checkout", "--quiet", ".")
    assert record("--")["code"]["git"]["clean"] and not (project / "logs/7.0/changes.diff").exists()


def test_large_new_files_are_not_in_the_diff(record, project):
    write(project, {"big.txt": "x" * (1 << 20) + "x", "small.txt": "x" * (1 << 20)})
    git_state = record("--")["code"]["git"]
    diff = (project / "logs/7.0/changes.diff").read_text()
    assert (git_state["clean"], git_state["untracked"]) == (False, ["big.txt", "small.txt"])
    assert "b/small.txt" in diff and "big.txt" not in diff


def test_many_new_files(record, project, tmp_path):
    """More than one command line takes."""
    write(project, {f"conf/{'x' * 200}{number}.yaml": f"{number}" for number in range(1_234)})
    code = record("--")["code"]["git"]
    again = apply_changes(project, code["commit"], project / "logs/7.0/changes.diff", tmp_path / "again")
    assert tree(again) == tree(project)


def test_git_s_folder_is_left_as_it_was(record, project):
    """No object is written, and no index, while another git may be at work."""

    def state():
        return {path: path.stat().st_mtime_ns for path in (project / ".git").rglob("*")}

    write(project, {"new.py": "new"})
    os.utime(project / "train.py", (1, 1))  # git status would note this in the index
    before = state()
    assert record("--")["code"]["git"]["untracked"] == ["new.py"]
    assert state() == before


def test_before_the_first_commit(record, project, tmp_path):
    git(project, "update-ref", "-d", "HEAD")
    code = record("--")["code"]["git"]
    assert (code["commit"], code["clean"]) == (None, False)
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    git(empty, "apply", project / "logs/7.0/changes.diff")
    assert tree(empty) == tree(project)


def test_no_branch(record, project):
    git(project, "checkout", "--quiet", "--detach")
    assert record("--")["code"]["git"]["branch"] == "HEAD"


def test_a_worktree(record, project, tmp_path):
    """Its .git is a file, and the index lies elsewhere."""
    git(project, "worktree", "add", "--quiet", tmp_path / "tree")
    write(tmp_path / "tree", {"new.py": "new", "train.py": "edited"})
    code = record("--", of=tmp_path / "tree")["code"]["git"]
    assert code["repository"] == str(tmp_path / "tree") and code["branch"] == "tree"
    again = apply_changes(project, code["commit"], project / "logs/7.0/changes.diff", tmp_path / "again")
    assert (again / "new.py").read_text() == "new" and (again / "train.py").read_text() == "edited"


def test_no_git(record, project, tmp_path):
    bare = write(tmp_path / "bare", {"env.sh": SETTINGS})
    assert record("--", of=bare)["code"] == {"git": None, "snapshots": [], "originals": []}


def test_git_s_refusal_is_no_reason_to_end_a_run(record):
    code = record("--", GIT_TEST_ASSUME_DIFFERENT_OWNER="1")["code"]
    assert "dubious ownership" in code["git"]["error"]


def test_code_of_copies(record, project, tmp_path):
    """The state is that of the copies, not of the sources as they are now."""
    write(tmp_path / "copy", {"git.json": '{"commit": "abc", "branch": "main"}', "changes.diff": "+then"})
    write(project, {"train.py": "now"})
    copies = [f"{tmp_path}/copy", f"{tmp_path}/other"]
    (tmp_path / "copy/original").symlink_to(project)
    code = record(*(f"--copy={copy}" for copy in copies), "--")["code"]
    assert code["git"] == {"commit": "abc", "branch": "main"} and code["snapshots"] == copies
    assert code["originals"][0] == str(project)
    assert (project / "logs/7.0/changes.diff").read_text() == "+then"


# ---- its end ---------------------------------------------------------------------------------------------------------


def test_an_error_is_told_and_the_run_goes_on(project, tmp_path):
    environment = {"PATH": os.environ["PATH"], "RUN_DIR": str(tmp_path / "gone")}
    command = [sys.executable, "-B", project / "extras/snapshot/record.py", "--project", project, "--"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = "extras/snapshot/record.py: run.json is not complete: FileNotFound"
    assert done.returncode == 0 and done.stderr.startswith(said)
