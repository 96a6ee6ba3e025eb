"""Answers that a cluster, a shell or a folder would choke on are refused, all at once, and nothing is written."""

from __future__ import annotations

import json
import re

import pytest
from baking import REPOSITORY, bake, cookiecutter

from cluster_options.answers import problems
from cluster_options.questions import QUESTION_NAMES
from cluster_options.sbatch import example_nodes, resources
from cluster_options.sites import SiteError, site_facts

GOOD = {"project": "demo", "site": "mn5", "launcher": "torchrun", "runtime": "venv", "image": "", "account": "abc1"}
GOOD |= {"partition": "acc", "qos": "acc_debug", "nodes": "2", "gpus_per_node": "4", "time_limit": "01:00:00"}
GOOD |= {"examples": "yes", "extras": "all"}
CLARIDEN = {"site": "clariden", "partition": "debug", "qos": "", "account": ""}
LOCAL = {"site": "local", "runtime": "none", "account": "", "partition": "", "qos": "", "time_limit": ""}
RUNAI = {**LOCAL, "site": "runai", "runtime": "pod", "image": "nvcr.io/nvidia/pytorch:26.01-py3", "account": "mlo-me"}

# What is answered beside GOOD, and what the message must say: the value, the rule, the fix.
REFUSED = [
    ({"project": ""}, ["project ''", "letters, digits"]),
    ({"project": "a" * 65}, ["at most 64"]),
    ({"site": "mn6"}, ["site 'mn6' is not known", "did you mean mn5?", "path of a site file"]),
    ({"site": "/no/such.yaml"}, ["site '/no/such.yaml'", "no such file"]),
    ({**CLARIDEN, "launcher": "mpirun"}, ["launcher 'mpirun' is not available for Clariden", "torchrun, srun, spawn"]),
    ({"runtime": "vnev"}, ["runtime 'vnev'", "did you mean", "venv"]),
    ({"runtime": "apptainer", "image": "x.sif"}, ["image 'x.sif' is of the wrong kind", "the absolute path of a .sif"]),
    ({**CLARIDEN, "runtime": "edf", "image": "nvcr.io/nvidia/pytorch:26.06-py3"}, [": here nvcr.io#nvidia/pytorch:26"]),
    (
        {"site": "slurm", "partition": "", "qos": "", "runtime": "pyxis", "image": "a#b:1", "launcher": "mpirun"},
        ["launcher 'mpirun' cannot start runtime 'pyxis', a container that only srun starts", "or launcher torchrun"],
    ),
    ({"runtime": "apptainer"}, ["image is empty", "give the absolute path of a .sif file, or docker://"]),
    ({"image": "x.sif"}, ["image 'x.sif' was given", "runtime 'venv' is no container", "leave the image empty"]),
    ({"account": ""}, ["account is empty", "bsc_project list"]),
    ({"qos": ""}, ["qos is empty", "bsc_queues"]),
    ({"partition": "acd"}, ["partition 'acd'", "did you mean acc?"]),
    ({"nodes": "0"}, ["nodes '0'", "at least 1"]),
    ({"nodes": "٣"}, ["nodes '٣'"]),
    ({"nodes": "9"}, ["nodes 9: qos acc_debug allows at most 8", "if a limit has changed: copy the site's file"]),
    ({"gpus_per_node": "5"}, ["gpus_per_node 5", "has 4", "more nodes"]),
    ({"gpus_per_node": "0"}, ["gpus_per_node 0", "use 1 to 4"]),
    ({"gpus_per_node": "-1"}, ["gpus_per_node '-1' is not a whole number of at least 0"]),
    ({"account": "a" * 201}, ["account 'aaaaaaaaaaaaaaaaaaaa'… has 201 characters; it may have 200"]),
    ({"time_limit": "03:00:00"}, ["time_limit 03:00:00: qos acc_debug allows at most 02:00:00"]),
    ({"time_limit": "90"}, ["time_limit '90'", "[D-]HH:MM:SS"]),
    ({**CLARIDEN, "nodes": "4", "time_limit": "00:30:00"}, ["90 node-minutes", "at most 00:22:00"]),
    ({"runtime": "pod", "image": "a/b:1"}, ["runtime 'pod' is for Run:ai, but MareNostrum 5 ACC (BSC) has Slurm"]),
    ({**RUNAI, "site": "rcp", "account": "mlo"}, ["account 'mlo': at RCP (EPFL) it looks like mlo-jdoe"]),
    ({**RUNAI, "time_limit": "01:00:00"}, ["time_limit '01:00:00' means nothing where", "leave it empty"]),
    ({**RUNAI, "image": "/x.sif"}, ["image '/x.sif' is of the wrong kind for runtime 'pod'; give REGISTRY/NAME:TAG"]),
    ({**LOCAL, "partition": "debug"}, ["partition 'debug' means nothing where there is no scheduler"]),
    ({"examples": "maybe"}, ["examples 'maybe' is neither yes nor no", "choose yes, or no for a project that exists"]),
    (
        {"examples": "False"},
        ["examples 'False' is neither", 'in a YAML file, which reads no as False, write "no" in quotes'],
    ),
]
HOSTILE = ['4"; rm -rf ~; "', "$(id)", "`id`", "a\nb", "a b", "a;b", "a&b", "a'b", "a\\b", "{{ 7 * 7 }}x", "a#b", "é"]


