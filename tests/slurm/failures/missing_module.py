"""A module that is not installed."""

import startup
import transformer_engine_of_ours
