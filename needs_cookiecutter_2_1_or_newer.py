"""What cookiecutter loads of the template. Versions before 2.1 cannot: they print this file's name, and end."""

from cluster_options.extension import ClusterOptions

__all__ = ["ClusterOptions"]