@pytest.mark.parametrize(("answers", "expected"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused(answers, expected):
    found = problems({**GOOD, **answers})
    for words in expected:
        assert any(words in fault for fault in found), found


def test_nodes_that_segments_do_not_divide_are_refused(tmp_path):
    """A job that fits into a segment may have any number; what a partition says of its nodes goes first."""
    text = GOOD_SITE.replace("node:\n", "node:\n  segment: 4\n")
    text += "partitions: {racks: {default: true}, old: {node: {segment: 1}}}\n"
    (tmp_path / "own.yaml").write_text(text)
    answers = {**GOOD, "site": str(tmp_path / "own.yaml"), "account": "", "qos": "", "partition": ""}
    answers |= {"time_limit": "00:30:00", "gpus_per_node": "1"}
    for nodes in ("1", "3", "4", "8", "12"):
        assert problems({**answers, "nodes": nodes}) == []
    fault, way_out = problems({**answers, "nodes": "10"})
    assert "needs a multiple of 4 (--segment); use 8 or 12" in fault and "if a limit has changed" in way_out
    assert problems({**answers, "nodes": "10", "partition": "old"}) == []
    for nodes, segment in (("3", []), ("4", ["--segment=4"]), ("8", ["--segment=4"])):
        options = [option for option, _ in resources({**answers, "nodes": nodes})]
        assert [option for option in options if "segment" in option] == segment
        assert example_nodes({**answers, "nodes": nodes}) == (nodes if segment else "4")


def test_good_answers_have_no_fault():
    assert problems(GOOD) == []
    assert problems({**GOOD, **CLARIDEN, "nodes": "3", "time_limit": "00:30:00"}) == []
    assert problems({**GOOD, "qos": "acc_ehpc", "nodes": "100", "time_limit": "3-00:00:00"}) == []


@pytest.mark.parametrize("answer", HOSTILE)
def test_hostile_answers_are_refused_in_every_question(answer):
    for question in QUESTION_NAMES:
        if question == "image" and answer in {"a b", "a#b"}:
            continue  # stands in quotes, and REGISTRY#NAME:TAG is how an image is written
        found = problems({**GOOD, question: answer})
        assert any(fault.startswith(question) for fault in found), (question, found)


def test_all_faults_are_told_at_once_and_nothing_is_written(tmp_path):
    answers = {"site": "mn5", "nodes": "0", "gpus_per_node": "9", "time_limit": "soon", "partition": "acd"}
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, **answers)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: nothing was written, because of\n  ")
    for words in ("account is empty", "partition 'acd'", "nodes '0'", "gpus_per_node 9", "time_limit 'soon'"):
        assert words in done.stderr
    assert len(done.stderr.splitlines()) == 6, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("claridon", "Error: site 'claridon' is not known (did you mean clariden?)"),
        ("~no-such-user/a.yaml", "Error: site '~no-such-user/a.yaml': "),
    ],
)
def test_an_unknown_site_is_refused_in_one_line(site, said, tmp_path):
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, site=site)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said) and len(done.stderr.splitlines()) == 1


def test_a_site_that_is_not_known_hides_no_other_fault(tmp_path):
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, site="claridon", project="../x", account="a b")
    assert done.returncode == 1
    assert re.findall(r"^  (\w+) ", done.stderr, re.MULTILINE) == ["project", "site", "account"]
    assert list(tmp_path.glob("*")) == [] and not (tmp_path.parent / "x").exists()


