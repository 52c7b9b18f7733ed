"""`skewconv` in two processes, whose second kills itself after a step of its first life: no clock decides when."""

import os
import signal
import sys
from itertools import count

from torch.optim.optimizer import register_optimizer_step_post_hook

from skewconv import cli

LAST_STEP = 5


def die_after_the_last_step() -> None:
    steps = count(1)

    def look(*_: object) -> None:
        if next(steps) == LAST_STEP:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(look)


if __name__ == "__main__":
    # torchrun says which life it is; without it a process has one only, and Fabric starts the second.
    if (os.environ.get("LOCAL_RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == ("1", "0"):
        die_after_the_last_step()
    sys.exit(cli.main(sys.argv[1:]))
