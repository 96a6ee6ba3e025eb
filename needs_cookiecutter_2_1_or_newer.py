"""What cookiecutter loads of the template. Versions before 2.1 cannot: they print this file's name, and end.

The name stays, though the template needs 2.2. Cookiecutter compares the extensions that a project's .cruft.json, or a
replay, has recorded with those of the template, and an update dies of a name that is not there any more.
"""

import cookiecutter

# These do not find the files of templates/. Version 2.2.0 does, and calls itself 2.1.2.dev0.
if cookiecutter.__version__ in ("2.1.0", "2.1.1"):
    raise ImportError(
        f"this template needs cookiecutter 2.2 or newer, and this is {cookiecutter.__version__}; "
        "install a newer one: pipx install cookiecutter"
    )

from cluster_options.extension import ClusterOptions

__all__ = ["ClusterOptions"]
