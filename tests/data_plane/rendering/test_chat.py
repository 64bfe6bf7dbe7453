"""Token-exactness over the turns, for templates and tokenizers of several kinds."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rollart.config.domains import DomainConfig
from rollart.data_plane.rendering.build import build_renderer
from rollart.data_plane.rendering.chat import ChatRenderer
from rollart.data_plane.rendering.renderer import RenderingError
from rollart.data_plane.rendering.template import ChatTemplate
from rollart.data_plane.rendering.tokenizer import FolderTokenizer
from rollart.data_plane.rendering.words import WordsRenderer
from rollart.types import LengthSpan, TokenSpan

SYSTEM = "Answer with one of: left, down, right, up."

MESSAGE = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
ALL = "{% for m in messages %}" + MESSAGE + "{% endfor %}"

CHATML_THINKS = ALL + PROMPT.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n")
COUNTS = "{{ messages | length }}" + ALL + PROMPT
FORGETS = "{% for m in messages if m.role != 'assistant' %}" + MESSAGE + "{% endfor %}" + PROMPT
UPPER = ALL.replace("m.content", "(m.content | upper if m.role == 'assistant' else m.content)") + PROMPT
NO_STOP = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}" + PROMPT


def ids(span) -> list[int]:
    return span.ids.tolist()


def action(tokens: list[int]) -> TokenSpan:
    return TokenSpan.of(np.array(tokens, np.int32), np.zeros(len(tokens), np.float32))


@pytest.fixture(scope="session")
def renderers(tokenizers):
    return {
        (*key, bool(system)): ChatRenderer(tokenizer, system)
        for key, tokenizer in tokenizers.items()
        for system in ("", SYSTEM)
    }


CASES = [
    (kind, name, system)
    for kind in ("byte_level", "gpt2", "sentence_piece")
    for name in ("chatml", "llama3", "drops_reasoning", "gemma", "inst")
    for system in (True, False)
]

STRANGE = (
    *("", " ", "\n", "\n\n left", "left\n\n", " left", "left ", "a\r\nb\t", "\u0000\u200b\u00a0", "é 漢字 🙂"),
    *("<|im_end|>", "</s>", "{{ bos_token }}", "{% raw %}", "<think>\nhm\n</think>\n\nleft", "The7answer"),
)
AWKWARD = st.one_of(st.text(max_size=20), st.sampled_from(STRANGE))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=st.sampled_from(CASES), texts=st.lists(st.tuples(AWKWARD, AWKWARD, st.booleans()), min_size=1, max_size=4))
@example(case=("byte_level", "chatml", True), texts=[("go", "left", True), ("# . H", "", False), ("", "up", True)])
def test_histories_only_grow_and_are_the_templates_where_actions_are_canonical(renderers, tokenizers, case, texts):
    """Observations, actions and whether each action ended by itself: whatever they are, nothing before changes."""
    kind, name, has_system = case
    renderer, tokenizer = renderers[case], tokenizers[kind, name]
    template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
    stop = renderer.stop_token_ids[0]
    messages = [{"role": "system", "content": SYSTEM}] if has_system else []
    history: list[int] = []
    canonical = True
    for turn, (observation, said, stopped) in enumerate(texts):
        opened = renderer.begin(observation) if turn == 0 else renderer.observe(observation, stopped=texts[turn - 1][2])
        history += ids(opened)
        messages.append({"role": "user", "content": observation})
        text = template.render(messages, generate=True)
        if canonical:
            assert history == tokenizer.encode(text)
        spaces = " " if name == "inst" else ""
        generated = tokenizer.encode(text + spaces + said + spaces)[len(tokenizer.encode(text)) :]
        messages.append({"role": "assistant", "content": said})
        canonical = canonical and is_canonical(template, tokenizer, messages, text, spaces + said + spaces)
        span = action([*generated, stop] if stopped else generated)
        if canonical:
            assert renderer.parse(span).strip() == said.strip()
        history += ids(span)
    if canonical:
        last = renderer.observe("end", stopped=texts[-1][2])
        messages.append({"role": "user", "content": "end"})
        assert history + ids(last) == tokenizer.encode(template.render(messages, generate=True))


def is_canonical(template, tokenizer, messages, opening, said) -> bool:
    """Whether the template writes the action as it was said, and its tokens do not join the opening's."""
    following = template.render([*messages, {"role": "user", "content": "x"}], generate=True)
    before = tokenizer.encode(opening)
    special = {token.content for token in tokenizer.core.get_added_tokens_decoder().values()}
    return (
        following.startswith(opening + said)
        and tokenizer.encode(opening + said)[: len(before)] == before
        and not any(token in said for token in special)
        and tokenizer.encode(following)[: len(tokenizer.encode(opening + said))] == tokenizer.encode(opening + said)
    )


def test_most_probes_are_canonical(renderers, tokenizers):
    """So that the property above says something for every template."""
    for kind, name, _ in CASES:
        tokenizer = tokenizers[kind, name]
        template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
        messages = [{"role": "user", "content": "go"}]
        opening = template.render(messages, generate=True)
        messages.append({"role": "assistant", "content": "left"})
        said = " left " if name == "inst" else "left"
        # GPT-2's tokenizer cuts the two line breaks of Llama 3's opening apart when a word follows.
        expected = (kind, name) != ("gpt2", "llama3")
        assert is_canonical(template, tokenizer, messages, opening, said) == expected, (kind, name)


def test_an_action_cut_by_length_is_closed_in_the_observation(renderers):
    renderer = renderers["byte_level", "chatml", True]
    assert (
        renderer.decode(renderer.observe("ok", stopped=True))
        == "\n<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n"
    )
    closed = renderer.observe("ok", stopped=False)
    assert ids(closed)[0] == renderer.stop_token_ids[0]
    assert ids(closed)[1:] == ids(renderer.observe("ok", stopped=True))


