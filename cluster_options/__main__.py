"""The command line.

    python3 -m cluster_options describe         prints a site file for this Slurm cluster; needs no package
    python3 -m cluster_options check FILE ...   names the faults of site files
    python3 -m cluster_options table            prints the table of sites that docs/sites.md shows
    python3 -m cluster_options titles           prints the list of sites that README.md shows
    python3 -m cluster_options questions        prints the table of questions that docs/questions.md shows
    python3 -m cluster_options cookiecutter     prints cookiecutter.json
    python3 -m cluster_options schema           prints sites/schema.json
    python3 -m cluster_options dates            fails and names the sites that nobody has checked for a year

From another folder: python3 PATH/cluster_options describe
"""

import json
import os
import sys

if not __package__:  # started as a folder
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import cluster_options  # noqa: F401  (it refuses an old Python, in one sentence)


def main(words):
    """Do what the words say. Return what sys.exit() takes: 0, or a message about what is wrong."""
    command, files = (words[0], words[1:]) if words else ("", [])
    if command == "describe" and not files:
        return describe()
    if command == "check" and files:
        return check(files)
    others = {
        "table": table,
        "titles": titles,
        "questions": questions,
        "cookiecutter": cookiecutter,
        "schema": schema,
        "dates": dates,
    }
    if command in others and not files:
        return others[command]() or 0
    return "usage: python3 -m cluster_options describe | check FILE ... | {}".format(" | ".join(others))


def describe():
    """Print a site file for this cluster."""
    from cluster_options.describe import DescribeError, describe

    try:
        print(describe(), end="")
    except DescribeError as error:
        return f"describe: {error}"
    return 0


def check(files):
    """Say which site files have no fault; return the faults of the others. Files of the template need sources, too."""
    from cluster_options.sites import SITES, SiteError, site_facts
    from cluster_options.sources import GENERIC, missing_sources

    faults = []
    for file in files:
        path = os.path.abspath(file)
        try:
            site_facts(path)
        except SiteError as error:
            faults.append(error.message)
            continue
        unsourced = []
        folder, name = os.path.split(path)
        if folder == str(SITES) and os.path.splitext(name)[0] not in GENERIC:
            with open(path, encoding="utf-8") as opened:
                unsourced = missing_sources(opened.read())
        if unsourced:
            faults.append("\n  ".join([f"{file} lacks sources, which others need to check its facts:", *unsourced]))
        else:
            print(f"{file}: a site file without faults")
    return "\n".join(faults) or 0


def table():
    """Print the table of sites."""
    from cluster_options.first_job import table

    print(table(), end="")


def titles():
    """Print the list of sites."""
    from cluster_options.sites import list_of_titles

    print(list_of_titles(), end="")


def questions():
    """Print the table of questions."""
    from cluster_options.questions import table

    print(table(), end="")


def cookiecutter():
    """Print cookiecutter.json."""
    from cluster_options.questions import cookiecutter_json

    print(json.dumps(cookiecutter_json(), indent=2))


def schema():
    """Print the JSON Schema of site files."""
    from cluster_options.schema import schema_file

    print(json.dumps(schema_file(), indent=1))


def dates():
    """Return a sentence for each site that was last checked more than a year ago."""
    from datetime import date

    from cluster_options.sites import outdated

    return "\n".join(outdated(date.today())) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
