# This extra has no settings.
