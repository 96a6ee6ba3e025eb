"""sites/schema.json says of a site file what SCHEMA says; `check` tells a file's faults without writing a project."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import date

import jsonschema
import pytest
import yaml
from baking import REPOSITORY
from test_refusals import BROKEN_SITES, GOOD_SITE

from cluster_options import sites
from cluster_options.schema import SCHEMA, schema_file
from cluster_options.sites import site_facts
from cluster_options.sources import missing_sources

FILES = sorted((REPOSITORY / "sites").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator():
    schema = json.loads((REPOSITORY / "sites/schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def test_the_file_is_the_one_that_make_schema_writes():
    assert (REPOSITORY / "sites/schema.json").read_text() == json.dumps(schema_file(), indent=1) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_site_file_is_as_it_says(path, validator):
    assert [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))] == []


def keys_at_fault(content, validator):
    """Return the first key of each fault: as SCHEMA tells it, and as JSON Schema does."""
    own = {re.match(r"\w*", fault)[0] for fault in SCHEMA.faults(content)}
    others = set()
    for error in validator.iter_errors(content):
        named = re.findall(r"'([^']+)'", error.message)  # of a key that is missing or unknown
        others.add(str(error.path[0]) if error.path else named[0])
    return own, others


@pytest.mark.parametrize(("old", "new", "_"), BROKEN_SITES, ids=lambda value: str(value)[:40])
def test_both_find_the_same_faults(old, new, _, validator):
    """But for two: what Python can compile as a regular expression, and which dates there are."""
    try:
        content = yaml.safe_load(GOOD_SITE.replace(old, new, 1))
    except (yaml.YAMLError, ValueError):
        return  # neither comes to see it
    own, others = keys_at_fault(content, validator)
    assert own - {"detect"} == others


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"node": {"gpus": True}}, "node"),
        ({"node": []}, "node"),
        ({"partitions": {"a": {"tiers": [{"max_nodes": 1}]}}}, "partitions"),
        ({"partitions": ["a"]}, "partitions"),
        ({"all_reduce": [{"about": "a", "source": "b", "unit": "GB/s", "rows": []}]}, "all_reduce"),
        ({"all_reduce": [{"about": "a", "source": "b", "unit": "GB/s", "rows": [{"busbw": 0}]}]}, "all_reduce"),
        ({"modules": "gcc"}, "modules"),
        ({"modules": [1]}, "modules"),
        ({"notes": [1]}, "notes"),
        ({"notes": [{"note": "a"}]}, "notes"),
        ({"unconfirmed": [{"text": "a\nb", "runtimes": ["venv"]}]}, "unconfirmed"),
        ({"module_lines": {"after": [{"line": "a\nb", "why": "c"}]}}, "module_lines"),
        ({"internet": "no"}, "internet"),
        ({"required": ["nodes"]}, "required"),
        ({"checked": "yesterday"}, "checked"),
    ],
)
def test_each_kind_of_value_is_checked_by_both(content, key, validator):
    own, others = keys_at_fault({**yaml.safe_load(GOOD_SITE), **content}, validator)
    assert own == others == {key}


def package(*words):
    """Run `python -m cluster_options`."""
    command = [sys.executable, "-B", "-m", "cluster_options", *map(str, words)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_check_tells_all_faults_of_all_files(tmp_path):
    good, wrong, other = tmp_path / "good.yaml", tmp_path / "wrong.yaml", tmp_path / "other.yaml"
    good.write_text(GOOD_SITE)
    wrong.write_text(GOOD_SITE.replace("nodes: 2", "nodes: two").replace("commands:", "comands:"))
    other.write_text(GOOD_SITE.replace("title:", "#title:"))
    done = package("check", good)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{good}: a site file without faults\n", "")
    done = package("check", wrong, good, other, tmp_path / "none.yaml")
    assert done.returncode == 1 and done.stdout == f"{good}: a site file without faults\n"
    assert done.stderr.count(" is not as sites/schema.json wants it:") == 2
    for words in ("defaults.nodes: expected a whole number", "comands: unknown key", "title: missing", "no such file"):
        assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_every_site_file_names_its_sources():
    done = package("check", *FILES)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


SOURCED = (REPOSITORY / "sites/fir.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (r"(?m)^# \[.*\n", "", ['no source: begin a line at the top with "# [X]", and the address and date']),
        (r"(?m)^# \[W\].*\n", "", ["node: [W] is not among the sources at the top; add a line # [W] there"]),
        (r"(?m)^(file_systems:) #.*", r"\1", ["file_systems: no source; put it into a comment beside the fact"]),
        (r"(?m)^# ualberta.*\n", "", ["login: no source; put it into a comment beside the fact"]),
    ],
)
def test_a_site_file_without_a_source_is_refused(old, new, expected):
    """Without the fault that is looked for there is none."""
    text, count = re.subn(old, new, SOURCED)
    found = missing_sources(text)
    assert count and missing_sources(SOURCED) == []
    assert all(any(words in fault for fault in found) for words in expected), found


def test_a_base_file_holds_known_keys_and_names_its_sources():
    for path in (REPOSITORY / "sites/bases").glob("*.yaml"):
        faults = [fault for fault in SCHEMA.faults(yaml.safe_load(path.read_text())) if not fault.endswith(": missing")]
        assert faults == [] and missing_sources(path.read_text()) == [], path


def test_what_a_file_says_itself_goes_before_its_base(tmp_path):
    """Named values are joined, lists too, and the file's own entries come first."""
    own = "base: alliance\naccount: {example: aip-x}\nbinds: [/data]\nlogin_internet: false\n"
    own += "containers: {venv: {on_login_node: false}}\nruntimes: [venv, apptainer]\n"
    text = re.sub("(?m)^runtimes:.*\n", "", GOOD_SITE)
    (tmp_path / "own.yaml").write_text(text + own)
    facts = site_facts(str(tmp_path / "own.yaml"))
    assert facts["account"]["example"] == "aip-x" and facts["account"]["like"]
    assert facts["binds"] == ["/data", "/project", "/scratch"] and facts["login_internet"] is False
    venv = facts["containers"]["venv"]
    assert venv["on_login_node"] is False and venv["wheelhouse"] == "avail_wheels"


def test_a_year_after_the_check_facts_are_outdated(monkeypatch):
    monkeypatch.setattr(sites, "site_names", lambda: ["mn5"])
    monkeypatch.setattr(sites, "site_facts", lambda site: {"checked": "2026-03-01"})
    assert sites.outdated(date(2027, 3, 1)) == []
    assert len(sites.outdated(date(2027, 3, 2))) == 1


@pytest.mark.parametrize("words", [[], ["chek"], ["check"], ["table", "x"]])
def test_wrong_words_print_the_usage(words):
    done = package(*words)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("usage: python3 -m cluster_options ")
