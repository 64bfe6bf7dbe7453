"""What a run did, derived from its event log and from nothing else.

Offline readers (accounts, summary, metrics, report) fold the merged log; live readers (progress,
TensorBoard, W&B) are event sinks. Nothing here influences a run.
"""
