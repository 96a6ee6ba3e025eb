"""Runs a module of a snapshot, as `python -m package.module` would run it in the folder of submission.

    python extras/snapshot/run_module.py FOLDER package.module [arguments]

Python looks for a module in the current folder. With SNAPSHOT=1 that is still the folder of submission, whose files may
have been edited since. So this script looks in FOLDER, the copy of that folder.
"""

import runpy
import sys


def main() -> None:
    """Run the module that the second argument names."""
    if len(sys.argv) < 3:
        sys.stderr.write("extras/snapshot/run_module.py: set SNAPSHOT=1, and call the submit script with -m MODULE\n")
        sys.exit(2)
    folder, module = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH=1, Python 3.11: no folder goes first
        sys.path[0] = folder
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
