"""Options of sbatch that follow from the answers, each with its reason."""

from __future__ import annotations

import re

from .answers import all_faults, suggest
from .checks import check_gpus, check_nodes, check_queue, chosen_queue, limits_of, minutes_of, node_of, within_limits
from .defaults import LIMIT_DEFAULTS
from .sites import site_facts


def node_facts(answers) -> dict:
    """Return what is known of the nodes that the answers ask for."""
    facts = site_facts(answers["site"])
    return node_of(facts, chosen_queue("partition", answers, facts), chosen_queue("qos", answers, facts))


def resources(answers, builds=False) -> list[tuple[str, str]]:
    """Return the options of sbatch that say what a job takes and from which queue, each with its reason.

    builds: where it takes --exclusive to have a whole node, a job that builds something leaves the others their share.
    """
    facts, node, cores = site_facts(answers["site"]), node_facts(answers), cores_per_node(answers)
    gpus, partition, qos = int(answers["gpus_per_node"]), answers["partition"], answers["qos"]
    shared = builds and has_whole_nodes(facts)
    memory = "" if shared else memory_option(node, gpus)
    about_partition = queue_reason(facts["partitions"].get(partition, LIMIT_DEFAULTS), "which nodes")
    about_qos = queue_reason(facts["qos"].get(qos, LIMIT_DEFAULTS), "which limits and priority")
    share = "all cores of a node, as Slurm counts" if cores == node["cores"] else "the cores that come with these GPUs"
    if node["cores"] is None and gpus:
        share = f"cores of each node, {node['cores_per_gpu']} for each GPU; raise it if your nodes have more"
    elif node["cores"] is None:
        share = "cores of each node; raise it if your nodes have more"
    options = [
        (f"{node['gpu_option']}{gpus}", "GPUs of each node", gpus and node["gpu_option"]),
        (f"--cpus-per-task={cores}", share if node["cores"] is None else f"{share}; without it, one", cores),
        (f"--mem={memory}", "of each node" + "; 0 means all" * (memory == "0"), memory),
        (f"--segment={segment_of(answers)}", "nodes that lie in one block of the network", segment_of(answers)),
        *((one["option"], one["why"], not shared or one["option"] != "--exclusive") for one in facts["directives"]),
        (f"--time={answers['time_limit']}", "walltime; a shorter job starts sooner", True),
        (f"--partition={partition}", about_partition, partition),
        (f"--qos={qos}", about_qos, qos),
        (f"--account={answers['account']}", "who is charged", answers["account"]),
    ]
    return [(option, why) for option, why, wanted in options if wanted]


def queue_reason(limits, otherwise: str) -> str:
    """Return what stands beside the option that names a queue: what it is for, and some of its limits."""
    known = limits["max_time"] and limits["confirmed"] and not limits["tiers"]
    longest = f"walltime up to {limits['max_time']}" if known else ""
    if limits["max_node_minutes"]:
        longest = f"nodes x walltime up to {limits['max_node_minutes']} minutes"
    return "; ".join(filter(None, [limits["about"] or otherwise, jobs_of(limits), longest]))


def jobs_of(limits) -> str:
    """Return how many jobs of a user a queue takes; '' if that is not known."""
    most = limits["max_jobs"]
    return f"{most} job{'s' * (most > 1)} per user, waiting or running" if most else ""


def job_limit(answers) -> dict:
    """Return which answered queue limits the jobs of a user: its question, name and max_jobs; {} if none does."""
    facts, found = site_facts(answers["site"]), []
    for question, section in (("partition", "partitions"), ("qos", "qos")):
        most = facts[section].get(answers[question], LIMIT_DEFAULTS)["max_jobs"]
        if most:
            found.append({"question": question, "name": answers[question], "max_jobs": most})
    return min(found, key=lambda limit: limit["max_jobs"], default={})


def cores_per_node(answers) -> int | None:
    """Return the cores a job asks for on each node: all of a whole node, else the GPUs' share; None if unknown."""
    node, gpus = node_facts(answers), int(answers["gpus_per_node"])
    if node["cores"] is None and node["cores_per_gpu"]:
        return node["cores_per_gpu"] * max(gpus, 1)
    return node["cores"] and share_of(node["cores"], node, gpus)


def segment_of(answers) -> int | None:
    """Return the value of --segment; None if the job is smaller than a segment, or the site has none."""
    segment = node_facts(answers)["segment"]
    return segment if segment and int(answers["nodes"]) >= segment else None


