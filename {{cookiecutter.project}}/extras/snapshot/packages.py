"""Lists the packages of the Python that runs it, as `pip freeze` does.

    python extras/snapshot/packages.py FILE

enter.sh starts it beside the ranks, in their environment or container.
"""

import json
import os
import sys


def main() -> None:
    """Write the version of Python, and a line per package: NAME==VERSION, with the ADDRESS that it came from."""
    if len(sys.argv) != 2:
        sys.stderr.write("extras/snapshot/packages.py: expected the file that it writes; jobs call this program\n")
        sys.exit(2)
    lines = [f"# Python {sys.version.split()[0]}, {sys.executable}", *sorted(packages(), key=str.lower)]
    unfinished = f"{sys.argv[1]}.new"
    with open(unfinished, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    os.replace(unfinished, sys.argv[1])


def packages() -> set:
    """Return the installed packages."""
    from importlib import metadata

    found = set()
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name:
            found.add(f"{name}=={package.version}{installed_from(package)}")
    return found


def installed_from(package) -> str:
    """Return '  # ADDRESS' for a package that was not installed by its name from an index; else nothing."""
    text = package.read_text("direct_url.json")  # https://packaging.python.org/specifications/direct-url/
    if not text:
        return ""
    address = json.loads(text)
    commit = address.get("vcs_info", {}).get("commit_id", "")
    return f"  # {address.get('url', '')}{'@' + commit if commit else ''}"


if __name__ == "__main__":
    main()
