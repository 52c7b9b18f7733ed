"""python -m skewconv: the same as the command skewconv."""

import sys

from skewconv.cli import main

if __name__ == "__main__":
    sys.exit(main())
