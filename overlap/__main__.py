"""`python -m overlap` is the command `overlap`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
