"""The effective algorithm in plain sentences, for ``rollart plan`` and the report of a run's start."""

from __future__ import annotations

from rollart.config.config import Config


def describe_algorithm(config: Config) -> str:
    """What one iteration does with a batch, and how old its data may be."""
    return f"{_advantage(config)} {_loss(config)} {_optimizer(config)} {_staleness(config)}"


def _advantage(config: Config) -> str:
    rollout, training = config.rollout, config.training
    scale = ", divided by the group's standard deviation" if training.advantage_norm == "std" else ""
    dropped = "; groups with equal rewards are dropped" if rollout.filter_zero_variance else ""
    return f"GRPO: the advantage is the reward minus the mean of its group of {rollout.group_size}{scale}{dropped}."


def _loss(config: Config) -> str:
    training = config.training
    over = "all trained tokens of the batch" if training.loss_norm == "token" else "sequences, each over its tokens"
    parts = [
        f"The policy ratio is clipped to [{1 - training.clip_low:g}, {1 + training.clip_high:g}]",
        f"the loss is averaged over {over}",
    ]
    if training.correction == "tis":
        parts.append(f"importance weights against the behaviour policy are truncated at {training.correction_cap:g}")
    if training.entropy_bonus:
        parts.append(f"the mean token entropy is rewarded with {training.entropy_bonus:g}")
    return f"{', '.join(parts)}."


def _optimizer(config: Config) -> str:
    training = config.training
    schedule: str = training.schedule
    if schedule != "constant":
        schedule = f"{schedule} to {training.final_learning_rate:g}"
    warmup = f", {training.warmup} iterations of warm-up" if training.warmup else ""
    passes = f"{training.epochs} pass{'es' if training.epochs > 1 else ''} of {training.minibatches}"
    steps = f"{passes} minibatch{'es' if training.minibatches > 1 else ''}"
    return (
        f"AdamW at {training.learning_rate:g} ({schedule}{warmup}), {steps} an iteration, "
        f"gradients clipped to norm {training.max_grad_norm:g}."
    )


def _staleness(config: Config) -> str:
    if config.alpha == 0:
        return "Synchronous (alpha 0): every trained trajectory was started at the weights its gradient is taken at."
    plural = "s" if config.alpha > 1 else ""
    when = "as soon as they are announced" if config.run.update == "eager" else "when a batch is ready"
    return (
        f"Asynchronous: a trained trajectory was started at most {config.alpha} version{plural} before the weights "
        f"its gradient is taken at; engines take new weights {when}."
    )
