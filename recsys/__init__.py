"""Recommendation models: click logs, embedding tables spread over ranks, DLRM and its relatives, training and measuring."""
