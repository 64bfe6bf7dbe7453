"""A trajectory as text: decoded turns, loss mask, versions, log-probabilities, reward.

Texts are decoded from the token ids with the tokenizer that the run kept, so they show what was trained and
not what an environment or a parser made of it. Used by ``rollart show`` and the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.types import Span, TokenSpan, Trajectory, Turn

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OBSERVED, GENERATED = "| ", "> "


class Decoder:
    """Token ids to text; without a tokenizer, to their lengths."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def of_run(cls, run_folder: Path) -> Decoder:
        """The decoder of the run's own model folder or, if it started from another one, of a checkpoint."""
        folders = [run_folder / "model", *sorted((run_folder / "checkpoints").glob("step_*"))]
        file = next((folder / "tokenizer.json" for folder in folders if (folder / "tokenizer.json").is_file()), None)
        if file is None:
            return cls(None)
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(file)))

    def text(self, span: Span) -> str:
        """The text of a span, special tokens included."""
        if not isinstance(span, TokenSpan):
            return f"({len(span)} tokens, lengths only)"
        if self._tokenizer is None:
            return f"(no tokenizer in the run folder) ids {span.ids.tolist()}"
        return str(self._tokenizer.decode(span.ids.tolist(), skip_special_tokens=False))

    def piece(self, token: int) -> str:
        """One token as the tokenizer names it."""
        return "" if self._tokenizer is None else str(self._tokenizer.id_to_token(token))


def transcript(batch: int, trajectory: Trajectory, decoder: Decoder, texts: bool = False) -> Iterator[str]:
    """The lines of one trajectory that was trained in ``batch``.

    Args:
        texts: Show what the environment wrote and what it was told, instead of the decoded tokens.
    """
    yield from _head(batch, trajectory)
    for index, turn in enumerate(trajectory.turns()):
        yield ""
        yield f"turn {index}: observation, {len(turn.observation)} tokens, masked"
        yield from _marked(OBSERVED, turn.observation_text if texts else decoder.text(turn.observation))
        yield f"turn {index}: action, {_action(turn)}"
        yield from _marked(GENERATED, turn.action_text if texts else decoder.text(turn.action))


def _head(batch: int, trajectory: Trajectory) -> Iterator[str]:
    start, score = trajectory.start_version, trajectory.score
    yield str(trajectory.id)
    yield (
        f"batch {batch}, start version {start if start is not None else '-'}, "
        f"staleness {batch - start if start is not None else '-'}, seed {trajectory.seed}"
    )
    if score is None:
        yield "not scored"
    else:
        verdict = "unknown" if score.success is None else "yes" if score.success else "no"
        parts = "".join(f", {name} {value:.3f}" for name, value in score.parts.items())
        yield f"reward {score.value:.3f}, success {verdict}{parts}"
    ending = f"cut by {trajectory.limit.value}" if trajectory.limit else "ended by the environment"
    yield f"{trajectory.total_tokens} tokens, {trajectory.generated_tokens} generated, {ending}"
    if trajectory.seconds:
        yield "seconds: " + ", ".join(f"{name} {value:.3f}" for name, value in trajectory.seconds.items())
    if trajectory.metrics:
        yield "metrics: " + ", ".join(f"{name} {value:g}" for name, value in trajectory.metrics.items())


def _action(turn: Turn) -> str:
    versions = ", ".join(f"{run.length} by version {run.version}" for run in turn.versions) or "none"
    parts = [f"{len(turn.action)} tokens ({versions})", f"ended by {turn.finish_reason.value}"]
    if isinstance(turn.action, TokenSpan) and turn.action.logprobs is not None and len(turn.action):
        parts.append(f"mean log-probability {float(turn.action.logprobs.mean()):.3f}")
    parts.append(f"reward {turn.reward:g}")
    return ", ".join(parts)


def _marked(mark: str, text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield f"{mark}{line}"


def token_lines(trajectory: Trajectory, decoder: Decoder) -> Iterator[str]:
    """One line a token: position, id, loss mask, version, log-probability, name."""
    yield ""
    yield f"{'position':>8}  {'id':>7}  mask  {'version':>7}  {'logprob':>9}  token"
    position = 0
    for turn in trajectory.turns():
        versions = [run.version for run in turn.versions for _ in range(run.length)]
        for span, mask in ((turn.observation, 0), (turn.action, 1)):
            if not isinstance(span, TokenSpan):
                position += len(span)
                continue
            for offset, token in enumerate(span.ids.tolist()):
                version = str(versions[offset]) if mask and offset < len(versions) else "-"
                logprob = f"{span.logprobs[offset]:.4f}" if mask and span.logprobs is not None else "-"
                yield (f"{position:>8}  {token:>7}  {mask:>4}  {version:>7}  {logprob:>9}  {decoder.piece(token)!r}")
                position += 1
