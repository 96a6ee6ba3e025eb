"""Pods that run a copy of the sources: the command for runai, and jobs on the stand-in for Run:ai."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from baking import bake
from runai_cluster import RunaiCluster
from sources import LONGER
from test_runai import IMAGE, Site, succeeded
from test_runai_submit import ON_VOLUME, command, script


@pytest.fixture
def on_volume(tmp_path):
    """A project on a volume that this machine and the pods know by one name."""
    project = bake(tmp_path, site="runai", account="lab", extras="snapshot")
    settings = (project / "env.sh").read_text()
    assert settings.count("\nVOLUMES=()") == 1
    (project / "env.sh").write_text(settings.replace("\nVOLUMES=()", f"\nVOLUMES=(data:{tmp_path})"))
    return project


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_pods_run_the_copy(generation, on_volume, tmp_path):
    """Its runai/pod.sh, and its program; a program elsewhere on the volume has a copy of its own."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/own.py").write_text("print(1)\n")
    own = {"POD_PROJECT_DIR": str(on_volume), "SNAPSHOT": "1"}
    for arguments, count in ((["check/hello.py", "--max", "3"], 1), ([str(tmp_path / "work/own.py"), "a"], 2), ([], 1)):
        told = command(on_volume, generation, *arguments, **own)
        words = told["words"][1 : 2 + len(arguments[:1])]
        assert told["words"][0] == "bash" and all(os.path.isfile(word) for word in words)
        copies = [Path(re.match(f"{on_volume}/logs/snapshots/[0-9a-f]{{12}}", word).group()) for word in words]
        assert words[0] == str(copies[0] / "demo/runai/pod.sh") and len(set(copies)) == count
        assert (
            words[1:] == [str(copies[-1] / ("work/own.py" if count == 2 else "demo/check/hello.py"))][: len(words) - 1]
        )


def test_pods_run_a_module_of_the_copy(on_volume, tmp_path):
    """Python looks for it in the project's folder, wherever the user submits."""
    own = {"POD_PROJECT_DIR": str(on_volume), "SNAPSHOT": "1"}
    told = command(on_volume, "v2", "-m", "check.hello", "a", **own)
    (copy,) = on_volume.glob("logs/snapshots/*/demo")
    words = [copy / "runai/pod.sh", copy / "extras/snapshot/run_module.py", copy, "check.hello", "a"]
    assert told["words"] == ["bash", *map(str, words)]


def test_without_a_copy_pods_run_the_project(on_volume):
    """The default: a copy can only be made where the volume is mounted."""
    told = command(on_volume, "v2", "check/hello.py", POD_PROJECT_DIR=str(on_volume))
    assert told["words"][1:] == [f"{on_volume}/runai/pod.sh", f"{on_volume}/check/hello.py"]
    assert not list(on_volume.glob("logs/snapshots/*"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SNAPSHOT": "2"}, "SNAPSHOT='2': expected 1 or 0"),
        (
            {"SNAPSHOT": "1", "POD_PROJECT_DIR": "VOLUME/elsewhere"},
            "SNAPSHOT=1: this machine does not see POD_PROJECT_DIR='VOLUME/elsewhere', so it cannot make a copy there:"
            " submit where the volume is mounted, or set SNAPSHOT=0",
        ),
    ],
)
def test_copies_that_pods_could_not_see_are_refused(settings, says, on_volume):
    volume = str(on_volume.parent)
    settings = {name: value.replace("VOLUME", volume) for name, value in settings.items()}
    says = says.replace("VOLUME", volume)
    own = {**ON_VOLUME, "POD_PROJECT_DIR": str(on_volume), "RUNAI_CLI": "v2", **settings}
    done = script(on_volume, "--dry-run", "check/hello.py", **own)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"runai/submit_multinode.sh: {says}\n"), done.stderr
    assert not list(on_volume.glob("logs/snapshots/*"))


TELLS_OF_COPY = (
    "import helper, os, sys\n"
    "print('RESULT', os.environ['RANK'], helper.TEXT, __file__, os.getcwd(), sys.argv[1:])\n" + LONGER
)


@pytest.mark.skipif(bool(RunaiCluster.missing()), reason=f"no pods: {RunaiCluster.missing()}")
def test_pods_run_a_copy_and_say_which_code_it_was(tmp_path, tmp_path_factory):
    """The user submits where the volume is mounted, under the name that pods know. Edits come after the submission."""
    mounted = tmp_path_factory.mktemp("mounted") / "scratch"
    with Site(tmp_path, extras="snapshot") as site:
        mounted.symlink_to(site.volume)
        settings = site.project / "env.sh"
        text = settings.read_text()
        assert text.count("mlo-scratch:/mnt/mlo/scratch") == 1
        settings.write_text(text.replace("mlo-scratch:/mnt/mlo/scratch", f"mlo-scratch:{mounted}"))
        (site.project / "helper.py").write_text("TEXT = 'first'\n")
        (site.project / "logs").mkdir()  # of the user, also where root runs the tests
        site.program(TELLS_OF_COPY)
        where = {"POD_PROJECT_DIR": f"{mounted}/demo"}
        job = site.run(f"{mounted}/demo/program.py", "a b", SNAPSHOT="1", **where)
        succeeded(job)
        (copy,) = site.project.glob("logs/snapshots/*/demo")
        inside = f"{mounted}/demo/{copy.relative_to(site.project)}"
        found = re.findall(r"RESULT (.*)", job.output)
        rest = f"first {inside}/program.py {mounted}/demo ['a b']"
        assert sorted(found) == [f"0 {rest}", f"1 {rest}"], job.output
        (logs,) = site.project.glob(f"logs/{site.name()}.*")
        run = json.loads((logs / "run.json").read_text())
        assert run["code"]["snapshots"] == [str(Path(inside).parent)] and run["project"] == f"{mounted}/demo"
        assert run["program"] == [f"{inside}/program.py", "a b"] and run["image"]["name"] == IMAGE
        assert len((logs / "nodes").read_text().splitlines()) == 2
        assert "\ntorch==" in (logs / "packages.txt").read_text()
