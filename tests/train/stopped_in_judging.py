"""`skewconv` in two processes, whose first is asked to stop while it judges the network: no clock decides when."""

import os
import signal
import sys
from typing import Any

from skewconv import cli
from skewconv.train.evaluate import Figures
from skewconv.train.judging import Judging


def ask_to_stop_when_judging() -> None:
    judge = Judging._judge

    def asked(self: Judging, *words: Any, **options: Any) -> Figures:
        os.kill(os.getpid(), signal.SIGTERM)
        return judge(self, *words, **options)

    Judging._judge = asked  # type: ignore[method-assign]


if __name__ == "__main__":
    # Fabric starts the second process, and tells it its number.
    if os.environ.get("LOCAL_RANK", "0") == "0":
        ask_to_stop_when_judging()
    sys.exit(cli.main(sys.argv[1:]))
