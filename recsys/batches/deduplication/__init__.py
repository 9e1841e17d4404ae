"""Repeated values of a log stored, read, sent, looked up and computed once (RecD)."""
