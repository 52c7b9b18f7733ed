"""`skewconv` in two processes, one of which fails as FAULT says, at a moment that no clock decides."""

import os
import signal
import sys
from itertools import count
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from skewconv import cli
from skewconv.train.loop import Trainer

LAST_STEP = 5


def die_after_the_last_step() -> None:
    steps = count(1)

    def look(*_: object) -> None:
        if next(steps) == LAST_STEP:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(look)


def ask_to_stop_when_evaluating() -> None:
    evaluate = Trainer._evaluate

    def asked(self: Trainer, *words: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *words, **options)

    Trainer._evaluate = asked  # type: ignore[method-assign]


if __name__ == "__main__":
    fault = os.environ["FAULT"], os.environ.get("LOCAL_RANK", "0")
    if fault == ("the second dies", "1"):
        die_after_the_last_step()
    if fault == ("the first is asked to stop", "0"):
        ask_to_stop_when_evaluating()
    sys.exit(cli.main(sys.argv[1:]))
