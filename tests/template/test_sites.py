"""Every Slurm site: a scheduler declared like it takes what the template writes, and one over each limit both refuse.

The scheduler is real (see site_controller.py), and asked with `sbatch --test-only`. Each runtime, number of GPUs,
partition and QoS is written (in the drills each combination with each launcher), as far as a scheduler sees it: the
scripts in slurm/. That whole projects come out of the same combinations is in test_bake.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections import Counter, defaultdict
from functools import cache
from itertools import count, product

import baking
import pytest
from baking import REPOSITORY, TEMPLATE, combinations
from cookiecutter.main import cookiecutter as write
from site_controller import Controllers, existing_account, missing

from cluster_options import answers as answers_module
from cluster_options import first_job
from cluster_options import sites as sites_module
from cluster_options.answers import problems, suggest, warnings
from cluster_options.checks import minutes_of, node_of, walltime
from cluster_options.contradictions import PLUGIN_OPTIONS
from cluster_options.questions import QUESTION_NAMES
from cluster_options.sbatch import real_size
from cluster_options.sites import site_facts, site_names
from cluster_options.software import image_source, interactive_line

# A site that nobody has: every key that a scheduler can see, limits in every place.
MADE_UP = """\
title: made up
kind: slurm
docs: https://example.org
checked: "2026-11-21"
contact: nobody
account: {like: "[a-z]{3}\\\\d@gpu", example: "abc1@gpu"}
node: {gpus: 4, cores: 36, memory: "180G", gpu_option: "--gres=gpu:a100:", gpu_vendor: nvidia, cpu_only: true}
required: [account, partition, qos]
expedited_requeue: true
partitions:
  main:
    max_nodes: 200
    tiers: [{max_nodes: 20, max_time: "02:00:00"}, {max_nodes: 200, max_time: "12:00:00"}]
  large: {min_nodes: 64, max_nodes: 256, max_gpus: 600}
  quick: {max_node_minutes: 90, max_time: "01:30:00", max_nodes: 4}
  fat: {max_gpus: 13, node: {gpus: 8, cores: 64, memory: "900G", gpu_option: "--gres=gpu:h200:", whole: true}}
  cpu: {max_nodes: 16, node: {gpus: 0, cores: 128, memory: "0", cpu_only: true, segment: 1}}
qos:
  normal: {max_time: "1-00:00:00", default: true}
  dev: {max_nodes: 2, max_time: "00:20:00", partitions: [main, fat]}
  big: {min_nodes: 100, max_nodes: 220, confirmed: false, partitions: [main, large]}
  steps: {tiers: [{max_nodes: 3, max_time: "00:45:00"}, {max_nodes: 9, max_time: "01:45:00"}]}
  few: {max_gpus: 5, max_node_minutes: 75, confirmed: false}
directives:
  - {option: "--constraint=rack1&ssd", why: "fast disks"}
  - {option: "--hint=nomultithread", why: "cores"}
  - {option: "--licenses=scratch:1", why: "the file system"}
  - {option: "--switches=1", why: "near each other"}
srun: [{option: "--cpu-bind=none", why: "all cores", tasks: node}]
runtimes: [venv, apptainer]
launchers: [torchrun, mpirun]
interactive: {partition: quick, qos: normal, time_limit: "00:15:00"}
defaults: {partition: main, qos: dev, nodes: 2, gpus_per_node: 4, time_limit: "00:10:00"}
ports: {first: 10001, last: 20000}
commands: {accounts: id -Gn, queues: sinfo}
"""
SITES = [name for name in site_names() if site_facts(name)["kind"] == "slurm"]
SITES.append("made-up")
# In which words Slurm refuses what is beyond a limit of a partition and of a QoS.
NODE_COUNT, POLICY = "Node count specification invalid", "Job violates accounting/QOS policy"
UNAVAILABLE = "Requested node configuration is not available"
SAID = {
    ("partition", "max_nodes"): NODE_COUNT,
    ("partition", "min_nodes"): NODE_COUNT,
    ("partition", "max_time"): "Requested time limit is invalid",
    ("qos", "max_nodes"): "QOSMaxNodePerJobLimit",
    ("qos", "min_nodes"): "QOSMinNode",
    ("qos", "max_time"): "QOSMaxWallDurationPerJobLimit",
}
SAID |= {(question, "max_gpus"): "QOSMaxGRESPerJob" for question in ("partition", "qos")}
SAID |= {(question, "max_node_minutes"): "QOSMaxNodeMinutesPerJob" for question in ("partition", "qos")}
SAID |= {(question, "tiers"): r"up to \d+ nodes take at most" for question in ("partition", "qos")}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "made-up.yaml"
    path.write_text(MADE_UP)
    return path


@pytest.fixture
def site(request, made_up, monkeypatch):
    """What is answered to the question `site`; for the time of a test there is no other."""
    site = str(made_up) if request.param == "made-up" else request.param
    for module in (answers_module, baking, sites_module):
        monkeypatch.setattr(module, "site_names", lambda: [site])
    return site


@pytest.fixture(scope="module")
def controllers(request, made_up, tmp_path_factory):
    """A controller for each site that tests of this run ask for."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)  # in CI, a run without it would prove nothing
    asked = {item.callspec.params["site"] for item in request.session.items if "controller" in item.fixturenames}
    with Controllers(tmp_path_factory.mktemp("sites")) as controllers:
        for name in sorted(asked, key=SITES.index):
            name = str(made_up) if name == "made-up" else name  # noqa: PLW2901
            controllers.announce(name, site_facts(name))
        yield controllers


