"""`python -m pivot`."""

import sys

from pivot.cli import main

sys.exit(main())
