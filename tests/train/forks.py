"""A process that has everything imported and forks one `skewconv` command after the other: each can be killed.

Reads the words of a command as a JSON list, answers with the process id of the fork, then with its status.
"""

import json
import os
import sys

import lightning_fabric  # noqa: F401

from skewconv import cli
from skewconv.commands import reproduce, train  # noqa: F401
from skewconv.train import session  # noqa: F401


def serve() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            # What the command prints must not get between the answers.
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            os._exit(cli.main(json.loads(line)))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
