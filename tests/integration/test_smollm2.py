"""The example with a real pretrained model: three iterations, its texts, its tokens and its log-probabilities.

Takes a few minutes on two cores and 6 GB of memory; ``make smollm2`` fetches the model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollart.cli.main import main
from rollart.config.config import Config
from rollart.config.load import load_config
from rollart.events import TrainStepped, read_events
from rollart.observability.trajectory_log import read_all
from rollart.types import FinishReason, Trajectory, join

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "smollm2.yaml"
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"

IM_END = 2

pytestmark = [
    pytest.mark.optional,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not MODEL.is_dir(), reason="needs the model SmolLM2-135M-Instruct (make smollm2)"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the finished run."""
    folder = tmp_path_factory.mktemp("runs")
    overrides = ["run.runtime=in_process", f"run.dir={folder}", "evaluation.instances=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main(["train", str(EXAMPLE), *overrides]) == 0
    return folder / "smollm2"


@pytest.fixture(scope="module")
def config() -> Config:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return load_config(EXAMPLE)


@pytest.fixture(scope="module")
def kept(run: Path) -> list[Trajectory]:
    return [trajectory for _, trajectory in read_all(run)]


def test_it_completes_and_every_trajectory_is_accounted_for(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())

    assert summary["iterations"] == 3
    assert summary["outcomes"]["trained"] == 24
    assert summary["outcomes"]["failed"] == {}
    assert summary["max_staleness"] <= 1


def test_the_checkpoint_is_a_model_with_other_weights(run: Path) -> None:
    (checkpoint,) = (run / "checkpoints").glob("step_*3")
    trained = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    original = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)

    moved = [
        float((new - old).abs().max()) for new, old in zip(trained.parameters(), original.parameters(), strict=True)
    ]

    assert 0 < max(moved) < 1e-3


def test_histories_are_the_conversations_that_the_template_writes(
    run: Path, config: Config, kept: list[Trajectory]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(next((run / "checkpoints").glob("step_*3")))
    stopped = 0
    for trajectory in kept:
        messages = [{"role": "system", "content": config.domains[trajectory.id.domain].system_prompt}]
        for turn in trajectory.turns():
            ends_with_stop = bool(turn.action.ids[-1] == IM_END)
            assert ends_with_stop == (turn.finish_reason is FinishReason.STOP)
            stopped += ends_with_stop
            messages.append({"role": "user", "content": turn.observation_text})
            messages.append({"role": "assistant", "content": turn.action_text})
        ids = join([span for turn in trajectory.turns() for span in (turn.observation, turn.action)]).ids.tolist()
        ids += [] if ids[-1] == IM_END else [IM_END]
        assert tokenizer.decode(ids) + "\n" == tokenizer.apply_chat_template(messages, tokenize=False)
    assert stopped > 0


def test_texts_are_words(kept: list[Trajectory]) -> None:
    text = " ".join(turn.action_text for trajectory in kept for turn in trajectory.turns())
    plain = sum(
        character.isascii() and (character.isalnum() or character in " \n.,:;!?'\"()*+-=/$") for character in text
    )

    assert plain / len(text) > 0.95
    assert sum(text.count(word) for word in (" the ", " is ", " of ", " a ", " to ")) > 20


def test_behaviour_log_probabilities_are_those_of_the_model(config: Config, kept: list[Trajectory]) -> None:
    """Of the library's own forward pass, on trajectories of the initial weights."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    fresh = [
        trajectory
        for trajectory in kept
        if {run.version for turn in trajectory.turns() for run in turn.versions} == {0}
    ]
    assert len({trajectory.id.domain for trajectory in fresh}) == 2
    for trajectory in fresh:
        spans = [span for turn in trajectory.turns() for span in (turn.observation, turn.action)]
        ids = join(spans).ids.astype(np.int64)
        generated = np.concatenate([np.full(len(span), index % 2 == 1) for index, span in enumerate(spans)])
        with torch.inference_mode():
            logits = model(torch.from_numpy(ids)[None]).logits[0, :-1]
        temperature = config.domains[trajectory.id.domain].temperature
        scores = torch.log_softmax(logits / temperature, -1)
        expected = scores.gather(-1, torch.from_numpy(ids)[1:, None])[:, 0].numpy()[generated[1:]]
        behaviour = np.concatenate([turn.action.logprobs for turn in trajectory.turns()])
        assert np.abs(behaviour - expected).max() < 1e-3


def test_the_trainer_sees_the_policy_that_the_engine_sampled_from(run: Path) -> None:
    gaps = [
        event.metrics["logprob_gap_on_policy"]
        for record in read_events(run / "events")
        if isinstance(event := record.e, TrainStepped) and "logprob_gap_on_policy" in event.metrics
    ]

    assert gaps
    assert max(gaps) < 1e-3