def requeue_option(answers) -> str:
    """Return the option of sbatch with which Slurm may requeue a job."""
    return "--requeue=expedite" if site_facts(answers["site"])["expedited_requeue"] else "--requeue"


def memory_option(node, gpus) -> str:
    """Return the value of --mem: of a shared node the GPUs' part of its memory, in MB so that it is a whole number."""
    amount, unit = re.fullmatch(r"(\d*)(.*)", node["memory"]).groups()
    megabytes = int(amount or 0) * {"T": 1024**2, "G": 1024}.get(unit[:1], 1)
    share = share_of(megabytes, node, gpus)
    return node["memory"] if share == megabytes or unit[:1] == "K" else f"{share}M"


def share_of(amount, node, gpus):
    """Return the part of a node's cores or memory that comes with so many of its GPUs: all of a whole node."""
    return amount if node["whole"] or not gpus or not node["gpus"] else amount * gpus // node["gpus"]


def warning(answers) -> int:
    """Return how many seconds before its walltime is over a job is warned: a tenth of it, 30 s to 5 min."""
    return min(300, max(30, int((minutes_of(answers["time_limit"]) or 0) * 6)))


def pad(option: str) -> str:
    """Return an #SBATCH option filled up so that the reasons beside the options stand in one column."""
    return option.ljust(30)


# ---- other jobs of a project -----------------------------------------------------------------------------------------


def interactive_answers(answers) -> dict:
    """Return the answers for a shell: one node, half an hour or what the site has, in the queue it has for that."""
    queue = dict(site_facts(answers["site"])["interactive"])
    return one_node(answers, queue.pop("time_limit", "00:30:00"), queue, int(answers["gpus_per_node"]))


def longest_shell(answers) -> str:
    """Return four hours, or less if the queue for shells and notebooks allows less: the walltime of an example."""
    return within_limits(interactive_answers(answers), site_facts(answers["site"]), "04:00:00")


def build_answers(answers, longest: str) -> dict:
    """Return the answers for a job that builds something: one node, `longest` at most, one GPU where nodes are shared.

    It is no test: it goes where jobs go that name no queue, if the answered queue is one for tests.
    """
    facts, gpus = site_facts(answers["site"]), int(answers["gpus_per_node"])
    queue = usual_queue(answers, facts) if for_tests(facts, answers) else {}
    whole = node_facts(answers)["whole"] and not has_whole_nodes(facts)
    return one_node(answers, longest, queue, gpus if whole else min(gpus, 1))


def one_node(answers, longest, queue, gpus):
    """Return the answers for one node, in the first that takes it: the given, answered, suggested or default queue."""
    facts = site_facts(answers["site"])
    suggested = {question: suggest(answers["site"], question) for question in ("partition", "qos")}
    for names in (queue, {}, suggested, usual_queue(answers, facts)):
        job = {**answers, "nodes": "1", **names}
        known = [node_facts(job)["gpus"], *(limits["max_gpus"] for _, _, limits in limits_of(job, facts))]
        job["gpus_per_node"] = str(min([gpus, *(count for count in known if count is not None)]))
        job["time_limit"] = within_limits(job, facts, longest)
        faults = [fault for check in (check_queue("qos"), check_nodes, check_gpus) for fault in check(job, facts)]
        if not faults and (job["gpus_per_node"] != "0" or gpus == 0):
            break
    return job


def usual_queue(answers, facts):
    """Return where jobs go that name no queue, as far as that is known and a job may name it."""
    found = {}
    for question, section in (("partition", "partitions"), ("qos", "qos")):
        name = chosen_queue(question, {**answers, question: ""}, facts)
        if name and not facts[section].get(name, LIMIT_DEFAULTS)["unnamed"]:
            found[question] = name
    return found


def has_whole_nodes(facts) -> bool:
    """Return whether every job asks for whole nodes."""
    return any(directive["option"] == "--exclusive" for directive in facts["directives"])


def goes_to_test_queue(answers) -> bool:
    """Whether the job goes to a queue for tests, in which a long one has no place."""
    return for_tests(site_facts(answers["site"]), answers)