@pytest.fixture
def controller(controllers, site):
    """The site's own."""
    return controllers[site]


every_site = pytest.mark.parametrize("site", SITES, indirect=True)


# ---- what is written is accepted -------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["once", pytest.param("all", marks=pytest.mark.drill)])
@every_site
def test_what_is_written_is_accepted(site, controller, scripts, table, which):
    """Each script, and the interactive shell of slurm/interactive.sh and of the README.

    Of each combination in the drill; else each runtime, number of GPUs, partition and QoS occurs once. A launcher
    leaves no trace in the options of Slurm.
    """
    facts = site_facts(site)
    seen = {}  # what was asked before: headers repeat
    count, refused = Counter(), []

    def accepted(words, script=None, taken=()):
        key = tuple(words)
        count["scripts"] += 1
        if key not in seen:
            seen[key] = controller.test_only(*([*taken, script] if script else [*words, "--wrap=true"]))
            if seen[key]:
                refused.append(f"{script.name if script else 'interactive'} {' '.join(words)}\n    {seen[key].strip()}")

    for answers in every_choice(site, facts) if which == "all" else each_value_once(site, facts):
        project = scripts(**answers)
        for script in scripts_of(project):
            header = re.findall(r"^#SBATCH (\S+)", script.read_text(), re.MULTILINE)
            if not header or (script.name == "build_container.sh" and not image_source(answers)):
                continue
            taken = options_of_jobs(project, header) if script.name.startswith("build_") else []
            assert not any(option.startswith(PLUGIN_OPTIONS) for option in header), script
            accepted([*header, *taken], script, taken)
        for options in interactive_options(project, answers):
            assert not any(option.startswith(PLUGIN_OPTIONS) for option in options), options
            accepted(options)
        count["baked"] += 1
    table[site] |= Counter(count, headers=len(seen))  # the larger numbers: of the drill, where both are run
    assert count["baked"] and not refused, "\n".join(refused)


