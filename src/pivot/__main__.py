"""`python -m pivot`."""

import sys

if not sys.flags.safe_path:
    sys.path.pop(
        0
    )  # `-m` puts the working directory first: a json.py there would be imported instead of Python's.

from pivot.cli import main

sys.exit(main())
