"""What extras/stage/pack.py packs, without Slurm; test_stage.py has the jobs that use it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from baking import TEMPLATE
from users import NEIGHBOUR, ONE, PYTHON, as_user, folder_of_all, needs_two_users
from waiting import wait_for

PACK = TEMPLATE / "extras/stage/pack.py"


def call(folder, *arguments, check=True, **environment):
    """Call pack.py; return the finished process."""
    command = [sys.executable, "-B", PACK, folder, *arguments]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


def packs(folder, *arguments, **environment):
    """Return what pack.py prints of each pack: kind, key, pack, path, name."""
    done = call(folder, *arguments, **environment)
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def names_in(pack):
    """Return the names of the files in a pack."""
    listed = subprocess.run(["tar", "-tf", pack], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name.rstrip("/").replace("./", "", 1) for name in listed} - {"."}


@pytest.fixture
def environment(tmp_path):
    """A virtual environment with a module."""
    folder = tmp_path / "an environment"
    venv.create(folder, symlinks=True)
    packages(folder).joinpath("thing.py").write_text("VALUE = 1\n")
    return folder


def packages(folder):
    return next(folder.glob("lib/python*/site-packages"))


def test_an_environment_and_its_python(environment, tmp_path):
    *others, (kind, key, pack, path, name) = packs(tmp_path / "staged", "--environment", environment)
    assert (kind, path, name) == ("environment", str(environment), str(environment))
    assert Path(pack).name.split(".")[:2] == [key, "tar"]
    assert {"bin/python", "pyvenv.cfg", str(packages(environment).relative_to(environment) / "thing.py")} <= names_in(
        pack
    )
    if Path(sys.base_prefix).resolve().is_relative_to("/usr"):
        assert not others
        return
    ((kind, _, pack, path, _),) = others
    assert (kind, Path(path)) == ("python", Path(sys.base_prefix).resolve())
    names = names_in(pack)
    assert f"bin/{Path(sys.executable).resolve().name}" in names
    assert {name.split("/")[0] for name in names} <= {"bin", "lib", "lib64"}
    assert not [name for name in names if "site-packages" in name]


def test_packages_of_the_python_are_packed_if_the_environment_uses_them(environment, tmp_path):
    python = tmp_path / "python"
    for name in ("bin", "lib/python3.11/site-packages/thing", "lib/python3.11/json", "share/doc"):
        (python / name).mkdir(parents=True)
    (python / "lib/python3.11/site-packages/thing/__init__.py").write_text("")
    for uses in ("false", "true"):
        (environment / "pyvenv.cfg").write_text(f"home = {python}/bin\ninclude-system-site-packages = {uses}\n")
        names = names_in(packs(tmp_path / "staged", "--environment", environment)[0][2])
        assert ("lib/python3.11/site-packages/thing/__init__.py" in names) == (uses == "true")
        assert "lib/python3.11/json" in names and "share/doc" not in names


def test_another_python_makes_another_pack_of_the_environment(environment, tmp_path):
    """A copy of an environment names the copy of its Python."""
    for name in ("bin", "lib/python3.11"):
        (tmp_path / "python" / name).mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(f"home = {tmp_path}/python/bin\n")
    first = packs(tmp_path / "staged", "--environment", environment)
    assert [words[0] for words in first] == ["python", "environment"]
    (tmp_path / "python/lib/python3.11/os.py").touch()
    second = packs(tmp_path / "staged", "--environment", environment)
    assert [words[1] for words in first] != [words[1] for words in second] and second[1][1] != first[1][1]


def test_a_python_below_usr_is_on_the_nodes(environment, tmp_path):
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert len(packs(tmp_path / "staged", "--environment", environment)) == 1


def test_a_pack_that_is_used_again_is_not_old(environment, tmp_path):
    """clean.sh removes what was not used for two weeks."""
    call = (tmp_path / "staged", "--environment", environment)
    first = packs(*call)
    for file in (tmp_path / "staged").iterdir():
        os.utime(file, (0, 0))
    assert packs(*call) == first
    assert min(file.stat().st_mtime for file in (tmp_path / "staged").iterdir()) > 10**9


def test_a_conda_environment_has_its_own_python(tmp_path):
    """Archives and other environments of an installation of conda are not packed."""
    for name in ("bin", "lib/python3.12", "conda-meta", "pkgs/torch-1", "envs/other/bin"):
        (tmp_path / "conda" / name).mkdir(parents=True)
        (tmp_path / "conda" / name / "file").write_text("x")
    ((kind, _, pack, path, _),) = packs(tmp_path / "staged", "--environment", tmp_path / "conda")
    assert (kind, path) == ("environment", str(tmp_path / "conda"))
    assert names_in(pack) == {"bin", "bin/file", "lib", "lib/python3.12", "lib/python3.12/file"}


def test_it_packs_again_only_after_a_change(environment, tmp_path):
    staged = tmp_path / "staged"
    first = packs(staged, "--environment", environment)
    written = os.stat(first[-1][2]).st_ino
    assert packs(staged, "--environment", environment) == first
    (packages(environment) / "__pycache__").mkdir(exist_ok=True)
    (packages(environment) / "__pycache__/thing.pyc").write_text("compiled by a job")
    assert packs(staged, "--environment", environment) == first
    assert os.stat(first[-1][2]).st_ino == written
    module = packages(environment) / "thing.py"
    for change in (
        lambda: module.write_text("VALUE = 22\n"),
        lambda: os.utime(module, (1, 1)),
        lambda: module.chmod(0o700),
        lambda: (module.unlink(), module.symlink_to("other.py")),
        lambda: (module.unlink(), module.symlink_to("another.py")),
        (packages(environment) / "empty").mkdir,
    ):
        before, _ = packs(staged, "--environment", environment)[-1][1], change()
        assert packs(staged, "--environment", environment)[-1][1] != before


def test_an_environment_of_uv_is_compiled(environment, tmp_path):
    """uv leaves that to the first import."""
    with open(environment / "pyvenv.cfg", "a") as file:
        file.write("uv = 0.5.0\n")
    names = names_in(packs(tmp_path / "staged", "--environment", environment)[-1][2])
    assert [name for name in names if name.endswith(".pyc") and "/thing." in name]


def test_data(tmp_path):
    (tmp_path / "data/inner").mkdir(parents=True)
    (tmp_path / "data/inner/a b").write_text("1")
    (tmp_path / "data/-x").write_text("2")
    ((kind, key, pack, path, name),) = packs(tmp_path / "staged", "--data", f"{tmp_path}/data/")
    assert (kind, path, name) == ("data", *[str(tmp_path / "data")] * 2)
    assert Path(pack).name.split(".")[:2] == [key, "tar"]
    assert names_in(pack) == {"inner", "inner/a b", "-x"}
    file = tmp_path / "tokens.tar"  # its suffix is no sign of a pack
    file.write_text("1")
    ((kind, key, pack, path, _),) = packs(tmp_path / "staged", "--data", file)
    assert (kind, pack, path) == ("file", str(file), str(file))
    os.utime(file, (1, 1))
    assert packs(tmp_path / "staged", "--data", file)[0][1] != key


def test_with_and_without_zstd(tmp_path):
    """Each machine makes the packs that it can unpack."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("1" * 100000)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/tar").symlink_to(shutil.which("tar"))
    ((_, key, plain, *_),) = packs(tmp_path / "staged", "--data", tmp_path / "data", PATH=str(tmp_path / "tools"))
    assert plain.endswith(f"{key}.tar") and os.path.getsize(plain) > 100000
    (tmp_path / "tools/zstd").symlink_to(shutil.which("zstd") or pytest.skip("no zstd"))
    ((_, _, pack, *_),) = packs(tmp_path / "staged", "--data", tmp_path / "data", PATH=str(tmp_path / "tools"))
    assert pack.endswith(f"{key}.tar.zst") and os.path.getsize(pack) < 10000 and names_in(pack) == {"file"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "nowhere"], ["STAGE_DATA=", "nowhere", "expected a file or a folder"]),
        (["--data", "empty"], ["STAGE_DATA=", "is empty"]),
        (["--data", "."], ["has the folder of packs", "name a folder of data alone"]),
        (["--data", "a\tb"], ["has a tab or a line break in its name", "rename it"]),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "full", "a\tb"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/file").write_text("1")
    (tmp_path / "a\tb/file").write_text("1")
    done = call(tmp_path / "staged", *arguments, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert all(word in done.stderr for word in ["STAGE: ", *words]), done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_leaves_nothing(tmp_path):
    """tar has the words for it: here /dev/full takes the place of the disk."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("1")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "tar").write_text("#!/bin/sh\necho half >\"$5\"\necho 'tar: x: Cannot write: No space left' >&2\nexit 2\n")
    (tools / "tar").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    done = call(tmp_path / "staged", "--data", tmp_path / "data", check=False, PATH=path)
    assert done.returncode == 2
    assert "No space left" in done.stderr and "free space there" in done.stderr and "set STAGE=0" in done.stderr
    assert os.listdir(tmp_path / "staged") == []


def test_a_file_that_changes_while_tar_reads_it(tmp_path):
    """As those of a __pycache__, which do not count. tar warns, and ends with 1."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("1")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/tar").write_text(f'#!/bin/sh\n{shutil.which("tar")} "$@" && exit 1\n')
    (tmp_path / "tools/tar").chmod(0o755)
    path = f"{tmp_path / 'tools'}:{os.environ['PATH']}"
    ((_, _, pack, *_),) = packs(tmp_path / "staged", "--data", tmp_path / "data", PATH=path)
    assert names_in(pack) == {"file"}


