"""Self-contained pages and figures from the folders of runs."""

from pivot.report.comparison import write_comparison
from pivot.report.run_page import write_report

__all__ = ["write_comparison", "write_report"]
