"""What a run was made with."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from typing import Any

import torch
import transformers

from pivot import __version__


def environment() -> dict[str, Any]:
    """Versions, machine and command, for run.json."""
    return {
        "pivot": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": shlex.join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
