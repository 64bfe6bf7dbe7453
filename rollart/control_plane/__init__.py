"""The control plane: what to start, where to send it, when to update, what to train, and what became of it.

Pure decision cores (staleness, mix, groups, ledger, sample_buffer, protocol) have no I/O, no tasks and
no clock. The shells around them (llm_proxy, env_host, rollout_scheduler, training_loop, job) await.
"""
