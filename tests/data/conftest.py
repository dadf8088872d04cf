"""Makes `chat_rows` and `first_hour_rewards`, beside the tests, importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
