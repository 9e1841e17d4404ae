"""Logs of sessions made up to published statistics, of any size: for measuring what repeats, where no log is at hand."""
