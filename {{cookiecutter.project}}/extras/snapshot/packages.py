"""Has rank 0 write down which packages it has, as `pip freeze` does. launch/code/record.py adds them to run.json.

The list has to come from the Python that runs the program, which may be in a container. So rank 0 writes it, in a
thread that does not keep the program waiting.
"""

import os
import sys
import threading


def start() -> None:
    """Write RUN_DIR/packages.txt, in a thread, if this is rank 0 and the file is not there yet."""
    file = os.path.join(os.environ.get("RUN_DIR", ""), "packages.txt")
    if os.environ.get("RANK") == "0" and os.environ.get("RUN_DIR") and not os.path.exists(file):
        # Not in the thread: if two threads import importlib at once, Python may load parts of it twice, and break.
        import importlib.metadata  # noqa: F401

        threading.Thread(target=write, args=(file,), name="packages").start()


def write(file: str) -> None:
    """Write the version of Python, and a line per package: NAME==VERSION, or NAME @ ADDRESS."""
    try:
        lines = [f"# Python {sys.version.split()[0]}, {sys.executable}", *sorted(packages(), key=str.lower)]
        unfinished = f"{file}.{os.getpid()}"
        with open(unfinished, "w", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")
        os.replace(unfinished, file)
    except (AttributeError, ImportError, LookupError, OSError, TypeError, ValueError) as error:  # the run goes on
        sys.stderr.write(f"launch/stacks: run.json will not have the packages: {error!r}\n")


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
    """Return ' # ADDRESS' for a package that was not installed by its name from an index; else nothing."""
    import json

    text = package.read_text("direct_url.json")  # https://packaging.python.org/specifications/direct-url/
    if not text:
        return ""
    address = json.loads(text)
    commit = address.get("vcs_info", {}).get("commit_id", "")
    return f"  # {address.get('url', '')}{'@' + commit if commit else ''}"
