"""How the tests wait: for an event. A number of seconds that is enough on one machine is too short on a busy one."""

from __future__ import annotations

import time

# Seconds after which a test gives up. The bound ends a hang and measures nothing, so it is far above what a test needs,
# also beside ten busy processes.
PATIENCE = 600
# Seconds that a program sleeps where something else has to end it. A test that waits for that gives up long before.
FOREVER = 10 * PATIENCE
# Seconds after which a test gives up on packages from the network.
INSTALLATION = 3 * PATIENCE
# Seconds after which a test gives up on a compiler. Beside twenty busy processes, Horovod took more than half an hour.
COMPILATION = 3 * INSTALLATION


def wait_for(value, what="what the test waits for", seconds=PATIENCE, pause=0.05):
    """Call `value` until it returns something true; return that. `what` names the event, or is a function that does."""
    end = time.monotonic() + seconds
    while not (found := value()):
        if time.monotonic() > end:
            raise AssertionError(f"never came true: {what() if callable(what) else what}")
        time.sleep(pause)
    return found