def test_a_replay_is_refused_too(tmp_path):
    """A replay asks nothing, so the last question's check does not run: the hook does."""
    bake(tmp_path, "--config-file", "/dev/null", site="slurm")
    replay = next((tmp_path / ".cookiecutter_replay").glob("*.json"))
    context = json.loads(replay.read_text())
    context["cookiecutter"] |= {"project": "again", "nodes": '0"; touch hacked; "'}
    replay.write_text(json.dumps(context))
    done = cookiecutter("--replay-file", replay, REPOSITORY, home=tmp_path)
    assert done.returncode == 1
    assert "nodes '0\"; touch hacked; \"' is not a whole number" in done.stderr
    assert not (tmp_path / "again").exists()
    assert not list(tmp_path.rglob("hacked"))


def test_an_unconfirmed_limit_warns_and_writes(tmp_path):
    answers = {"site": "horeka", "partition": "gpu-h200-8", "nodes": "2"}
    done = cookiecutter("--no-input", REPOSITORY, home=tmp_path, **answers)
    assert done.returncode == 0
    limit = "partition gpu-h200-8 allows at most 1 (the site file marks this limit as unconfirmed)"
    assert f"Warning: nodes 2: {limit}" in done.stderr
    assert (tmp_path / "demo").exists()


GOOD_SITE = (REPOSITORY / "sites/slurm.yaml").read_text()
GOOD_SITE = GOOD_SITE.replace("  cpu_only: true\n", "  cpu_only: true\n  whole: true\n", 1)
GOOD_SITE += 'directives:\n  - {option: "--exclusive", why: "whole nodes"}\n'
# What is replaced in a good file, and what the message must say: the key, the rule, the value.
REPLACED = [
    ("--exclusive", "--segment=4", ["directives[0].option: --segment is written from node.segment; say it there"]),
    ("--exclusive", "--container-image=x", ["directives[0].option: --container-image belongs to a plug-in of srun"]),
    ('option: "--exclusive"', "option: exclusive", ["expected an option --NAME=VALUE without spaces", "'exclusive'"]),
    ('time_limit: "00:30:00"', "time_limit: 12:30:00", ["defaults.time_limit: expected a time", "without quotes"]),
    ('checked: "2026-11-21"', "checked: 2026-11-21", ["checked: expected a day in quotes"]),
    ('checked: "2026-11-21"', "checked: 2026-13-41", ["not readable as YAML: month must be in 1..12"]),
    ("nodes: 2", "nodes: two", ["defaults.nodes: expected a whole number of at least 1, got 'two'"]),
    ("kind: slurm", "kind: runai", ["runtimes: 'apptainer' does not go with kind: runai; choose pod"]),
    ("kind: slurm", "kind: slurm\nkind: local", [", line 5: not readable as YAML: the key kind is there twice"]),
    ("kind: slurm", "kind: !!python/object/apply:os.system [true]", ["not readable as YAML"]),
    ("kind: slurm", "kind: runai\ntorchrun: [{option: --a, why: b}]", ["torchrun: only a site with kind: slurm"]),
    ("kind: slurm", "kind: pbs", ["kind: expected one of local, slurm, runai, got 'pbs'"]),
    ("runtimes: [none, venv,", "runtimes: [docker,", ["runtimes[0]: expected one of none, venv"]),
    ("runtimes: [none, venv, apptainer, pyxis, enroot]", "runtimes: []", ["runtimes: expected at least one"]),
    ("commands:", "comands:", ["comands: unknown key (did you mean commands"]),
    ("  queues: sinfo -s\n", "", ["commands.queues: missing"]),
    ("title: your", 'title: "two\\nlines" #', ["title: expected one line", "fold long text"]),
    ("whole: true", 'whole: "yes"', ["node.whole: expected true or false, got 'yes'"]),
    ("  whole: true", "  gpus: 8\n  cores: 4", ["node.cores: 4 for 8 GPUs; each needs one at least"]),
    ("directives:", 'directives: "--x"\nx:', ["directives: expected a list"]),
    ("defaults:", "partitions: {cpu: {}}\ndefaults:\n  partition: gpu", ["defaults.partition: 'gpu' is not among cpu"]),
    (
        "defaults:\n  nodes: 2",
        "x: 1\npartitions: {p: {max_nodes: 8}}\ndefaults:\n  partition: p\n  nodes: 9",
        ["defaults: nodes 9: partition p allows at most 8", "x: unknown key"],
    ),
    (
        "kind: slurm",
        "kind: runai\npods: {volumes: [{claim: '{lab}-x', path: /scratch}]}",
        ["pods.volumes[0]: account.like has no group 'lab'"],
    ),
]
# What is added to it.
ADDED = [
    ("modules: [$(touch x)]", "modules[0]: expected the name of a module, of letters, digits and ./:@%+=-, got '$("),
    ("srun: [{option: '--a=`id`', why: x}]", "srun[0].option: expected an option --NAME=VALUE of letters, digits and"),
    ("containers: {apptainer: {options: [-$x]}}", "containers.apptainer.options[0]: expected an option without"),
    ("environment: [{name: A, value: 'x\"', why: y}]", "environment[0].value: expected text"),
    ("pods: {run_as_user: true}", "pods: only a site with kind: runai has them"),
    ("notes: [a, {text: b, runtimes: [venv, edf]}]", "notes[1].runtimes: there is no 'edf' in runtimes; add it there"),
    ("torchrun: [{option: --a, why: b}]", "torchrun: these options are for a process on each GPU of a node; say how"),
    ("containers: {pyxis: {image: 'docker://a/b:1'}}", "containers.pyxis.image: 'docker://a/b:1' is of the wrong kind"),
    (
        "containers: {apptainer: {entry_environment: [{name: A, value: '1', why: b}]}}",
        "containers.apptainer.entry_environment: without entry nothing overwrites variables; use environment",
    ),
    ("containers: {pyxis: {flags: []}}", "containers.pyxis.flags: unknown key"),
    ("containers: {edf: {}}", "containers.edf: there is no such runtime in runtimes"),
    ("containers: {pyxis: {wheelhouse: wheels}}", "containers.pyxis.wheelhouse: only a virtual environment is built"),
    ("containers: {none: {torch: {version: 2.9.1, why: x}}}", "containers.none.torch: only a virtual environment has"),
    (
        "containers: {venv: {wheelhouse: wheels, torch: {version: 2.9.1, why: x}}}",
        "containers.venv.torch: a wheelhouse has versions of its own; leave out one of both",
    ),
    ("containers: {venv: {on_login_node: true}}", "containers.venv.on_login_node: pip runs there for venv, and needs"),
    ("containers: {enroot: {unset: [{name: A, why: x}]}}", "containers.enroot.unset: only apptainer takes over the"),
    ("partitions: {a: {unnamed: true}}", "partition a: unnamed, but not the default: no job could get it"),
    ("partitions: {a: {}}\nproduction: {partition: b}", "production.partition: 'b' is not among a"),
    ("partitions: {a: {node: {gpus: 2, gpu_option: ''}}}", "partitions.a.node.gpu_option: empty, so a node must have"),
    ("partitions: {p: {node: {gpus: 8, cores: 4}}}", "partitions.p.node.cores: 4 for 8 GPUs"),
    (
        "partitions: {gpu: {default: true, tiers: [{max_nodes: 4, max_time: '00:20:00'}]}}",
        "defaults: time_limit 00:30:00: partition gpu allows jobs of up to 4 nodes at most 00:20:00",
    ),
    ("qos: {q: {partitions: [x]}}\npartitions: {p: {}}", "'x' is not among p"),
    ("base: ../fir", "base: '../fir' is not among alliance"),
    ("detect: {host: '('}", "detect.host: expected a regular expression"),
    ("srun: [{option: --cpu-bind=none, why: x, tasks: rank}]", "srun: tasks: rank is for one rank on each GPU of a"),
    ("ports: {first: 2000, last: 1500}", "ports: 2000 comes after 1500"),
]
BROKEN_SITES = REPLACED + [("kind: slurm", f"kind: slurm\n{lines}", [words]) for lines, words in ADDED]


@pytest.mark.parametrize(("old", "new", "expected"), BROKEN_SITES, ids=lambda value: str(value)[:40])
def test_a_broken_site_file_is_told_by_file_key_and_value(old, new, expected, tmp_path):
    assert old in GOOD_SITE
    path = tmp_path / "own.yaml"
    path.write_text(GOOD_SITE.replace(old, new, 1))
    with pytest.raises(SiteError) as refused:
        site_facts(str(path))
    message = refused.value.message
    assert str(path) in message
    assert all(words in message for words in expected), message
