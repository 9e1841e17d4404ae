"""Logs of sessions, made up to published statistics, of any size: for measuring where no real log is at hand."""
