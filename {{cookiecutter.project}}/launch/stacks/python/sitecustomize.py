"""Every Python imports a module of this name when it starts. This one calls three others, in the ranks of a run.

    rank_stacks.py        each rank tells where it is
    rank_packages.py      rank 0 writes down its packages
    snapshot_imports.py   with SNAPSHOT=1, Python imports the copied sources

launch/torchrun.sh and launch/rank.sh put this folder on PYTHONPATH, so nothing in a program has to change.
"""

import os
import sys


def run_the_next_one():
    """Run the sitecustomize that this one hides, if there is any: Debian's, for example."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    # without this folder, and those of other copies of the project
    path = [folder for folder in sys.path if not os.path.exists(os.path.join(folder, "rank_stacks.py"))]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec and spec.loader:
        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("SNAPSHOTS"):
    try:
        import snapshot_imports

        snapshot_imports.use_copies()
    except (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # Without this, Python would print the error, and run other code than was submitted.
        sys.stderr.write(f"launch/stacks: cannot import from the copies {os.environ['SNAPSHOTS']}: {error!r}\n")
        os._exit(2)
if os.environ.get("RANK", "").isdigit():
    try:
        import rank_packages
        import rank_stacks

        rank_stacks.start()
        rank_packages.start()
    except (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # The run goes on.
        sys.stderr.write(f"launch/stacks: this rank may not be able to say where it is: {error!r}\n")
run_the_next_one()