def test_an_interrupted_pack_is_never_used(tmp_path):
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "hold")
    (tmp_path / "data/file").write_text("1")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "tar").write_text(f"#!/bin/sh\necho half >\"$5\"\necho >'{tmp_path}/begun'\nread x <'{tmp_path}/hold'\n")
    (tools / "tar").chmod(0o755)
    command = [sys.executable, "-B", PACK, tmp_path / "staged", "--data", tmp_path / "data"]
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    running = subprocess.Popen(command, env=environment, start_new_session=True)
    wait_for((tmp_path / "begun").exists, "that tar writes")
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert [name for name in os.listdir(tmp_path / "staged") if not name.startswith(".unfinished")] == []
    ((_, _, pack, *_),) = packs(tmp_path / "staged", "--data", tmp_path / "data")
    assert names_in(pack) == {"file"}


def test_eight_at_once(environment, tmp_path):
    """Each may pack; all print the same, and the packs are whole."""
    command = [sys.executable, "-B", PACK, tmp_path / "staged", "--environment", environment]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    running = [subprocess.Popen(command, **quiet) for _ in range(8)]
    lists = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0] * 8 and len(lists) == 1
    assert "bin/python" in names_in(lists.pop().splitlines()[-1].split("\t")[2])
    assert not list((tmp_path / "staged").glob(".unfinished*"))