def for_tests(facts, answers) -> bool:
    """Whether the chosen queue is one for tests, which takes some consideration."""
    chosen = {**facts["partitions"], **facts["qos"]}
    names = [chosen_queue(question, answers, facts) for question in ("partition", "qos")]
    return any(is_for_tests(name, chosen[name]) for name in names if name in chosen)


def test_queue(answers) -> dict[str, str]:
    """Return the chosen queue for tests and an option for longer jobs, as {"name", "limits", "longer"}.

    longer: an option of sbatch, as "--partition=normal", or "--partition=NAME" if there are several. Empty: the chosen
    queue is not for tests.
    """
    facts = site_facts(answers["site"])
    for question, key in (("partition", "partitions"), ("qos", "qos")):
        name = chosen_queue(question, answers, facts)
        if name in facts[key] and is_for_tests(name, facts[key][name]):
            others = [
                other
                for other, limits in facts[key].items()
                if not is_for_tests(other, limits) and not limits["unnamed"]
            ]
            usual = {**usual_queue(answers, facts), **facts["production"]}.get(question)
            known = usual if usual in others else others[0] if len(others) == 1 else "NAME"
            longer = f"--{question}={known}"
            word = "QoS" if question == "qos" else question
            return {"name": f"{word} `{name}`", "limits": facts[key][name], "longer": longer}
    return {}


def is_for_tests(name, limits) -> bool:
    """Whether a queue is one for tests, as the site file says. If it does not, a word of the queue's name tells."""
    if limits["for_tests"] is not None:
        return limits["for_tests"]
    return bool(re.search(r"(?<![a-z])(debug|tests?|dev(el\w*)?)(?![a-z])", name))


def has_own_queue(answers, job) -> bool:
    """Return whether a job goes to another partition or QoS than slurm/submit_multinode.sh names."""
    return any(job[question] != answers[question] for question in ("partition", "qos"))


def own_resources(job, own_queue: bool, builds=False) -> list[tuple[str, str]]:
    """Return resources(job) without what a script takes from the submit script: the account, mostly the queue."""
    shared = ("--account=",) if own_queue else ("--account=", "--partition=", "--qos=")
    return [(option, why) for option, why in resources(job, builds) if not option.startswith(shared)]


def real_size(answers) -> list[str]:
    """Return the options of sbatch that make of the project's job one of real size: whole nodes, for hours.

    Options replace #SBATCH lines one by one. So GPUs, cores and memory stand together, where they differ. A queue for
    tests is left. Which queue has the longer jobs may be the user's to say: NAME then stands for it.
    """
    facts = site_facts(answers["site"])
    header = resources(answers)
    for queue in real_queues(answers, facts):
        job = {**answers, **queue}
        gpus = node_facts(job)["gpus"]
        job["gpus_per_node"] = str(max(4, int(answers["gpus_per_node"])) if gpus is None else gpus)
        if answers["gpus_per_node"] == "0":
            job["gpus_per_node"] = "0"
        for nodes in ("4", "2", "1"):
            job["nodes"] = nodes
            job["time_limit"] = within_limits(job, facts, "08:00:00")
            if not list(all_faults(job)):
                changed = [option for option, why in resources(job) if (option, why) not in header]
                changed = [option for option in changed if option not in dict(header)]
                placeholder = test_queue(answers).get("longer", "") if for_tests(facts, answers) else ""
                if placeholder.endswith("=NAME"):
                    name = placeholder.partition("=")[0]
                    changed = [placeholder if option.startswith(f"{name}=") else option for option in changed]
                return [f"--nodes={nodes}", *changed]
    return ["--nodes=4", "--time=08:00:00"]


def real_queues(answers, facts):
    """Yield partition and QoS for a job that is no test: the answered ones, the usual ones, then each other."""
    if not for_tests(facts, answers):
        yield {}
    usual = {**usual_queue(answers, facts), **facts["production"]}
    if usual and not for_tests(facts, {**answers, **usual}):
        yield usual
    for question, key in (("partition", "partitions"), ("qos", "qos")):
        for name, limits in facts[key].items():
            if not limits["unnamed"] and not for_tests(facts, {**answers, question: name}):
                yield {question: name}


def example_nodes(answers) -> str:
    """Return a number of nodes for an example that the chosen queue takes: 4, or as many as were answered."""
    more = {**answers, "nodes": "4"}
    # Slurm before 26.05 refuses a job that is smaller than the --segment of its header
    return answers["nodes"] if list(all_faults(more)) or segment_of(answers) else "4"
