"""Pictures and pages from runs' folders, and nothing else as input."""

from pivot.report.run_page import write_report

__all__ = ["write_report"]
