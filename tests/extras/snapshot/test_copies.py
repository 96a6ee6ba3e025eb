"""snapshot.py on small folders: what a copy holds, what is refused, and what an interruption leaves.

test_snapshot.py has jobs that run from such copies.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from baking import TEMPLATE
from sources import commit, git, repository, write
from users import NEIGHBOUR, ONE, PYTHON, as_user, folder_of_all, needs_two_users
from waiting import FOREVER, PATIENCE, wait_for

SNAPSHOT = TEMPLATE / "extras/snapshot/snapshot.py"
FILES = {"env.sh": "", "launch/extras.sh": "", "train.py": "first"}
IN_RANKS = ("imports", "packages", "run_module")  # the Python of the ranks runs them
ON_LOGIN_NODES = sorted(set(SNAPSHOT.parent.glob("*.py")) - {SNAPSHOT.with_name(f"{name}.py") for name in IN_RANKS})


def call(project, *arguments, limit="100", **environment):
    """Run snapshot.py to its end."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(
        [sys.executable, "-B", SNAPSHOT, limit, project, *arguments],
        env=clean,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        timeout=PATIENCE,
    )


def take(project, *arguments, **environment):
    """Run snapshot.py; return the project's copy, the program's, and the folders logs/snapshots/HASH of both."""
    done = call(project, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    copy, program = done.stdout.splitlines()
    folders = [re.match(r".*/logs/snapshots/[0-9a-f]{12}", path).group() for path in (copy, program) if path]
    return Path(copy), program, [Path(folder) for folder in dict.fromkeys(folders)]


def refused(project, *arguments, **environment):
    """Run snapshot.py, which has to refuse; return its message. It leaves nothing in logs/snapshots."""
    done = call(project, *arguments, **environment)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("SNAPSHOT=1: "), done
    assert "Traceback" not in done.stderr
    assert finished(project) == [] and unfinished(project) == []
    return done.stderr


def refused_program(project, program):
    """Return the message about a program. The project's own copy may stay, as the next job needs it."""
    done = call(project, program)
    assert (done.returncode, done.stdout) == (2, "") and unfinished(project) == [], done
    return done.stderr


def finished(project):
    """Return the folders logs/snapshots/HASH."""
    return sorted(path for path in (project / "logs/snapshots").glob("*") if re.fullmatch("[0-9a-f]{12}", path.name))


def unfinished(project):
    """Return what is left of copies that were interrupted."""
    return sorted((project / "logs/snapshots").glob(".unfinished-*"))


@pytest.fixture
def project(tmp_path):
    """A project under git, with a space in its name, all committed."""
    return repository(tmp_path / "my project", {**FILES, ".gitignore": "data/\n*.bin\nlogs/\n"})


@pytest.fixture
def bare(tmp_path):
    """A project that is under no git."""
    return write(tmp_path / "bare", FILES)


# ---- what a copy holds -----------------------------------------------------------------------------------------------


def test_sources_are_copied_and_all_else_is_linked(project):
    """Copied are tracked files as they are on disk, and new ones; ignored files and .git are not."""
    write(project, {"train.py": "edited", "package/new.py": "new", "data/a.txt": "a", "package/weights.bin": "w"})
    write(project, {"big.py": "x" * (1 << 20) + "x", "checkpoint.pt": "p"})
    (project / "launch/extras.sh").rename(project / "launch/kept.sh")
    (project / "launch/extras.sh").write_text("again")
    git(project, "rm", "--quiet", "--cached", "launch/extras.sh")
    copy, program, (folder,) = take(project, project / "train.py")
    assert copy == folder / "my project" and program == str(copy / "train.py")
    for name in ("train.py", "package/new.py", "env.sh", "launch/extras.sh", "launch/kept.sh", ".gitignore"):
        assert (copy / name).read_text() == (project / name).read_text() and not (copy / name).is_symlink(), name
    for name in ("data", "package/weights.bin", "big.py", "checkpoint.pt", "logs"):
        assert (copy / name).is_symlink() and (copy / name).resolve() == project / name, name
    assert not (copy / ".git").exists()
    assert (folder / "original").resolve() == project
    write(project, {"train.py": "later", "package/new.py": "later", "data/a.txt": "later"})
    assert [(copy / name).read_text() for name in ("train.py", "package/new.py")] == ["edited", "new"]
    assert (copy / "data/a.txt").read_text() == "later"


def test_links_in_a_copy_survive_that_the_project_is_moved(project, tmp_path):
    write(project, {"data/a.txt": "a"})
    copy, _, _ = take(project)
    moved = project.rename(tmp_path / "moved")
    copy = moved / copy.relative_to(project)
    assert (copy / "data").resolve() == moved / "data" and (copy.parent / "original").resolve() == moved


def test_a_deleted_file_is_neither_copied_nor_linked(project):
    write(project, {"old.py": "old"})
    commit(project)
    (project / "old.py").unlink()
    copy, _, (folder,) = take(project)
    assert not os.path.lexists(copy / "old.py")
    assert b"deleted file mode" in (folder / "changes.diff").read_bytes()


def test_modes_and_times_are_kept(project):
    """Python's byte code names the time of its source."""
    (project / "run.sh").write_text("x")
    (project / "run.sh").chmod(0o750)
    (project / "train.py").chmod(0o440)
    os.utime(project / "train.py", ns=(10**18 + 7, 10**18 + 123_456_789))
    copy, _, _ = take(project)
    assert stat.S_IMODE((copy / "run.sh").stat().st_mode) == 0o750
    assert stat.S_IMODE((copy / "train.py").stat().st_mode) == 0o640  # rm and the next copy have to be able to
    assert (copy / "train.py").stat().st_mtime_ns == (project / "train.py").stat().st_mtime_ns


@pytest.mark.parametrize(
    "name", [b"a b.py", b" begins with a space.py", b"new\nline.py", b"\xff\xfe.py", "ü.py".encode()]
)
@pytest.mark.parametrize("tracked", [True, False])
def test_names_of_files(project, name, tracked):
    path = os.fsencode(project) + b"/" + name
    with open(path, "w") as file:
        file.write("x")
    if tracked:
        commit(project)
    copy, _, (folder,) = take(project)
    with open(os.fsencode(copy) + b"/" + name) as file:
        assert file.read() == "x"
    assert not os.path.islink(os.fsencode(copy) + b"/" + name)
    assert json.loads((folder / "git.json").read_text())["clean"] == tracked


def test_symbolic_links(project, tmp_path):
    """A link within the project leads to the copy, one that leads out of it to where it led."""
    outside = write(tmp_path / "elsewhere", {"x.py": "outside"})
    links = {"inside.py": "train.py", "absolute.py": project / "train.py", "folder": "launch", "gone": "nowhere"}
    links |= {"out.py": "../elsewhere/x.py", "out": outside, "sub/up.py": "../train.py"}
    (project / "sub").mkdir()
    for name, destination in links.items():
        (project / name).symlink_to(destination)
    copy, _, _ = take(project)
    write(project, {"train.py": "later"})
    write(outside, {"x.py": "later"})
    for name in ("inside.py", "absolute.py", "sub/up.py"):
        assert (copy / name).is_symlink() and (copy / name).read_text() == "first", name
    assert (copy / "folder").resolve() == copy / "launch"
    assert (copy / "out.py").read_text() == "later" and (copy / "out").resolve() == outside
    assert os.path.lexists(copy / "gone") and not (copy / "gone").exists()


def test_submodules_and_repositories_within(project, tmp_path):
    """Each brings what it tracks, and what it does not ignore."""
    library = repository(tmp_path / "library", {"lib.py": "lib", ".gitignore": "built\n"})
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", library, "sub/module")
    commit(project)
    write(project / "sub/module", {"lib.py": "edited", "new.py": "new", "built": "b"})
    repository(project / "nested", {"n.py": "nested"})
    write(project / "nested", {"new.py": "new"})
    copy, _, _ = take(project)
    for name, text in {"sub/module/lib.py": "edited", "sub/module/new.py": "new", "nested/n.py": "nested"}.items():
        assert (copy / name).read_text() == text and (copy / name).resolve() == copy / name, name
    assert (copy / "nested/new.py").read_text() == "new"
    assert (copy / "sub/module/built").resolve() == project / "sub/module/built"


def test_a_program_in_another_repository(project, tmp_path):
    """Both are copied, into folders of their own, and an edit of one makes no new copy of the other."""
    other = repository(tmp_path / "other", {"src/main.py": "main", ".gitignore": ""})
    copy, program, folders = take(project, other / "src/main.py")
    assert [folder.parent for folder in folders] == [project / "logs/snapshots"] * 2
    assert copy == folders[0] / "my project" and program == str(folders[1] / "other/src/main.py")
    assert Path(program).read_text() == "main" and (folders[1] / "original").resolve() == other
    write(other, {"src/main.py": "later"})
    _, later, again = take(project, other / "src/main.py")
    assert Path(program).read_text() == "main" and Path(later).read_text() == "later"
    assert again[0] == folders[0] and again[1] != folders[1] and len(finished(project)) == 3


def test_a_project_in_a_larger_repository(tmp_path):
    """All of it is copied; logs/ of the project is not, also if git does not ignore it."""
    top = repository(
        tmp_path / "top", {"lib/lib.py": "lib", **{f"jobs/demo/{name}": text for name, text in FILES.items()}}
    )
    project = top / "jobs/demo"
    write(project, {"logs/7.0/stdout.log": "x", "logs/7.0/note.txt": "x"})
    copy, _, (folder,) = take(project)
    assert copy == folder / "top/jobs/demo" and (folder / "top/lib/lib.py").read_text() == "lib"
    assert (copy / "logs").resolve() == project / "logs" and (copy / "logs").is_symlink()
    assert take(project)[2] == [folder], "its own copies changed what it copies"


def test_a_module_is_looked_for_in_a_folder(project, tmp_path):
    """In place of a program there may be the folder of submission."""
    write(project, {"package/__init__.py": ""})
    assert take(project, project / "package")[1] == str(take(project)[0] / "package")
    assert take(project, project)[1] == str(take(project)[0])


def test_equal_sources_share_a_copy(project):
    """Also after an edit was taken back, or a job. An edit, a new name and an executable bit are changes."""
    _, _, (first,) = take(project)
    os.utime(first, (0, 0))
    (project / "demo-4711.out").touch()  # git ignores it, as README's line says, or knows its suffix
    assert take(project)[2] == [first] and first.stat().st_mtime > 10**9, "clean.sh may remove it at once"
    write(project, {"train.py": "edited"})
    assert take(project)[2] != [first]
    write(project, {"train.py": "first"})
    assert take(project)[2] == [first] and len(finished(project)) == 2
    (project / "train.py").chmod(0o755)
    assert take(project)[2] != [first]
    (project / "train.py").chmod(0o644)
    (project / "train.py").rename(project / "training.py")
    assert take(project)[2] != [first] and len(finished(project)) == 4


@needs_two_users
def test_users_of_a_project_have_copies_of_their_own(folder_of_all):
    """A neighbour's copy under the name of one's own is refused, whatever it holds: anyone can compute the name."""
    project = write(folder_of_all / "shared", FILES)
    (project / "logs").mkdir()
    (project / "logs").chmod(0o777)
    as_user(ONE, "mkdir", "-m", "777", project / "logs/snapshots")
    mine, again, other = (as_user(uid, PYTHON, SNAPSHOT, "100", project).stdout for uid in (ONE, ONE, NEIGHBOUR))
    assert mine == again != other
    copy = str(Path(mine.splitlines()[0]).parent)
    as_user(NEIGHBOUR, "sh", "-c", f"mv '{copy}' '{copy}-old' && cp -r '{copy}-old' '{copy}' || true")
    as_user(NEIGHBOUR, "sh", "-c", f"echo evil >'{copy}/shared/train.py'")
    done = as_user(ONE, PYTHON, SNAPSHOT, "100", project, check=False)
    assert (done.returncode, done.stdout) == (2, "") and f"{copy} is not a copy of yours" in done.stderr
    assert unfinished(project) == []


def test_data_is_not_copied(project):
    """Two large files and 20,000 small ones, which git ignores, become two links."""
    with open(project / "huge.bin", "wb") as file:
        file.truncate(2 << 30)
    (project / "data/sub").mkdir(parents=True)
    for number in range(20_000):
        os.close(os.open(f"{project}/data/sub/{number}", os.O_CREAT | os.O_WRONLY))
    copy, _, (folder,) = take(project)
    held = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    names = sorted(str(path.relative_to(copy)) for path in held if path.is_relative_to(copy))
    assert names == [".gitignore", "env.sh", "launch/extras.sh", "train.py"]
    assert sum(path.stat().st_size for path in held) < 10_000
    assert (copy / "data").is_symlink() and (copy / "huge.bin").is_symlink()


def test_a_folder_of_data_with_a_file_that_git_tracks_is_linked(project):
    """A link for each of the files would take as long as a copy. But sources in such a folder are refused."""
    write(project, {"images/README.md": "what it is", **{f"images/{number}.bin": "" for number in range(1_001)}})
    commit(project)
    copy, _, _ = take(project)
    assert (copy / "images").is_symlink() and (copy / "images").resolve() == project / "images"
    shutil.rmtree(project / "logs")
    for name in ("images/load.py", "images/tools/load.py"):
        write(project, {name: "x"})
        said = refused(project)
        assert f"{project}/images has 1,001 files that are no sources beside its sources: move them" in said
        (project / name).unlink()


def test_environments_are_only_linked(project, bare):
    """Also where git does not ignore them."""
    for folder in (project, bare):
        environments = {
            "env/pyvenv.cfg": "",
            "env/lib/module.py": "x",
            "conda/conda-meta/x.json": "{}",
            "conda/a.py": "x",
        }
        write(folder, {**environments, "env/bin/tool": "x"})
        copy, program, _ = take(folder, folder / "env/bin/tool")
        for name in ("env", "conda"):
            assert (copy / name).exists() and not [path for path in held_below(copy / name) if path.suffix == ".py"]
        assert Path(program).resolve() == folder / "env/bin/tool", "pip has written it: it may stay where it is"


def held_below(folder):
    """Return the files that lie in a folder, not behind links."""
    if folder.is_symlink():
        return []
    return [
        Path(where, name) for where, _, names in os.walk(folder) for name in names if not Path(where, name).is_symlink()
    ]


# ---- git -------------------------------------------------------------------------------------------------------------


def test_git_s_state_lies_beside_the_copy(project):
    _, _, (folder,) = take(project)
    state = json.loads((folder / "git.json").read_text())
    head = git(project, "rev-parse", "HEAD").strip()
    assert state == {"repository": str(project), "commit": head, "branch": "main", "clean": True, "untracked": []} | {
        "left_out": [],
        "changed_submodules": [],
    }
    assert (folder / "changes.diff").read_bytes() == b""
    write(project, {"train.py": "edited", "new.py": "new"})
    _, _, (folder,) = take(project)
    state = json.loads((folder / "git.json").read_text())
    assert (state["commit"], state["clean"], state["untracked"]) == (head, False, ["new.py"])


def test_before_the_first_commit(tmp_path):
    project = write(tmp_path / "project", {**FILES, ".gitignore": "data/\n", "data/a.txt": "a"})
    git(project, "init", "--quiet")
    copy, _, (folder,) = take(project)
    assert (copy / "train.py").read_text() == "first" and (copy / "data").is_symlink()
    state = json.loads((folder / "git.json").read_text())
    assert (state["commit"], state["clean"]) == (None, False)
    assert b"+first" in (folder / "changes.diff").read_bytes()


def test_git_is_not_installed(project, tmp_path):
    """Then suffixes tell what is a source, as where there is no repository."""
    write(project, {"data/notes.py": "x", "weights.bin": "w"})
    copy, _, (folder,) = take(project, PATH=str(tmp_path / "empty"))
    assert (copy / "train.py").read_text() == "first" and not (copy / "train.py").is_symlink()
    assert (copy / "weights.bin").is_symlink()
    assert json.loads((folder / "git.json").read_text()) is None


def test_a_repository_of_another_owner(project):
    """git refuses to read it; suffixes could tell something else than the user's .gitignore."""
    said = refused(project, GIT_TEST_ASSUME_DIFFERENT_OWNER="1")
    assert "detected dubious ownership in repository" in said and "safe.directory" in said


def test_a_repository_around_that_tracks_nothing_of_the_project(tmp_path):
    """As a home directory under git: what lies beside the project is not copied."""
    home = repository(tmp_path / "home", {".bashrc": "x"})
    write(home, {"private/secret.txt": "x"})
    project = write(home / "work/project", FILES)
    copy, _, (folder,) = take(project)
    assert copy == folder / "project" and (folder / "original").resolve() == project
    assert json.loads((folder / "git.json").read_text()) is None
    write(home, {".gitignore": "work/\n"})
    assert take(project)[2] == [folder]


# ---- without git -----------------------------------------------------------------------------------------------------


def test_suffixes_tell_sources_without_git(bare):
    sources = {"a.py": "x", "conf/a.yaml": "x", "kernel.cu": "x", "tool": "#!/bin/sh\n"}
    others = {"a.pt": "x", "words": "x", "big.json": "x" * (1 << 20) + "x"}
    write(bare, {**sources, **others, ".hidden/a.py": "x", "__pycache__/a.py": "x"})
    (bare / "tool").chmod(0o755)
    copy, _, (folder,) = take(bare)
    assert [name for name in sources if (copy / name).is_symlink()] == []
    assert [name for name in others if not (copy / name).is_symlink()] == []
    assert (copy / ".hidden").is_symlink() and not os.path.lexists(copy / "__pycache__")
    assert json.loads((folder / "git.json").read_text()) is None and (folder / "changes.diff").read_bytes() == b""


def test_too_many_files_without_git_are_refused(bare):
    (bare / "data").mkdir()
    for number in range(20_001):
        os.close(os.open(f"{bare}/data/{number}", os.O_CREAT | os.O_WRONLY))
    said = refused(bare)
    assert f"{bare} is under no git and holds more than 20,000 files" in said and "run git init" in said
    git(bare, "init", "--quiet")
    write(bare, {".gitignore": "data/\n"})
    take(bare)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_more_than_the_limit(project):
    with open(project / "vocabulary", "wb") as file:
        file.truncate(3_000_000)
    commit(project)
    said = refused(project, limit="2")
    assert f"the sources in {project} are 5 files of 3 MB, and the limit is 20,000 files and 2 MB" in said
    assert "The largest: vocabulary (3 MB), " in said
    assert "raise SNAPSHOT_LIMIT_MB, or submit with SNAPSHOT=0" in said
    take(project, limit="4")


def test_a_program_that_would_not_be_copied(project, bare):
    write(project, {"data/prepare.py": "x"})
    said = refused_program(project, project / "data/prepare.py")
    assert f"{project}/data/prepare.py would not be copied. git ignores it" in said and "SNAPSHOT=0" in said
    write(bare, {"program.lua": "x"})
    said = refused_program(bare, bare / "program.lua")
    assert f"{bare} is under no git, and it has not the suffix of a source: rename it, or run git init" in said
    assert "was not copied: is it still there?" in refused_program(project, project / "gone.py")


def test_an_env_sh_that_git_ignores(project):
    """Later edits of it would reach the job."""
    git(project, "rm", "--quiet", "--cached", "env.sh")
    write(project, {".gitignore": "env.sh\nlogs/\n"})
    done = call(project)
    assert done.returncode == 2 and f"{project}/env.sh would not be copied. git ignores it" in done.stderr


@pytest.mark.parametrize("name", ["a:b", "a\nb"])
def test_a_project_whose_name_cannot_be_listed(tmp_path, name):
    said = refused(write(tmp_path / name, FILES))
    assert "':' separates the folders of PYTHONPATH" in said


# ---- interruptions, and several at once ------------------------------------------------------------------------------

# Stops snapshot.py after its second file.
HOLD = f"""\
import os, time
seen = []
def chmod(*arguments, chmod=os.chmod, **keywords):
    chmod(*arguments, **keywords)
    if not keywords:  # shutil, which copies git's index, gives some
        seen.append(arguments)
    if len(seen) == 2:
        open(os.environ["HELD"], "w").close()
        time.sleep({FOREVER})
os.chmod = chmod
"""


def test_a_copy_that_was_interrupted_is_never_used(project, tmp_path):
    write(tmp_path / "hold", {"sitecustomize.py": HOLD})
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "hold"), "HELD": str(tmp_path / "held")}
    process = subprocess.Popen(
        [sys.executable, "-B", SNAPSHOT, "100", project], env=environment, stdout=subprocess.PIPE
    )
    try:
        wait_for((tmp_path / "held").exists, "the second file")
        assert len(unfinished(project)) == 1 and finished(project) == []
    finally:
        process.kill()
    assert process.communicate()[0] == b"" and process.returncode == -signal.SIGKILL
    assert len(unfinished(project)) == 1 and finished(project) == []
    copy, _, (folder,) = take(project)
    assert finished(project) == [folder] and (copy / "train.py").read_text() == "first"
    assert len(unfinished(project)) == 1, "clean.sh removes it: another process may be at work"


