import json
from pathlib import Path

import pytest

from rollart.config.domains import DomainConfig
from rollart.data_plane.environment.prompt_answer import PromptAnswer
from rollart.data_plane.environment.registry import default_isolation
from rollart.data_plane.environment.session import open_session
from rollart.types import Purpose

GSM8K = Path(__file__).parents[3].parent / "shared/data/gsm8k"


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def path(tmp_path) -> str:
    rows = [{"question": f"What is {i} + {i}?", "answer": f"work\n#### {2 * i}", "id": i} for i in range(30)]
    return write(tmp_path / "sums.jsonl", rows)


def sums(path, **settings):
    return PromptAnswer(path, "question", "answer", "numeric", **settings)


def asked(env, tasks):
    return [env.reset(seed, task) for seed, task in enumerate(tasks)]


def test_a_row_is_judged_by_its_verifier(path):
    env = sums(path, shuffle=False)
    assert env.reset(0, 4) == "What is 4 + 4?"
    assert env.step("It must be 8.") == ("", 1.0, True, False, {"success": True})
    assert env.step("7")[1:] == (0.0, True, False, {"success": False})
    assert env.step("")[1] == 0.0


def test_the_split_by_rows(path):
    train, held_out = sums(path, split="train"), sums(path, split="held_out")
    epoch = asked(train, range(27))
    assert len(set(epoch)) == 27
    assert asked(held_out, range(4)) == ["What is 9 + 9?", "What is 19 + 19?", "What is 29 + 29?", "What is 9 + 9?"]
    assert not set(epoch) & set(asked(held_out, range(3)))
    second = asked(train, range(27, 54))
    assert set(second) == set(epoch)
    assert second != epoch
    assert asked(sums(path, split="train"), range(27)) == epoch
    assert asked(sums(path, split="train", shuffle=False, held_out_every=0), range(3)) == [
        f"What is {i} + {i}?" for i in range(3)
    ]


def test_the_split_by_files(path, tmp_path):
    other = write(tmp_path / "other.jsonl", [{"question": "q", "answer": 7}])
    assert len(set(asked(sums(path, held_out_path=other, split="train"), range(30)))) == 30
    env = sums(path, held_out_path=other, split="held_out", template="Q: {prompt}\nA:")
    assert env.reset(0, 5) == "Q: q\nA:"
    assert env.step("7")[4] == {"success": True}


def test_the_session_gives_the_split_and_a_changed_file_is_read_again(path, tmp_path):
    config = DomainConfig(env="prompt_answer", args={"path": path, "prompt_field": "question", "verifier": "numeric"})

    async def first(purpose):
        return await open_session(config, purpose=purpose).reset(0, 0)

    import asyncio

    assert asyncio.run(first(Purpose.EVAL)) == "What is 9 + 9?"
    assert asyncio.run(first(Purpose.TRAIN)) != "What is 9 + 9?"
    Path(path).write_text('{"question": "new?", "answer": "1"}\n' * 10)
    assert asyncio.run(first(Purpose.EVAL)) == "new?"


def test_a_users_verifier_and_where_it_runs(path):
    env = PromptAnswer(path, "question", verifier="text_gyms:judge", shuffle=False)
    env.reset(0, 1)
    assert env.step("work\n#### 2")[1:] == (0.5, True, False, {"success": False})
    assert default_isolation("prompt_answer", {"path": path, "verifier": "text_gyms:judge"}) == "process"
    builtin = "rollart.data_plane.reward.verifiers:numeric"
    assert default_isolation("prompt_answer", {"path": path, "verifier": builtin}) == "inline"
    assert default_isolation("prompt_answer", {"path": path}) == "inline"


def test_random_policy_and_words(path, tmp_path):
    env = sums(path)
    assert env.random_action(1) == env.random_action(1)
    assert len({env.random_action(seed) for seed in range(20)}) > 5
    tiny = write(tmp_path / "tiny.jsonl", [{"prompt": f"a {i}", "answer": f"b{i}"} for i in range(3)])
    assert PromptAnswer.words(path=tiny, template="say {prompt}", held_out_every=3) == [
        "0", "1", "2", "a", "b0", "b1", "b2", "say",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ('{"prompt": "a", "answer": "b"}\n{oops\n', {}, "line 2: not a JSON object"),
        ('["a"]\n', {}, "line 1: not a JSON object"),
        (
            '{"question": "a", "answer": "b"}\n',
            {},
            "line 1: no text or number in field 'prompt', it has: question, answer",
        ),
        ('{"prompt": "a", "answer": null}\n', {}, "field 'answer'"),
        ("\n\n", {}, "no data row"),
        ('{"prompt": "a", "answer": "b"}\n', {"split": "held_out"}, "no held_out row"),
        ('{"prompt": "a", "answer": "b"}\n', {"template": "x"}, "has no {prompt}"),
        ('{"prompt": "a", "answer": "b"}\n', {"held_out_every": 1}, "held_out_every is 1"),
    ],
)
def test_bad_files_and_arguments(tmp_path, text, arguments, message):
    file = tmp_path / "data.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        PromptAnswer(str(file), **arguments)


def test_missing_file_and_verifier(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        PromptAnswer(str(tmp_path / "none.jsonl"))
    with pytest.raises(LookupError, match="did you mean 'numeric'"):
        PromptAnswer(path, "question", verifier="numerical")


@pytest.mark.optional
@pytest.mark.skipif(not GSM8K.is_dir(), reason="needs the GSM8K files")
def test_gsm8k_answers_verify_themselves():
    arguments = {"path": str(GSM8K / "train.jsonl"), "prompt_field": "question", "verifier": "numeric"}
    env = PromptAnswer(**arguments, held_out_path=str(GSM8K / "test.jsonl"), split="held_out")
    assert len(env._rows) == 1319
    for task, row in enumerate(env._rows):
        env.reset(0, task)
        assert env.step(row.answer)[4]["success"]
        assert env.step("So the answer is " + row.answer.rpartition("#### ")[2] + ".")[4]["success"]
        assert not env.step("The answer is -123456.7")[4]["success"]