@needs_two_users
def test_a_neighbour_reads_no_pack(folder_of_all):
    """Also where another file system, to which the user has made a link, lets all users in."""
    as_user(ONE, "mkdir", "-m", "700", folder_of_all / "data")
    as_user(ONE, "sh", "-c", f"echo patient >{folder_of_all}/data/file; chmod 644 {folder_of_all}/data/file")
    as_user(ONE, "mkdir", "-m", "755", folder_of_all / "disk")
    as_user(ONE, "ln", "-s", "disk", folder_of_all / "link")
    for name in ("staged", "link"):
        command = [PYTHON, PACK, folder_of_all / name, "--data", folder_of_all / "data"]
        printed = as_user(ONE, *command).stdout
        assert as_user(ONE, *command).stdout == printed
        pack = printed.split("\t")[2]
        assert {Path(name).name for name in names_in(pack)} >= {"file"}
        assert as_user(NEIGHBOUR, "cat", pack, check=False).returncode != 0
    assert as_user(NEIGHBOUR, "ls", folder_of_all / "staged", check=False).returncode != 0


@needs_two_users
@pytest.mark.parametrize("plant", ["mkdir -m 777 {0}", "ln -s {1} {0}", "touch {0}"])
def test_a_neighbour_s_folder_of_packs_is_refused(folder_of_all, plant):
    """A pack in it could have any content under the right KEY."""
    for name in ("data", "mine"):
        as_user(ONE, "mkdir", folder_of_all / name)
    as_user(ONE, "touch", folder_of_all / "data/file")
    staged = folder_of_all / "staged"
    as_user(NEIGHBOUR, "sh", "-c", plant.format(staged, folder_of_all / "mine"))
    done = as_user(ONE, PYTHON, PACK, staged, "--data", folder_of_all / "data", check=False)
    assert (done.returncode, done.stdout) == (2, "") and f"{staged} is not a folder of yours" in done.stderr
    assert not [*(folder_of_all / "mine").iterdir(), *staged.glob("*")]
