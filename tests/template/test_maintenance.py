"""The age of facts: a site whose facts nobody has checked for a year fails `make dates`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import date

from baking import REPOSITORY

from cluster_options import sites


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
