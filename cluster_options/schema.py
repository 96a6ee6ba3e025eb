"""The keys of a site file and their rules. SCHEMA checks a file; `make schema` writes the rules as sites/schema.json.

sites/schema.json is a JSON Schema (https://json-schema.org/draft-07). Editors that know YAML read it, complete keys and
mark faults. It checks each key alone. That keys fit each other, such as the default partition being one of those that
are listed, is checked in contradictions.py.

A new key goes into SCHEMA. If files may leave it out, its default goes into defaults.py.
"""

from __future__ import annotations

from .rules import Count, Day, Expression, Flag, Like, ListOf, Named, Number, OneOf, Record, Text, TextOr, Walltime
from .runtimes import LAUNCHERS, RUNTIMES

NODE = {
    "gpus": Count(0, "GPUs of a node"),
    "gpu_name": Text("for documents, such as H100 80 GB"),
    "cores": Count(1, "cores of a node, as --cpus-per-task counts them"),
    "cores_per_gpu": Count(1, "cores that a job asks for with each GPU, where `cores` is not known"),
    "memory": Like(r"\d+([KMGT]B?)?", "a value of --mem such as 450G, in quotes"),
    "gpu_option": Like(
        r"(--(gpus-per-node=|gres=gpu:)([\w-]+:)?)?",
        "--gpus-per-node= or --gres=gpu:, with TYPE: if need be; empty where a node has one GPU and jobs name none",
    ),
    "gpu_vendor": OneOf("nvidia", "amd"),
    "whole": Flag("the scheduler gives whole nodes: ask for all cores, however few GPUs are used"),
    "cpu_only": Flag("has nodes where gpus_per_node=0 makes sense"),
    "segment": Count(1, "of a block topology (GB200 NVL72): --segment of jobs of so many nodes or a multiple"),
}
TIER = Record({"max_nodes": Count(1), "max_time": Walltime()})
LIMITS = {  # of one job
    "max_nodes": Count(1),
    "min_nodes": Count(1),
    "max_time": Walltime(),
    "max_node_minutes": Count(1, "nodes x walltime, in minutes"),
    "max_gpus": Count(1, "of all nodes of a job together"),
    "max_jobs": Count(1, "running and waiting jobs of a user; sbatch refuses the next one"),
    "tiers": ListOf(TIER, about="the longest time by number of nodes"),
    "default": Flag("jobs that name no queue get this one"),
    "unnamed": Flag("the scheduler refuses its name: jobs get it if they name no queue"),
    "for_tests": Flag(
        "for short tests: long jobs and builds go elsewhere; left out, the name tells (debug, test, dev)"
    ),
    "confirmed": Flag("false: no source confirms these figures, so they warn instead of refusing"),
    "about": Text("its purpose"),
    "node": Record({}, NODE, about="how its nodes, or the part of them that it gives, differ from the keys of `node`"),
}
# It will stand in #SBATCH lines, where a space or a # ends it, and in double quotes.
SBATCH_OPTION = Like(r'--[^\s#"$`\\]+', "an option --NAME=VALUE without spaces, quotes, # and $")
OPTION = Like(r"--[\w-]+(=[\w.,:/=@%+-]+)?", "an option --NAME=VALUE of letters, digits and .,:/=@%+-")
SRUN_OPTION = Record(
    {"option": OPTION, "why": Text()},
    {
        "tasks": OneOf(
            "node",
            "rank",
            about="only for an srun that starts one task per node, or one per rank, each with all GPUs of its node",
        )
    },
)
# It will stand in a list of words between double quotes.
MODULE = Like(r"[\w./:@%+=-]+", "the name of a module, of letters, digits and ./:@%+=-")
IN_QUOTES = r'[^"`$\\\n]*'  # text that bash leaves unchanged between double quotes
TORCHRUN_OPTION = Record({"option": Like(r"--[\w-]+(=[\w.,:/=-]+)?", "an option --NAME=VALUE"), "why": Text()})
VARIABLE = Record(
    {
        "name": Like("[A-Za-z_][A-Za-z0-9_]*", "the name of a variable"),
        # it will stand in double quotes
        "value": Like('([^"`$\\\\}]|\\$\\{\\w+\\})*', 'text without ", `, \\, } and $, but for ${NAME}'),
        "why": Text(),
    },
    {"force": Flag("set it even if the user has set it")},
)
OF_RUNTIMES = {"runtimes": ListOf(OneOf(*RUNTIMES), 1, about="only for projects with one of the named runtimes")}
NOTE = TextOr(Record({"text": Text()}, OF_RUNTIMES))
UNSET = Record({"name": Like("[A-Za-z_][A-Za-z0-9_]*", "the name of a variable"), "why": Text()})
TORCH = Record(
    {"version": Like(r"\d+([.]\d+)+", "a version of torch, such as 2.13.0"), "why": Text()},
    about="of venv: the torch of requirements.txt, with its reason and until when it holds",
)
MODULE_LINE = Record({"line": Like(r"[^\s].*", "a line of bash"), "why": Text()})
CONTAINER = Record(
    {},
    {
        "image": Text("the default image"),
        "modules": ListOf(MODULE, about="modules that bring the program"),
        "options": ListOf(
            Like(f"-{IN_QUOTES}", 'an option without ", `, \\ and $'), about="more options of the program"
        ),
        "gpu_option": Like(
            IN_QUOTES,
            'an option without ", `, \\ and $',
            about="of apptainer, in place of --nv or --rocm; empty for none",
        ),
        "entry": ListOf(
            Like(IN_QUOTES, 'a word without ", `, \\ and $'),
            about="of apptainer: what is put before each command inside",
        ),
        "entry_environment": ListOf(VARIABLE, about="of apptainer: variables of env.sh that `entry` would overwrite"),
        "unset": ListOf(UNSET, about="of apptainer: variables of the host to unset before it starts"),
        "build_with": Text(
            "what is put before the command that gets the image on a login node: of podman-hpc and shifter the build, "
            "of apptainer the pull, where login nodes alone have internet; ACCOUNT stands for the answer"
        ),
        "find_image": Text("Markdown: how a user finds the site's own image, whose path changes"),
        "after_build": Text("what is left to do when the image is there"),
        "wheelhouse": Like(
            r"[\w./-]+( [\w./-]+)*",
            "a command",
            about="of venv: pip is set up to install from wheels on the site's file system, without an index; "
            "the command that lists those of a package, without the package's name",
        ),
        "torch": TORCH,
        "on_login_node": Flag(
            "of venv: login nodes have internet and the processor of the compute nodes, and pip may run there"
        ),
    },
)
VOLUME = Record(
    {
        "claim": Like(r"[\w.{}-]+", "the name of a PVC"),
        "path": Like(r"/[\w.{}/-]*[\w.{}-]", "an absolute path of letters, digits and ._-"),
    }
)
PODS = Record(
    {},
    {
        "volumes": ListOf(
            VOLUME, about="a named group of the expression account.like may stand in them, in braces: {lab}-scratch"
        ),
        "run_as_user": Flag("the volumes belong to users: pods have to run as one"),
        "annotations": ListOf(
            Like(r"[\w./-]+=[\w./:@%+,-]+", "NAME=VALUE"), about="what it takes to have RDMA between pods"
        ),
        "extended_resources": ListOf(Like(r"[\w./-]+=\d+", "RESOURCE=QUANTITY")),
    },
    about="of a site with Run:ai",
)
BANDWIDTHS = Record(
    {
        "about": Text(),
        "source": Text(),
        "unit": OneOf("GB/s", "Gbit/s"),
        "rows": ListOf(Record({"busbw": Number()}, {"nodes": Count(1), "gpus": Count(1), "algbw": Number()}), 1),
    }
)

