"""What follows from the answers of a project, by the names that templates use, as in {{ plan.image_source }}.

A template that needs it begins with `#? set plan = plan_of(cookiecutter)`. Each function says in its own module what it
returns. A name with brackets below takes the further arguments of the function, as in {{ plan.add_command("mpi") }}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from . import extras, files, first_job, pages, provenance, sbatch, software


def follows(function: Callable) -> property:
    """Return an attribute of Plan: what a function of the answers returns."""
    return property(lambda plan: function(plan.answers))


def method(function: Callable) -> property:
    """Return an attribute of Plan: a function without its first argument, the answers."""
    return property(lambda plan: partial(function, plan.answers))


class Plan:
    """What follows from the answers."""

    def __init__(self, answers) -> None:
        """answers: the mapping of question to answer, as cookiecutter holds it."""
        self.answers = answers

    # The job: what sbatch is asked for, with reasons, and how long before its end the job is warned
    cores_per_node = follows(sbatch.cores_per_node)
    example_nodes = follows(sbatch.example_nodes)
    is_for_tests = follows(sbatch.goes_to_test_queue)
    job_limit = follows(sbatch.job_limit)
    node_facts = follows(sbatch.node_facts)
    real_size = follows(sbatch.real_size)
    requeue_option = follows(sbatch.requeue_option)
    resources = follows(sbatch.resources)
    test_queue = follows(sbatch.test_queue)
    warning = follows(sbatch.warning)

    # Other jobs. build_answers(LONGEST) and interactive_answers are their answers, so plan_of(JOB) is their plan
    build_answers = method(sbatch.build_answers)
    has_own_queue = method(sbatch.has_own_queue)
    interactive_answers = follows(sbatch.interactive_answers)
    longest_shell = follows(sbatch.longest_shell)
    own_resources = method(sbatch.own_resources)

    # Software: where packages and images come from, and what loads or enters it: module_lines(PLACE)
    add_package = method(software.add_package)
    builds_image = follows(software.builds_image)
    builds_on_login_node = follows(software.builds_on_login_node)
    gpu_option = follows(software.gpu_option)
    image_name = follows(software.image_name)
    image_source = follows(software.image_source)
    in_container = follows(files.in_container)
    interactive_line = follows(software.interactive_line)
    module_lines = method(software.module_lines)
    modules_of = follows(software.modules_of)
    packages_from = follows(software.packages_from)
    pip_index = follows(software.pip_index)
    pod_volumes = follows(software.pod_volumes)
    pull_command = follows(software.pull_command)
    pulls_image = follows(software.pulls_image)
    software_minutes = follows(first_job.software_minutes)
    torch_pin = follows(software.torch_pin)

    # Pages: told("notes"), rsync_command(WORDS); unless_told goes around rows of a table
    copy_target = follows(pages.copy_target)
    instructions = follows(files.instructions)
    placeholders = follows(pages.placeholders)
    project_folder = follows(pages.project_folder)
    rsync_command = method(pages.rsync_command)
    ssh_command = follows(pages.ssh_command)
    told = method(pages.told)
    unless_told = method(pages.unless_told)

    # Extras: those that the project may have, and those that it gets
    added_extras = follows(extras.added_extras)
    brought_extras = follows(extras.brought_extras)
    extra_launchers = follows(extras.extra_launchers)
    extra_settings = follows(extras.extra_settings)
    extras = follows(extras.extras_of)

    # Where the project comes from: add_command(EXTRA), bake_command(OPTIONS, newest=BOOL, QUESTION=ANSWER)
    add_command = method(provenance.add_command)
    bake_command = method(provenance.bake_command)
    extras_lost = follows(provenance.extras_lost)
    link_command = follows(provenance.link_command)
    template_source = follows(provenance.template_source)


def plan_of(answers) -> Plan:
    """Return what follows from the answers."""
    return Plan(answers)
