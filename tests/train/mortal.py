"""`skewconv` under torchrun, whose second worker kills itself after a step of its first life: no clock decides when."""

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
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        die_after_the_last_step()
    sys.exit(cli.main(sys.argv[1:]))
