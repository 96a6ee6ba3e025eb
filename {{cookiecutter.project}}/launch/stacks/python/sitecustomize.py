"""Every Python imports a module of this name when it starts. In the ranks of a run this one calls rank_stacks.py.

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


if os.environ.get("RANK", "").isdigit():
    try:
        import rank_stacks

        rank_stacks.start()
    except (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        # The run goes on.
        sys.stderr.write(f"launch/stacks: this rank may not be able to say where it is: {error!r}\n")
run_the_next_one()
