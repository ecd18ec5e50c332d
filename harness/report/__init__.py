"""Everything shown of a run, made from its verdicts alone: terminal table, Markdown, JUnit."""

from harness.report.junit import write_junit
from harness.report.markdown import markdown
from harness.report.summary import Cell, Summary, summarize
from harness.report.terminal import failure_panel, table

__all__ = ["Cell", "Summary", "failure_panel", "markdown", "summarize", "table", "write_junit"]
