"""What maintainers rely on: workflows, the age of facts, and documents that point somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import yaml
from baking import REPOSITORY

from cluster_options import sites

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))


def steps(workflow):
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_pinned_limited_and_calls_make(workflow):
    text = workflow.read_text()
    for use in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use
    content = yaml.safe_load(text)
    assert content["permissions"] == {"contents": "read"} and content["concurrency"]
    for name, job in content["jobs"].items():
        assert job["timeout-minutes"] <= 180, name
        commands = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
        targets = [line.split()[1] for line in commands if line.startswith("make ")]
        assert targets and set(targets) <= TARGETS, name
    assert all(set(step) <= {"uses", "with", "run"} for step in steps(workflow))


def test_the_two_workflows_differ_in_what_they_make():
    """The same pins, and what a push does not run, the week does."""
    made = {path.stem: {step["run"] for step in steps(path) if "run" in step} for path in WORKFLOWS}
    assert made["ci"] - made["weekly"] == {"make lint", "make bakes", "make demo", "make test"}
    assert made["weekly"] - made["ci"] == {"make dates", "make test-all"}
    pins = [set(re.findall(r"uses: (.*)", path.read_text())) for path in WORKFLOWS]
    assert pins[0] == pins[1] and len(pins[0]) == len({pin.split("@")[0] for pin in pins[0]})


def test_actionlint_has_nothing_to_say():
    """`make lint` installs it; pip builds it from what it fetches from GitHub, which not every machine reaches."""
    actionlint = shutil.which("actionlint", path=str(Path(sys.executable).parent)) or shutil.which("actionlint")
    if not actionlint:
        pytest.skip("no actionlint: make lint installs it")
    done = subprocess.run([actionlint, *WORKFLOWS], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def copied(tmp_path, checked):
    """The sites with the module that reads them; the facts of one were checked on a day."""
    shutil.copytree(REPOSITORY / "sites", tmp_path / "sites")
    shutil.copytree(REPOSITORY / "cluster_options", tmp_path / "cluster_options")
    site = tmp_path / "sites/mn5.yaml"
    text, count = re.subn(r'^checked: ".*"', f'checked: "{checked}"', site.read_text(), flags=re.M)
    assert count == 1
    site.write_text(text)
    command = [sys.executable, "-B", "-m", "cluster_options", "dates"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_facts_that_nobody_checked_for_a_year_fail(tmp_path):
    done = copied(tmp_path, "2020-02-29")
    assert done.returncode == 1 and done.stdout == ""
    assert "sites/mn5.yaml was checked on 2020-02-29, more than a year ago: " in done.stderr


def test_facts_of_today_pass(tmp_path):
    done = copied(tmp_path, date.today())
    assert "mn5" not in done.stderr and "Traceback" not in done.stderr


def test_a_year_is_365_days(monkeypatch):
    monkeypatch.setattr(sites, "site_names", lambda: ["mn5"])
    monkeypatch.setattr(sites, "site_facts", lambda site: {"checked": "2026-03-01"})
    assert sites.outdated(date(2027, 3, 1)) == []
    assert len(sites.outdated(date(2027, 3, 2))) == 1


def test_decisions_name_both_sides_in_a_few_sentences_and_files_that_are_there():
    text = (REPOSITORY / "docs/decisions.md").read_text()
    decisions = re.findall(r"^### (.*)\n\n((?:[^#\n].*\n)+)", text, re.M)
    assert len(decisions) == text.count("\n### ")
    for heading, body in decisions:
        assert ", not " in heading
        assert len(re.findall(r"\.(?=\s)", body)) <= 6, heading
    both = text + (REPOSITORY / "CONTRIBUTING.md").read_text()
    template = REPOSITORY / "{{cookiecutter.project}}"
    for name in re.findall(r"`((?:hooks|launch|slurm|check|training|tests)/[\w./-]+\.\w+)`", both):
        assert (REPOSITORY / name).exists() or (template / name).exists(), name
    readme = (REPOSITORY / "README.md").read_text()
    assert "(CONTRIBUTING.md)" in readme and "(docs/decisions.md)" in readme
