"""The way to the first job of each site: few steps, few minutes, and nothing to build where the site has torch."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from baking import REPOSITORY

from cluster_options import first_job
from cluster_options.sites import site_facts, site_names

SLURM = [site for site in site_names() if site_facts(site)["kind"] == "slurm"]


def first_run(project):
    """Return the section of README.md up to what may go wrong."""
    readme = (project / "README.md").read_text()
    return re.search(r"(?ms)^## First run\n(.*?)^\*\*If it goes wrong", readme)[1]


@pytest.mark.parametrize("site", site_names())
def test_there_are_few_steps_to_it(site, written):
    """README.md has the steps that the table counts. The last one is the check of the ranks."""
    answers = {**first_job.suggested(site), "extras": "all"}
    project = written(**answers)
    if site == "local":
        assert "bash local/submit.sh check/ranks.py" in (project / "README.md").read_text()
        return
    section = first_run(project)
    titles = re.findall(r"(?m)^\*\*(\d)\. ", section)
    assert titles == [str(number + 1) for number in range(len(first_job.steps(answers)))] and len(titles) <= 5
    last = section.partition(f"\n**{titles[-1]}. ")[2]
    (command,) = re.findall(r"(?m)^(.*submit_multinode\.sh .*check/ranks\.py)", last)
    assert command.split()[-1] == "check/ranks.py"
    assert last.index(command) < last.index("\n**Then ")


@pytest.mark.parametrize("site", SLURM)
def test_nothing_is_built_where_the_site_has_torch(site, written):
    """No image has to be built, and an environment only where no module or image of the site has torch."""
    answers = {**first_job.suggested(site), "extras": "all"}
    section = first_run(written(**answers))
    assert "build_container.sh" not in section and "docker build" not in section
    assert ("\nbash slurm/build_venv.sh " in section) is (answers["runtime"] == "venv") is first_job.builds(answers)
    on_login = site_facts(site)["containers"].get("venv", {}).get("on_login_node", False)
    assert ("\ntail -F build-venv-JOBID.out" in section) is (answers["runtime"] == "venv" and not on_login)


def test_the_table_counts_steps_and_minutes():
    done = subprocess.run(
        [sys.executable, "-m", "cluster_options", "table"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    rows = dict(re.findall(r"(?m)^\| `([\w-]+)` \|.*\| (\d x .*?; \d steps?, \d+ min) \|", done.stdout))
    assert list(rows) == site_names()
    assert max(int(re.search(r"(\d+) min$", row)[1]) for row in rows.values()) <= 15
    assert done.stdout in (REPOSITORY / "docs/sites.md").read_text()