def test_a_copy_that_is_told_to_end_leaves_nothing(project, tmp_path):
    """Ctrl-C of the user, while it copies."""
    write(tmp_path / "hold", {"sitecustomize.py": HOLD})
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "hold"), "HELD": str(tmp_path / "held")}
    # A test run in the background ignores SIGINT, and hands that on. env resets it.
    command = ["env", "--default-signal=INT", sys.executable, "-B", SNAPSHOT, "100", project]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    wait_for((tmp_path / "held").exists, "the second file")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) != 0
    assert unfinished(project) == [] and finished(project) == []


def test_eight_at_once_share_one_copy(project):
    write(project, {f"package/module{number}.py": "x" * 1000 for number in range(200)})
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-B", SNAPSHOT, "100", project, project / "train.py"]
    processes = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(8)]
    answers = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, answers
    assert len({out for out, _ in answers}) == 1
    assert sum("copied 204 files" in err or "copied 205 files" in err for _, err in answers) == 1, answers
    assert len(finished(project)) == 1 and unfinished(project) == []
    assert len(list(finished(project)[0].rglob("module*.py"))) == 200


# ---- Python of login nodes -------------------------------------------------------------------------------------------

# What came after Python 3.6, as far as one would write it here without a thought.
NEWER = r"capture_output|\btext=|:=|removeprefix|removesuffix|missing_ok|is_relative_to|dirs_exist_ok|shlex\.join"
NEWER += r"|functools\.cache\b|from __future__ import annotations|dataclass|\blist\[str|\bdict\[str|=\}|required=True"


