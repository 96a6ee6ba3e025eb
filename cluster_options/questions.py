"""The questions: name, prompt, rule, checks and default of each, in the order in which they are asked.

`make questions` writes them into cookiecutter.json and into the table of docs/questions.md. `facts` are the result of
sites.site_facts() for the answered site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .checks import (
    accept_anything,
    check_account,
    check_choice,
    check_examples,
    check_folder_name,
    check_gpus,
    check_image,
    check_nodes,
    check_queue,
    check_time,
    check_word,
    check_words_in_quotes,
)
from .defaults import CONTAINER_DEFAULTS
from .extras import EXTRAS, check_extras, check_extras_text
from .runtimes import KINDS, RUNTIMES, VENDOR_IMAGES, image_fits


def default_image(facts: dict, runtime: str) -> str:
    """Return the site's image for a runtime, else that of the GPUs' vendor as the runtime writes it.

    '' for a runtime that is no container.
    """
    if RUNTIMES.get(runtime) is None:
        return ""
    image = facts["containers"].get(runtime, CONTAINER_DEFAULTS)["image"]
    if image:
        return image
    image = VENDOR_IMAGES[facts["node"]["gpu_vendor"]]
    spellings = (image, f"docker://{image}", image.replace("/", "#", 1))
    return next((spelling for spelling in spellings if image_fits(runtime, spelling)), "")


@dataclass(frozen=True)
class Question:
    """One question."""

    name: str
    prompt: str  # what cookiecutter asks
    rule: str  # what to answer, or how the answer is checked: Markdown for the table of docs/questions.md
    # A function of (answers, facts), see checks.py: whether the answer fits the site.
    check: Callable[[dict, dict], Iterator[str]] = accept_anything
    # The text, or a function of (facts, runtime) that returns it. None: what the site's file has under `defaults`. The
    # schema has to allow it there.
    default: str | Callable[[dict, str], str] | None = None
    # A function of (question, answer): whether the text is safe where it will stand, whatever the site.
    check_text: Callable[[str, str], Iterator[str]] = check_word

    def default_at(self, facts: dict, runtime: str) -> str:
        """Return the default at a site. The runtime matters for the image alone."""
        if self.default is None:
            return str(facts["defaults"].get(self.name, ""))
        return self.default if isinstance(self.default, str) else self.default(facts, runtime)


CONTAINERS = [runtime for runtime in KINDS["slurm"]["runtimes"] if RUNTIMES[runtime]]
QUESTIONS = (
    Question(
        "project",
        prompt="Name of the project; a folder of this name is written",
        rule="the name of the folder that the template writes",
        default="demo",
        check_text=check_folder_name,
    ),
    Question(
        "site",
        prompt="Cluster: a name of README's table, here (the Slurm cluster you are on), slurm, runai, local, "
        "or the path of a site file",
        rule="a name of the [table](sites.md). `here`: the Slurm cluster that you are logged in to. `slurm`: another "
        "Slurm cluster. `runai`: Kubernetes with Run:ai. `local`: one machine. Or the path of a "
        "[site file of your own](your-own-cluster.md). On a login node, the default is that cluster, by its name or as "
        "`here`. On other machines it is `local`",
        default="",  # in cookiecutter.json it is detect.site_here(), and answers.faults_of() checks it
        check_text=accept_anything,
    ),
    Question(
        "launcher",
        prompt="Launcher, the program that starts the ranks: torchrun, srun, spawn, mpirun or mpirun-ranks",
        rule="the program that starts the ranks, the processes of your program: `torchrun`, `srun`, `spawn`, `mpirun` "
        "or `mpirun-ranks`. [Which launcher should I choose?](launchers.md)",
        check=check_choice("launcher"),
        default=lambda facts, runtime: facts["launchers"][0],
    ),
    Question(
        "runtime",
        prompt="Where Python and torch come from: venv (built once by the project), none (modules, or the python3 on "
        f"PATH), or a container: {', '.join(CONTAINERS)} (Run:ai: pod)",
        rule="where Python and torch come from. `venv`: an environment that a script of the project builds once. "
        "`none`: a module, or the `python3` on PATH. Containers: "
        f"{', '.join(f'`{runtime}`' for runtime in CONTAINERS)}. With Run:ai always `pod`",
        check=check_choice("runtime"),
        default=lambda facts, runtime: facts["runtimes"][0],
    ),
    Question(
        "image",
        prompt="Container image to build from, or the path of a ready file; empty for venv and none",
        rule="the base of the container image, such as `REGISTRY/NAME:TAG`, or the path of a ready image. The default "
        "shows how the runtime spells it. Empty for `venv` and `none`",
        check=check_image,
        default=default_image,
        check_text=check_words_in_quotes,
    ),
    Question(
        "account",
        prompt="Account or project that is charged; empty where the cluster asks for none",
        rule="the account that is charged. Empty if the site asks for none. Run:ai: the project",
        check=check_account,
    ),
    Question(
        "partition",
        prompt="Partition (Run:ai: node pool); empty for the cluster's default",
        rule="a partition of the site. Run:ai: a node pool. Empty for the cluster's default",
        check=check_queue("partition"),
    ),
    Question(
        "qos",
        prompt="Quality of service; empty for the cluster's default",
        rule="a quality of service (QoS) of the site. Empty for the cluster's default, and without Slurm",
        check=check_queue("qos"),
    ),
    Question(
        "nodes",
        prompt="Number of nodes",
        rule="the number of nodes of a job, within the limits of partition and QoS",
        check=check_nodes,
    ),
    Question(
        "gpus_per_node",
        prompt="GPUs per node; 0 runs on CPUs (site local: on the GPUs of this machine, if it has any)",
        rule="the GPUs of each node, no more than the site's nodes have. 0 for CPUs. With `site=local`, 0 means all "
        "GPUs of the machine",
        check=check_gpus,
    ),
    Question(
        "time_limit",
        prompt="Walltime, [D-]HH:MM:SS; empty without Slurm",
        rule="the walltime of a job, `[D-]HH:MM:SS`, within the limits of partition and QoS. Empty without Slurm",
        check=check_time,
    ),
    Question(
        "examples",
        prompt="yes: a whole project with examples, benchmark and training; no: only what starts your own programs, "
        "into a project that exists",
        rule="`yes`: a whole project. `no`: the launch scripts alone, for a [project that exists](existing-project.md)",
        check=check_examples,
        default="yes",
    ),
    Question(
        "extras",
        prompt="Extras: none, all, or names with commas, as hangs,watch for long trainings: "
        f"{', '.join(f'{name} ({word})' for name, (_, word, _) in EXTRAS.items())}",
        rule="features beside the core: `none`, `all` that this kind of site can have, or names with commas, as in "
        f"`hangs,watch`. The names are {', '.join(f'`{name}`' for name in EXTRAS)}. "
        "[Which extra does which job, and how do I add one later?](extras.md)",
        check=check_extras,
        default="none",
        check_text=check_extras_text,
    ),
)
QUESTION_NAMES = tuple(question.name for question in QUESTIONS)
BY_NAME = {question.name: question for question in QUESTIONS}
# The answer to a question that a replay of an older version lacks. cookiecutter renders the default of such a question
# without the functions of this package. The hook finds this word, and answers.complete() puts the default in its place.
UNASKED = "the default"


def table() -> str:
    """Return the questions as the table of docs/questions.md."""
    rows = [f"| `{question.name}` | {question.rule} |\n" for question in QUESTIONS]
    return "".join(["| question | answer |\n", "|---|---|\n", *rows])


def cookiecutter_json() -> dict:
    """Return what cookiecutter.json has to hold.

    After each question stands a hidden one, whose default is rendered but not asked: it has answers.settle() check the
    answer. The last one has answers.refuse_problems() check all. For what a replay lacks, cookiecutter renders the
    defaults without these functions, hence `is defined` (see UNASKED).
    """
    content = {}
    for question in QUESTIONS:
        content[question.name] = _default_in_json(question)
        content[f"__{question.name}"] = f"{{{{ settle is defined and settle(cookiecutter, '{question.name}') }}}}"
    content["__checked"] = "{{ refuse_problems is defined and refuse_problems(cookiecutter) }}"
    content["__prompts__"] = {question.name: question.prompt for question in QUESTIONS}
    # {# is common in bash, where it begins the length of a variable: ${#name}. So comments of Jinja begin with {##.
    # A line that begins with #? is a statement of Jinja, and a comment to bash, Python and YAML.
    content["_jinja2_env_vars"] = {
        "comment_start_string": "{##",
        "comment_end_string": "##}",
        "line_statement_prefix": "#?",
    }
    # See that file for its name.
    content["_extensions"] = ["needs_cookiecutter_2_1_or_newer.ClusterOptions"]
    return content


def _default_in_json(question: Question) -> str:
    """Return the default of a question as Jinja."""
    if question.name == "site":
        return "{{ site_here() if site_here is defined else '' }}"
    if isinstance(question.default, str):
        return question.default
    needs = ["site", "runtime"] if question.name == "image" else ["site"]
    known = " and ".join(f"cookiecutter.{name} is defined" for name in needs)
    more = ", cookiecutter.runtime" if question.name == "image" else ""
    return f"{{{{ suggest(cookiecutter.site, '{question.name}'{more}) if {known} else '{UNASKED}' }}}}"