def test_reasoning_stays_in_the_history_though_the_template_would_drop_it(renderers, tokenizers):
    renderer, tokenizer = renderers["byte_level", "drops_reasoning", False], tokenizers["byte_level", "drops_reasoning"]
    said = "<think>\nhm\n</think>\n\nleft"
    span = action([*tokenizer.encode(said), *renderer.stop_token_ids[:1]])
    assert renderer.parse(span) == said
    history = [*ids(renderer.begin("go")), *ids(span), *ids(renderer.observe("ok", stopped=True))]
    assert tokenizer.core.decode(history, skip_special_tokens=False) == (
        f"<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>\n"
        "<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n"
    )


def test_one_bos_at_the_start_and_none_later(renderers, tokenizers):
    renderer, tokenizer = renderers["byte_level", "llama3", True], tokenizers["byte_level", "llama3"]
    bos = tokenizer.special_id("bos_token")
    history = [*ids(renderer.begin("go")), *ids(renderer.observe("ok", stopped=False))]
    assert history[0] == bos
    assert history.count(bos) == 1


def test_messages_of_several_roles(renderers):
    renderer = renderers["byte_level", "drops_reasoning", True]
    tools = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    assert renderer.decode(renderer.observe(tools, stopped=True)) == (
        "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    first = [{"role": "system", "content": "You play."}, {"role": "user", "content": "go"}]
    assert renderer.decode(renderer.begin(first)).startswith(f"<|im_start|>system\n{SYSTEM}\n\nYou play.<|im_end|>\n")
    with pytest.raises(
        RenderingError, match="refuses messages of roles user, assistant, tool: Conversation roles must"
    ):
        renderers["byte_level", "gemma", False].observe(tools[:1], stopped=True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (CHATML_THINKS, "lacks the prefix property"),
        (COUNTS, "lacks the prefix property"),
        (UPPER, "leaves out past assistant messages"),
        (FORGETS, "leaves out past assistant messages"),
        (NO_STOP, "does not start with a special token"),
        ("{% for %}", "is not valid"),
        ("{{ raise_exception('never') }}", "refuses messages of roles user, assistant, user: never"),
        (None, "has no chat template"),
    ],
)
def test_templates_that_cannot_be_appended_are_refused_with_a_remedy(model_folder, template, message):
    folder = model_folder("byte_level", template, {"eos_token": "<|im_end|>"})
    with pytest.raises(RenderingError, match=message) as caught:
        build_renderer(folder, "chat", DomainConfig(env="frozen_lake"))
    assert "prefix" not in message or "chat_template.jinja" in str(caught.value)


def test_domains_of_one_turn_take_any_template(model_folder):
    folder = model_folder("byte_level", FORGETS, {"eos_token": "<|im_end|>"})
    renderer = build_renderer(folder, "auto", DomainConfig(env="prompt_answer", max_turns=1))
    assert renderer.decode(renderer.begin("go")) == "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.stop_token_ids == (2,)


def test_stop_tokens_of_the_template_the_tokenizer_and_the_generation_config(model_folder, tokenizers):
    chatml = tokenizers["byte_level", "chatml"].chat_template

    folder = model_folder("byte_level", chatml, {"eos_token": "<|endoftext|>"}, as_file=True)
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 6]}')
    renderer = build_renderer(folder, "auto", DomainConfig(env="frozen_lake"))
    assert renderer.stop_token_ids == (2, 0, 6)
    assert renderer.parse(action([*FolderTokenizer(folder).encode("left"), 6])) == "left"


def test_the_choice_of_a_renderer(model_folder):
    domain = DomainConfig(env="frozen_lake", system_prompt="go")
    plain = model_folder("byte_level", None, {"eos_token": "<|endoftext|>"})
    assert isinstance(build_renderer(plain, "auto", domain), WordsRenderer)
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": UPPER}]
    chat = model_folder("byte_level", named, {"eos_token": "<|im_end|>"})
    assert isinstance(build_renderer(chat, "words", domain), WordsRenderer)
    with pytest.raises(RenderingError, match="leaves out"):
        build_renderer(chat, "auto", domain)
    assert build_renderer(None, "auto", domain).begin(LengthSpan(3)) == LengthSpan(3)


def test_emulated_values_are_refused(renderers):
    renderer = renderers["byte_level", "chatml", True]
    with pytest.raises(RenderingError, match="emulated"):
        renderer.begin(LengthSpan(3))
    with pytest.raises(RenderingError, match="emulated"):
        renderer.parse(LengthSpan(3))


def test_templates_run_in_a_sandbox(model_folder):
    folder = model_folder("byte_level", "{{ messages.__class__.__mro__ }}", {"eos_token": "<|im_end|>"})
    with pytest.raises(RenderingError, match="refuses messages"):
        build_renderer(folder, "chat", DomainConfig(env="frozen_lake"))


@pytest.mark.parametrize("name", ["chatml", "llama3", "drops_reasoning", "gemma", "inst"])
def test_the_model_librarys_rendering_is_the_same(model_folder, tokenizers, name):
    """The template environment is our own; it must render what users see in transformers."""
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizers["byte_level", name]
    theirs = transformers.AutoTokenizer.from_pretrained(tokenizer.folder)
    messages = [
        {"role": "user", "content": " go\n"},
        {"role": "assistant", "content": "left"},
        {"role": "user", "content": "é"},
    ]
    if name != "inst":
        messages.insert(0, {"role": "system", "content": SYSTEM})
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ours = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens).render(messages, generate=True)
    assert ours == expected
    assert tokenizer.encode(ours) == theirs.encode(expected, add_special_tokens=False)