@pytest.mark.parametrize("path", ON_LOGIN_NODES, ids=lambda path: path.name)
def test_python_36_can_run_it(path):
    text = path.read_text()
    ast.parse(text, feature_version=(3, 6))
    assert re.findall(NEWER, text) == []
    assert "#?" not in text, "the template would take it for one of its conditions"
    modules = re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE)
    assert set(modules) - {"git_state"} <= sys.stdlib_module_names


# ---- what would run the files as they are, without a message ---------------------------------------------------------


def test_links_to_folders_without_git(tmp_path):
    """A package that is a link to a folder of sources leads to their copy."""
    project = write(tmp_path / "plain", {"env.sh": "", "launch/extras.sh": "", "src/one.py": "1", "train.py": ""})
    (project / "package").symlink_to("src")
    (project / ".#train.py").symlink_to("nowhere")  # as Emacs leaves it
    (project / "gone.py").symlink_to("nowhere")
    copy = take(project)[0]
    assert (copy / "package/one.py").resolve() == copy.resolve() / "src/one.py"
    assert not (copy / "src").is_symlink()


def test_an_environment_at_the_top(tmp_path):
    """Its folder is the project's: new files are sources all the same."""
    project = repository(tmp_path / "repository", {"env.sh": "", "launch/extras.sh": "", "train.py": ""})
    write(project, {"pyvenv.cfg": "home = /usr/bin", "new.py": "1"})
    assert not (take(project)[0] / "new.py").is_symlink()


def test_equal_sources_of_another_commit(tmp_path):
    """Each copy says which commit it is of."""
    project = repository(tmp_path / "repository", {"env.sh": "", "launch/extras.sh": "", "train.py": "1"})
    write(project, {"train.py": "2"})
    before = json.loads((take(project)[0].parent / "git.json").read_text())
    commit(project)
    after = json.loads((take(project)[0].parent / "git.json").read_text())
    assert (before["clean"], after["clean"]) == (False, True) and before["commit"] != after["commit"]


def test_a_full_folder_with_configurations_is_no_folder_of_data(tmp_path):
    """It cannot be linked whole: the configurations would not be frozen."""
    project = repository(tmp_path / "repository", {"env.sh": "", "launch/extras.sh": "", "runs/conf.yaml": "1"})
    write(project, {".gitignore": "*.bin", **{f"runs/{number}.bin": "" for number in range(1001)}})
    assert "move them into a folder of their own" in refused(project)
