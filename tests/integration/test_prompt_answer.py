"""A user's JSONL file, verifier and chat model through ``rollart train``, and what is said when one is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from answer_check import shared_letters
from chat_model import CHATML, REWRITES_THE_PAST, build
from transformers import AutoTokenizer

from rollart.cli.main import main
from rollart.observability.trajectory_log import read_all
from rollart.types import FinishReason, TokenSpan, Trajectory

CAPITALS = {
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Chile": "Santiago",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Finland": "Helsinki",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Italy": "Rome",
    "Japan": "Tokyo",
}
QUESTIONS = {f"What is the capital of {country}?": city for country, city in CAPITALS.items()}
HELD_OUT = [question for number, question in enumerate(QUESTIONS, 1) if number % 5 == 0]

CONFIG = """\
run: {name: capitals, iterations: 2, runtime: in_process, seed: 3}
model: {path: model}
domains:
  capitals:
    env: prompt_answer
    args:
      path: capitals.jsonl
      prompt_field: question
      answer_field: city
      verifier: answer_check:shared_letters
      held_out_every: 5
    isolation: inline
    system_prompt: Name the city.
    max_turns: 1
    max_new_tokens: 24
    max_context: 128
  guess_number:
    env: guess_number
    args: {style: text, guesses: 3}
    max_turns: 3
    max_new_tokens: 6
    max_context: 256
rollout: {groups_per_batch: 4, group_size: 3, max_environments: 16}
training: {learning_rate: 0.003}
evaluation: {instances: 2}
log: {trajectories: 100}
"""

IM_END = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [*QUESTIONS, *QUESTIONS.values(), "system user assistant Name the city. My number is higher. It is from"]
    return build(tmp_path_factory.mktemp("chat") / "model", texts)


@pytest.fixture
def folder(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the configuration, its data and the model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for file in model.iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    rows = [json.dumps({"question": question, "city": city}) for question, city in QUESTIONS.items()]
    (tmp_path / "capitals.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "capitals.yaml").write_text(CONFIG)
    return tmp_path


def messages_of(trajectory: Trajectory, system: str) -> list[dict[str, str]]:
    """The conversation that a trajectory should be."""
    messages = [{"role": "system", "content": system}] if system else []
    for turn in trajectory.turns():
        messages.append({"role": "user", "content": turn.observation_text})
        messages.append({"role": "assistant", "content": turn.action_text})
    return messages


def test_a_chat_model_trains_on_a_file_and_on_a_game(folder: Path) -> None:
    assert main(["train", "capitals.yaml"]) == 0

    run = folder / "runs" / "capitals"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["outcomes"]["trained"] == summary["started"] == 24
    kept = [trajectory for _, trajectory in read_all(run)]
    assert {trajectory.id.domain for trajectory in kept} == {"capitals", "guess_number"}
    tokenizer = AutoTokenizer.from_pretrained(run / "checkpoints" / "step_000002")
    for trajectory in kept:
        check_tokens(trajectory, tokenizer, "Name the city." if trajectory.id.domain == "capitals" else "")
    answers = [trajectory for trajectory in kept if trajectory.id.domain == "capitals"]
    for trajectory in answers:
        (turn,) = trajectory.turns()
        assert turn.observation_text not in HELD_OUT
        assert trajectory.score is not None
        assert trajectory.score.value == pytest.approx(
            shared_letters(turn.action_text, QUESTIONS[turn.observation_text])
        )
        assert trajectory.score.success == (trajectory.score.value >= 1)
    assert len({trajectory.score.value for trajectory in answers if trajectory.score}) > 1


def check_tokens(trajectory: Trajectory, tokenizer: AutoTokenizer, system: str) -> None:
    """The history is what the model library's template makes of the conversation, stop tokens in the actions."""
    ids: list[int] = []
    text = ""
    for turn in trajectory.turns():
        assert isinstance(turn.observation, TokenSpan)
        assert isinstance(turn.action, TokenSpan)
        stopped = turn.finish_reason is FinishReason.STOP
        assert (turn.action.ids[-1] == IM_END) == stopped
        assert IM_END not in turn.action.ids[:-1]
        ids += [*turn.observation.ids.tolist(), *turn.action.ids.tolist()]
    if ids[-1] != IM_END:
        ids.append(IM_END)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    whole = tokenizer.apply_chat_template(messages_of(trajectory, system), tokenize=False)
    assert text + "\n" == whole


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("domains.capitals.args.path=absent.jsonl", "no such file: absent.jsonl"),
        (
            "domains.capitals.args.prompt_field=qestion",
            "line 1: no text or number in field 'qestion', it has: question",
        ),
        ("domains.capitals.args.verifier=numerc", "no verifier named 'numerc': did you mean 'numeric'?"),
        ("domains.capitals.args.verifier=answer_check:shared_leters", "did you mean 'shared_letters'?"),
        ("domains.capitals.args.verifier=absent_check:f", "no module named 'absent_check'"),
        ("domains.capitals.args.held_out_every=0", "no held_out row in capitals.jsonl"),
        ("domains.capitals.reward.function=absent_reward:f", "no module named 'absent_reward'"),
        ("model.path=./capitals", "model.path: no such folder: capitals"),
    ],
)
def test_one_line_says_what_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], override: str, problem: str
) -> None:
    refused(capsys, ["train", "capitals.yaml", override], problem)


def refused(capsys: pytest.CaptureFixture[str], command: list[str], problem: str) -> None:
    code = main(command)
    said = capsys.readouterr().err
    assert code == 2, said
    assert problem in said
    assert said.count("\n") == 1, said
    assert not Path("runs").exists()


def test_a_broken_line_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "capitals.jsonl").open("a") as file:
        file.write('{"question": \n')

    refused(capsys, ["train", "capitals.yaml"], "capitals.jsonl, line 11: not a JSON object")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (REWRITES_THE_PAST, "leaves out past assistant messages"),
        (CHATML.replace("message['content']", "message['content'].upper()"), "leaves out past assistant messages"),
        ("{{ messages | length }}" + CHATML, "lacks the prefix property"),
        (CHATML.replace("<|im_start|>", "### ").replace("<|im_end|>", ""), "let the template write eos_token"),
        ("{% for message in messages %}", "the chat template is not valid"),
    ],
)
def test_a_template_that_cannot_be_appended_to_is_refused_for_several_turns(
    folder: Path, capsys: pytest.CaptureFixture[str], template: str, problem: str
) -> None:
    file = folder / "model" / "chat_template.jinja"
    file.unlink()
    file.write_text(template)

    refused(capsys, ["train", "capitals.yaml"], problem)


def test_one_turn_takes_any_template(folder: Path) -> None:
    file = folder / "model" / "chat_template.jinja"
    file.unlink()
    file.write_text(REWRITES_THE_PAST)

    assert main(["plan", "capitals.yaml", "domains.guess_number.max_turns=1"]) == 0


def test_a_model_without_a_tokenizer_is_refused_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model" / "tokenizer.json").unlink()

    refused(capsys, ["train", "capitals.yaml"], "model has no tokenizer.json")
