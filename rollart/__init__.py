"""RollArt: multi-task agentic reinforcement learning on disaggregated, heterogeneous hardware."""
