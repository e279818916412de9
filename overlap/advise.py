"""``python -m overlap.advise``: the command `overlap advise`."""

from __future__ import annotations

import sys

from .tools.advise.commands import main

if __name__ == "__main__":
    sys.exit(main())
