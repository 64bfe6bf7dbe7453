"""The effective algorithm in plain sentences, for ``rollart plan`` and for what the trainer says of itself."""

from __future__ import annotations

from rollart.config.config import Config


def describe_algorithm(config: Config) -> str:
    """What one iteration does with a batch, and how old its data may be."""
    return f"{_advantage(config)} {_loss(config)} {_optimizer(config)} {_staleness(config)}"


def _advantage(config: Config) -> str:
    rollout, training = config.rollout, config.training
    scales = {"std": ", divided by the group's standard deviation", "domain": ", divided by its domain's deviation"}
    scale = scales.get(training.advantage_norm, "")
    dropped = "; groups with equal rewards are dropped" if rollout.filter_zero_variance else ""
    if training.algorithm != "grpo":
        scale = scales["domain"] if training.advantage_norm == "domain" else ""
        return f"The advantage is what {training.algorithm} makes of a group of {rollout.group_size}{scale}{dropped}."
    return f"GRPO: the advantage is the reward minus the mean of its group of {rollout.group_size}{scale}{dropped}."


def _loss(config: Config) -> str:
    training = config.training
    over = {
        "token": "all trained tokens of the batch",
        "sequence": "sequences, each over its tokens",
        "domain": "domains, each over its tokens",
    }[training.loss_norm]
    several = training.epochs * training.minibatches > 1
    reference = "proximal" if several and training.correction == "tis" else "behaviour"
    parts = [
        f"The ratio to the {reference} policy is clipped to [{1 - training.clip_low:g}, {1 + training.clip_high:g}]",
        f"the loss is averaged over {over}",
    ]
    if training.correction == "tis":
        parts.append(f"importance weights against the behaviour policy are truncated at {training.correction_cap:g}")
    bonuses = {name: domain.entropy_bonus for name, domain in config.domains.items() if domain.entropy_bonus}
    if training.entropy_bonus or bonuses:
        own = "".join(f", {bonus:g} for {name}" for name, bonus in bonuses.items())
        end = f" falling to {training.entropy_end:g} of it" if training.entropy_end < 1 else ""
        parts.append(f"the mean token entropy is rewarded with {training.entropy_bonus:g}{own}{end}")
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
    when = "as soon as they are announced" if config.switches.update == "eager" else "when a batch is ready"
    return (
        f"Asynchronous: a trained trajectory was started at most {config.alpha} version{plural} before the weights "
        f"its gradient is taken at; engines take new weights {when}."
    )
