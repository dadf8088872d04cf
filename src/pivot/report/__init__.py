"""Pictures and pages from runs' folders, and nothing else as input."""

from pivot.report.comparison import write_comparison
from pivot.report.run_page import write_report

__all__ = ["write_comparison", "write_report"]
