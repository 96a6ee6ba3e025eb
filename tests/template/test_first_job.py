"""The way to the first job of each site: few steps, few minutes, and nothing to build where the site has torch."""

from __future__ import annotations

import re

import pytest

from cluster_options import first_job
from cluster_options.sites import site_facts, site_names


@pytest.mark.parametrize("site", [site for site in site_names() if site_facts(site)["kind"] != "local"])
def test_there_are_few_steps_to_it(site, written):
    """README.md has the steps that the table counts. The last one is the check of the ranks.

    No image has to be built, and an environment only where no module or image of the site has torch.
    """
    answers = {**first_job.suggested(site), "extras": "all"}
    readme = (written(**answers) / "README.md").read_text()
    section = re.search(r"(?ms)^## First run\n(.*?)^\*\*If it goes wrong", readme)[1]
    titles = re.findall(r"(?m)^\*\*(\d)\. ", section)
    assert titles == [str(number + 1) for number in range(len(first_job.steps(answers)))] and len(titles) <= 5
    last = section.partition(f"\n**{titles[-1]}. ")[2]
    (command,) = re.findall(r"(?m)^(.*submit_multinode\.sh .*check/ranks\.py)", last)
    assert last.index(command) < last.index("\n**Then ")
    if answers["runtime"] == "pod":
        return
    assert "build_container.sh" not in section and "docker build" not in section
    assert ("\nbash slurm/build_venv.sh " in section) is (answers["runtime"] == "venv") is first_job.builds(answers)


def test_no_site_takes_longer_than_a_quarter_of_an_hour():
    minutes = re.findall(r"; \d steps?, (\d+) min \|", first_job.table())
    assert len(minutes) == len(site_names()) and max(map(int, minutes)) <= 15