def scripts_of(project):
    """The scripts that Slurm may see."""
    return sorted(path for path in (project / "slurm").iterdir() if path.suffix in (".sh", ".sbatch"))


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """Writes the scripts in slurm/ of a project, from the template without its other files, which is faster."""
    return writer(tmp_path_factory, "*")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Writes slurm/submit_multinode.sh alone, once for the same answers."""
    write_script = writer(tmp_path_factory, "submit_multinode.sh")

    @cache
    def job(**answers):
        return write_script(**answers) / "slurm/submit_multinode.sh"

    return job


def writer(tmp_path_factory, pattern):
    """Return a function that writes the scripts in slurm/ whose names fit the pattern, each time into a new folder."""
    template, out = tmp_path_factory.mktemp("template"), tmp_path_factory.mktemp("projects")
    shutil.copy(REPOSITORY / "cookiecutter.json", template)
    (template / TEMPLATE.name / "slurm").mkdir(parents=True)
    for path in (TEMPLATE / "slurm").glob(pattern):
        if path.is_file() and path.name != "README.md":
            shutil.copy(path, template / TEMPLATE.name / "slurm")
    shutil.copytree(REPOSITORY / "templates", template / "templates")  # which these scripts include
    (out / "config").write_text(f"replay_dir: {out}/replay\n")
    number = count()

    def write_scripts(**answers):
        options = {"no_input": True, "accept_hooks": False, "config_file": str(out / "config")}
        folder = out / str(next(number))
        write(str(template), extra_context=answers, output_dir=folder, **options)
        return folder / answers["project"]

    return write_scripts


def options_of_jobs(project, header):
    """Return what a build script takes from slurm/submit_multinode.sh: submit_build of slurm/commands.sh."""
    names = "account" if any(re.match("--(partition|qos)=", option) for option in header) else "account|partition|qos"
    return re.findall(
        rf"^#SBATCH (--(?:{names})=\S+)", (project / "slurm/submit_multinode.sh").read_text(), re.MULTILINE
    )


def interactive_options(project, answers):
    """Return the options of salloc in slurm/interactive.sh, which a stand-in prints, and in the line of the README."""
    for name in ("env.sh", "launch/extras.sh", "launch/software.sh", "salloc"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("set_up_software() { :; }\n")
    (project / "salloc").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (project / "salloc").chmod(0o755)
    environment = {"PATH": f"{project}:{os.environ['PATH']}"}
    command = ["bash", project / "slurm/interactive.sh"]
    listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    line = interactive_line(answers).partition("salloc ")[2].partition(" srun ")[0]
    return listed[: listed.index("srun")], shlex.split(line)


@every_site
def test_the_first_job_is_small_and_the_real_size_is_accepted(site, controller, job):
    """What Enter suggests has two nodes at most, and one GPU of each where parts of nodes are lent.

    The options that README.md names beside it replace lines of that job's header, and Slurm takes what comes out.
    """
    facts, answers = site_facts(site), {**first_job.suggested(site), "account": existing_account(site_facts(site))}
    assert problems(answers) == [] and int(answers["nodes"]) <= 2
    script = job(**answers)
    header = re.findall(r"^#SBATCH (\S+)", script.read_text(), re.MULTILINE)
    whole = node_of(facts, answers["partition"])["whole"]
    assert "--exclusive" not in header and ("--mem=0" not in header or whole)
    assert controller.test_only(*facts["check"].split(), script) == ""
    words = real_size(answers)
    names = {word.split("=")[0]: word for word in words}
    if "MIG" in node_of(facts, answers["partition"])["gpu_name"]:  # NCCL joins no slices
        assert (answers["nodes"], answers["gpus_per_node"]) == ("1", "1")
    if any(word.startswith(("--gres", "--gpus-per-node")) for word in words):  # then cores and memory follow
        for option in ("--cpus-per-task", "--mem"):
            assert option in names or not any(line.startswith(f"{option}=") for line in header), words
    if names.get("--qos") == "--qos=NAME":
        words = [word for word in words if word != "--qos=NAME"] + [f"--qos={long_qos(site, facts, answers)}"]
    assert controller.test_only(*words, script) == "", words


def long_qos(site, facts, answers):
    """Return a QoS that takes jobs of eight hours, where README.md leaves the choice to the user."""
    longer = {"nodes": "4", "time_limit": "08:00:00", "partition": answers["partition"]}
    return next(name for name in facts["qos"] if not told({**answers, **longer, "qos": name}))


# ---- what is beyond a limit is refused -------------------------------------------------------------------------------


@every_site
def test_one_over_each_limit_is_refused(site, controller, job, table):
    """By the template and by the scheduler; exactly at the limit both accept."""
    facts = site_facts(site)
    for question, section in (("partition", "partitions"), ("qos", "qos")):
        for name, limits in facts[section].items():
            node = node_of(facts, name if question == "partition" else "")
            where = f"{question} {name}"
            for key, at, over in limit_cases(limits, node["gpus"] or 0):
                case = f"{where}: {key}, {at}, {over}"
                queue = reachable(site, facts, {question: name}, at, over, where)
                assert queue, f"{case}: not accepted at the limit, or other limits are always narrower"
                assert told({**queue, **over}), case
                if not limits["confirmed"]:  # what nobody could confirm warns, and no more
                    assert problems({**queue, **over}) == [], case
                script = job(**queue)
                assert controller.test_only(*changed(facts, queue, at), script) == "", case
                said = controller.test_only(*changed(facts, queue, over), script)
                assert re.search(SAID[question, key], said), f"{case}: {said!r}"
                table[site]["refused"] += 1


@every_site
def test_one_more_gpu_or_core_than_a_node_has_is_refused(site, controller, job, table):
    facts = site_facts(site)
    for partition in facts["partitions"] or [""]:
        node = node_of(facts, partition)
        queue = reachable(site, facts, {"partition": partition}, {"gpus_per_node": str(node["gpus"] or 0)})
        limited = [limits for limits in (*facts["partitions"].values(), *facts["qos"].values()) if limits["max_gpus"]]
        assert queue or limited, partition
        if not queue:
            continue
        script = job(**queue)
        if node["gpus"] is not None:
            at, over = ({"gpus_per_node": str(count)} for count in (node["gpus"], node["gpus"] + 1))
            assert controller.test_only(*changed(facts, queue, at), script) == "", partition
            found = problems({**queue, **over})
            assert any(fault.startswith("gpus_per_node") for fault in found), found
            if node["gpu_option"]:  # else Slurm is not asked for GPUs
                assert controller.test_only(*changed(facts, queue, over), script), partition
            table[site]["refused"] += 1
        if node["cores"]:
            assert controller.test_only(f"--cpus-per-task={node['cores']}", script) == "", partition
            said = controller.test_only(f"--cpus-per-task={node['cores'] + 1}", script)
            assert UNAVAILABLE in said, partition
            table[site]["cores"] += 1


@every_site
def test_names_that_are_wrong_or_missing_are_refused(site, controller, job, table, tmp_path):
    facts = site_facts(site)
    queue = next(every_choice(site, facts))
    script = job(**queue)
    assert controller.test_only(script) == ""
    wrong = {
        "account": (facts["account"] or facts["accounts"], "Invalid account or account/partition combination"),
        "partition": (facts["partitions"], "Invalid partition name specified"),
        "qos": (facts["qos"], "Invalid qos specification"),
    }
    for question, (known, words) in wrong.items():
        assert words in controller.test_only(f"--{question}=no.such", script)
        if known:  # where the file does not say which there are, any name is taken as it is
            found = problems({**queue, question: "no.such"})
            assert any(fault.startswith(f"{question} 'no.such'") for fault in found), found
            table[site]["refused"] += 1
        if question in facts["required"]:
            found = problems({**queue, question: ""})
            assert any(fault.startswith(f"{question} is empty") for fault in found), found
            without = tmp_path / f"without-{question}.sh"
            without.write_text(re.sub(rf"^#SBATCH --{question}=.*\n", "", script.read_text(), flags=re.MULTILINE))
            assert f"{question} is required" in controller.test_only(without)
            table[site]["refused"] += 1
    for qos, limits in facts["qos"].items():
        for partition in facts["partitions"].keys() - (limits["partitions"] or facts["partitions"].keys()):
            queue = reachable(site, facts, {"partition": partition})
            found = problems({**queue, "qos": qos})
            assert any(fault.startswith(f"qos {qos!r} does not go with") for fault in found), found
            said = controller.test_only(f"--qos={qos}", job(**queue))
            assert "Invalid qos specification" in said, (partition, qos, said)
            table[site]["refused"] += 1


def told(answers):
    """Return all that the template has against answers, refusals and warnings."""
    return problems(answers) + warnings(answers)


def changed(facts, before, after):
    """Return the options that make a job of the answers `before` one of the answers `after`."""
    option = node_of(facts, before["partition"])["gpu_option"]
    options = {"nodes": "--nodes=", "time_limit": "--time=", "gpus_per_node": option}
    return [f"{options[question]}{value}" for question, value in after.items() if options[question]]


def limit_cases(limits, per_node):
    """Yield for each limit its key, answers exactly at it, and answers one beyond it; per_node: GPUs of a node."""
    clock, gpus = walltime, str(min(per_node, 1))
    brief = {"time_limit": "00:01:00", "gpus_per_node": gpus}
    nodes = [limits["max_nodes"] or 10**4, *(tier["max_nodes"] for tier in limits["tiers"])]
    least = limits["min_nodes"] or 1
    if limits["max_nodes"]:
        most = limits["max_nodes"]
        yield "max_nodes", {**brief, "nodes": str(most)}, {**brief, "nodes": str(most + 1)}
    if least > 1:
        yield "min_nodes", {**brief, "nodes": str(least)}, {**brief, "nodes": str(least - 1)}
    if limits["max_time"]:
        longest = int(minutes_of(limits["max_time"]))
        # the most nodes that a step says something about have the longest time; else the fewest nodes
        small = {"gpus_per_node": gpus, "nodes": str(max(least, *nodes[1:]) if nodes[1:] else least)}
        yield "max_time", {**small, "time_limit": clock(longest)}, {**small, "time_limit": clock(longest + 1)}
    for tier in limits["tiers"]:
        small = {"gpus_per_node": gpus, "nodes": str(tier["max_nodes"])}
        longest = int(minutes_of(tier["max_time"]))
        yield "tiers", {**small, "time_limit": clock(longest)}, {**small, "time_limit": clock(longest + 1)}
    if limits["max_node_minutes"]:
        product_ = limits["max_node_minutes"]
        for count in range(min(nodes), 0, -1):
            if count <= (limits["max_gpus"] or 64) and product_ % count == 0:
                small, longest = {"gpus_per_node": gpus, "nodes": str(count)}, product_ // count
                one_more = {**small, "time_limit": clock(longest + 1)}
                yield "max_node_minutes", {**small, "time_limit": clock(longest)}, one_more
                break
    if limits["max_gpus"]:
        sizes = [(each * count, each, count) for each in range(1, per_node + 1) for count in range(least, nodes[0] + 1)]
        at = max(size for size in sizes if size[0] <= limits["max_gpus"])
        over = min(size for size in sizes if size[0] > limits["max_gpus"])
        yield "max_gpus", *({**brief, "gpus_per_node": str(each), "nodes": str(count)} for _, each, count in (at, over))


def reachable(site, facts, names, at=None, over=None, where=""):
    """Return acceptable answers with these names of partition or QoS, to which `at` may be added; None if none.

    Where `over` is added, it must not be too much for other limits than those of `where`.
    """
    for queue in queues(site, facts):
        if names.items() <= queue.items() and not told({**queue, **(at or {})}):
            found = told({**queue, **over}) if over else []
            if all(where in fault for fault in found if not fault.startswith("if a limit has changed")):
                return queue
    return None


# ---- answers ---------------------------------------------------------------------------------------------------------


def queues(site, facts):
    """Yield answers for each allowed choice of partition and QoS, of a size that each of them takes."""
    account = existing_account(facts) if "account" in facts["required"] or facts["account"] else ""
    suggested = {name: suggest(site, name) for name in QUESTION_NAMES[2:]}
    suggested["image"] = suggest(site, "image", suggested["runtime"])
    names = [
        list(dict.fromkeys([facts["defaults"].get(question, ""), *facts[section], ""]))
        for question, section in (("partition", "partitions"), ("qos", "qos"))
    ]
    for partition, qos in product(*names):
        answers = {**suggested, "project": "demo", "site": site, "account": account, "partition": partition, "qos": qos}
        answers = fitted(facts, answers)
        if not any(fault.startswith(("partition", "qos")) for fault in problems(answers)):
            yield answers


def fitted(facts, answers):
    """Return the answers with nodes, GPUs and walltime cut down, or raised, to what partition and QoS take."""
    found = [facts["partitions"].get(answers["partition"]), facts["qos"].get(answers["qos"])]
    found = [limits for limits in found if limits]

    def least(value, key):
        return min([value, *(limits[key] for limits in found if limits[key])])

    nodes = max([int(answers["nodes"]), *(limits["min_nodes"] or 1 for limits in found)])
    nodes = least(nodes, "max_nodes")
    gpus = int(answers["gpus_per_node"])
    most = node_of(facts, answers["partition"])["gpus"]
    gpus = gpus if most is None else min(gpus, most)
    gpus = least(gpus * nodes, "max_gpus") // nodes
    times = [minutes_of(answers["time_limit"])]
    for limits in found:
        times += [minutes_of(limits["max_time"])] if limits["max_time"] else []
        times += [minutes_of(tier["max_time"]) for tier in limits["tiers"] if nodes <= tier["max_nodes"]]
        times += [limits["max_node_minutes"] // nodes] if limits["max_node_minutes"] else []
    time_limit = walltime(int(min(times)))
    return {**answers, "nodes": str(nodes), "gpus_per_node": str(gpus), "time_limit": time_limit}


def each_value_once(site, facts):
    """Yield some of every_choice() with the suggested launcher: until each other answer has occurred."""
    seen = set()
    for answers in every_choice(site, facts, [suggest(site, "launcher")]):
        values = {(name, answers[name]) for name in ("runtime", "gpus_per_node", "partition", "qos")}
        if not values <= seen:
            seen |= values
            yield answers


def every_choice(site, facts, launchers=None):
    """Yield the answers of every allowed combination of runtime, launcher, GPUs, partition and QoS."""
    seen = set()
    allowed = [answers for answers in combinations() if answers["launcher"] in (launchers or facts["launchers"])]
    for combination, queue in product(allowed, list(queues(site, facts))):
        image = suggest(site, "image", combination["runtime"])
        answers = fitted(facts, {**queue, **combination, "account": queue["account"], "image": image})
        if tuple(answers.values()) in seen:
            continue
        seen.add(tuple(answers.values()))
        assert problems(answers) == warnings(answers) == [], answers
        yield answers


# ---- the sums --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(request):
    """Counts, by site; their sums are printed when the last test is done."""
    rows = defaultdict(Counter)
    yield rows
    counts = ("baked", "scripts", "headers", "refused", "cores")
    sums = ", ".join(f"{key} {sum(count[key] for count in rows.values())}" for key in counts)
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\nof {len(rows)} sites Slurm accepted scripts with headers, and refused answers and cores: {sums}")