SCHEMA = Record(
    {
        "title": Text("the name of the cluster"),
        "kind": OneOf("local", "slurm", "runai"),
        "docs": Text("address of the cluster's documentation"),
        "checked": Day("the day on which the facts were last compared with their sources"),
        "contact": Text("who helps"),
        "runtimes": ListOf(OneOf(*RUNTIMES), about="the first is the default"),
        "launchers": ListOf(OneOf(*LAUNCHERS), about="the first is the default"),
        "defaults": Record(
            {"nodes": Count(1), "gpus_per_node": Count(0)},
            {"time_limit": Walltime(), "partition": Text(), "qos": Text(), "account": Text()},
            about="of the questions: a small job, in a queue for tests if the site has one",
        ),
    },
    {
        "base": Like(r"[\w-]+", "the name of a file in sites/bases", about="a file that this one goes on from"),
        "production": Record(
            {},
            {"partition": Text(), "qos": Text()},
            about="where jobs go that are no tests, if not to the default queue",
        ),
        "check": Like(
            r"--[\w-]+(=[\w.,:/=@%+-]+)?( --[\w-]+(=[\w.,:/=@%+-]+)?)*",
            "options of sbatch",
            about="of the first job, where it starts sooner with them than with the #SBATCH lines",
        ),
        "detect": Record(
            {},
            {"cluster": ListOf(Text(), about="ClusterName of slurm.conf"), "host": Expression("names of login nodes")},
            about="how a machine knows that it belongs to this site; one line, the only one that detect.py reads",
        ),
        "node": Record({}, NODE),
        "account": Record({"like": Expression(), "example": Text()}, about="the form that names of accounts have"),
        "accounts": ListOf(Text(), about="the accounts of the user, in a file that `describe` has written for one"),
        "required": ListOf(OneOf("account", "partition", "qos"), about="questions that this site wants an answer to"),
        "partitions": Named(Record({}, LIMITS), about="empty: any name is taken as it is"),
        "qos": Named(
            Record({}, {**LIMITS, "partitions": ListOf(Text(), about="goes with these partitions alone")}),
            about="empty: any name is taken as it is",
        ),
        "directives": ListOf(Record({"option": SBATCH_OPTION, "why": Text()}), about="more #SBATCH lines"),
        "srun": ListOf(SRUN_OPTION, about="more options of srun"),
        "torchrun": ListOf(
            TORCHRUN_OPTION, about="more options of torchrun, for runs in which each GPU of a node has a process"
        ),
        "expedited_requeue": Flag("SlurmctldParameters has enable_expedited_requeue: --requeue=expedite, Slurm 25.11"),
        "interactive": Record(
            {}, {"partition": Text(), "qos": Text(), "time_limit": Walltime()}, about="for slurm/interactive.sh"
        ),
        "modules": ListOf(MODULE, about="that every runtime needs"),
        "modules_after": OneOf(
            "purge", "reset", about="the word for `module` before these are loaded; purge by default"
        ),
        "module_lines": Record(
            {},
            {
                "before": ListOf(MODULE_LINE, about="before the first `module`, such as the file that defines it"),
                "after": ListOf(MODULE_LINE, about="after the modules are loaded"),
            },
            about="lines of bash that stand around `module load`, and run only where there are modules",
        ),
        "environment": ListOf(VARIABLE, about="variables of every job"),
        "containers": Named(CONTAINER, about="by runtime: what it needs here, beside what it needs everywhere"),
        "pods": PODS,
        "binds": ListOf(
            Like(r'([^"`\\:,$]|\$\{\w+\})+', "a folder, such as /scratch or ${SCRATCH}"),
            about="folders that containers should see; variables in braces, as EDF files want them",
        ),
        "host_suffix": Like(
            r"[\w.-]*",
            "the end of a host's name, of letters, digits and .-",
            about="appended to the first host's name where a second name leads to the fast network",
        ),
        "internet": Flag("do compute nodes reach it?"),
        "login_internet": Flag("do login nodes reach it?"),
        "login": Record(
            {},
            {
                "host": Text("a login node; the written README has ssh USER@HOST"),
                "user": Text("what stands before the @, USER by default; empty where ssh's configuration has the name"),
                "options": Text("of ssh"),
                "needs": Text("Markdown: what logging in needs beside a user name"),
            },
        ),
        "transfer_host": Text("to which host users copy files, if not to a login node"),
        "ports": Record({"first": Count(1024), "last": Count(1024)}, about="among which nodes may meet"),
        "file_systems": ListOf(
            Record(
                {"path": Text(), "use": Text()},
                {
                    "limits": Text(),
                    "project": Flag("do written projects belong here? of one file system at most"),
                    "shared": Flag("do several users have this folder? projects then lie in a folder of each user"),
                    "local": Flag("is it the disk of each node that STAGE_DIR should name? of one file system at most"),
                },
            )
        ),
        "commands": Named(Text(), about="what a user of this site types: accounts, queues, jobs, quota"),
        "placement": Text("Markdown for the written README: the network's topology, --contiguous, --switches"),
        "notebooks": Text("Markdown for the written page: the site's own service for notebooks"),
        "notes": ListOf(NOTE, about="Markdown for the written README"),
        "problems": ListOf(
            Record({"printed": Text(), "cause": Text(), "fix": Text()}, OF_RUNTIMES),
            about="Markdown for the written README; a row of all projects is left out if this one prints the same",
        ),
        "all_reduce": ListOf(BANDWIDTHS, about="published bandwidths, for comparison"),
        "unconfirmed": ListOf(NOTE, about="facts that no source confirms; limits have `confirmed: false` instead"),
    },
)


def schema_file() -> dict:
    """Return the content of sites/schema.json."""
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "a site file of the template"}
    return {**head, **SCHEMA.json_schema()}
