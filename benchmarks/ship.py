"""Keep a finished run as a network of the package: float16 weights and the figures of exactly these weights.

Run: python benchmarks/ship.py RUN NAME   (then skewconv.load("NAME") and `skewconv evaluate NAME` know it)
"""

import argparse
import json
from pathlib import Path

from skewconv.train.places import SHIPPED
from skewconv.train.run import open_run
from skewconv.train.shipped import ship

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    record = ship(run.checkpoint, run.model, run.dataset(), SHIPPED, arguments.name)
    print(json.dumps(record["results"], indent=2))
