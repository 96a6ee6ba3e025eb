"""How the tests wait: for an event, and never for a number of seconds that only a quick machine keeps to."""

from __future__ import annotations

import time

# Seconds after which a test gives up on something that is not going to happen. It ends a hang and measures nothing, so
# it is far above what a machine needs that is busy with ten other things.
PATIENCE = 600
# Seconds that a rank sleeps which the program under test has to end: PATIENCE is over long before.
FOREVER = 10 * PATIENCE
INSTALLATION = 3 * PATIENCE  # what is downloaded takes longer


def wait_for(value, what="what the test waits for", seconds=PATIENCE, pause=0.05):
    """Return what `value` returns, once it is something; `what` may be a function that tells more of a failure."""
    end = time.monotonic() + seconds
    while not (found := value()):
        if time.monotonic() > end:
            raise AssertionError(f"never came true: {what() if callable(what) else what}")
        time.sleep(pause)
    return found
