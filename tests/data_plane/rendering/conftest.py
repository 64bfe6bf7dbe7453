"""Small real tokenizers, trained here, and chat templates of the kinds that models ship with."""

import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from rollart.data_plane.rendering.tokenizer import FolderTokenizer

TEXT = """You are a helpful agent. Answer with one of: left, down, right, up.
The lake is frozen. There are holes in it. The7answer
user assistant system tool\n\n\nYou see:\n# . H\n. P .\n  spaces around, and\n\n\nlines\n
{"name": "calculator", "arguments": {"expression": "3 * (4 + 5)"}} is 27. go go go
"""

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<s>", "</s>", "<bos>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]",
]  # fmt: skip

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful agent.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + strftime_now("%d %b %Y") + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

# Drops the reasoning of past assistant messages, and puts consecutive tool messages into one user message.
DROPS_REASONING = """{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

# Folds the system message into the first user message, demands alternation, trims.
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}
{%- set loop_messages = messages[1:] %}{% else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}
{%- for message in loop_messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception("Conversation roles must alternate user/assistant") }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}
{{- message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

# Puts a space before the answer and one before its end, as Llama 2 does; marks generations.
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{% generation %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)

GOOD = {
    "chatml": (CHATML, {"eos_token": "<|im_end|>"}),
    "llama3": (LLAMA3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "drops_reasoning": (
        DROPS_REASONING,
        {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True}},
    ),
    "gemma": (GEMMA, {"bos_token": "<bos>", "eos_token": "<end_of_turn>"}),
    "inst": (INST, {"bos_token": "<s>", "eos_token": "</s>"}),
}


PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How the tokenizers of Qwen and Llama 3 cut a text: line breaks stay together."""


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return _trained_on_bytes(tokenizer)


def gpt2() -> Tokenizer:
    """Cuts the last of several line breaks off if a word follows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _trained_on_bytes(tokenizer)


def _trained_on_bytes(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    # Adds a bos token of its own where it is asked to: a template that writes one must not get two.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", SPECIALS.index("<|begin_of_text|>"))]
    )
    return tokenizer


def sentence_piece() -> Tokenizer:
    """The older kind that puts a marked space before every text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    alphabet = sorted({*TEXT.replace(" ", "▁"), "▁", *[chr(code) for code in range(33, 127)]})
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", *SPECIALS, *[f"<0x{byte:02X}>" for byte in range(256)]],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


KINDS = {"byte_level": byte_level, "gpt2": gpt2, "sentence_piece": sentence_piece}


@pytest.fixture(scope="session")
def trained() -> dict[str, Tokenizer]:
    return {name: make() for name, make in KINDS.items()}


@pytest.fixture(scope="session")
def model_folder(trained, tmp_path_factory):
    """Makes a model folder of a tokenizer kind and a chat template."""

    def make(kind: str, template: str | None, config: dict, *, as_file: bool = False) -> Path:
        folder = tmp_path_factory.mktemp("model")
        trained[kind].save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
        if template is not None and as_file:
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        elif template is not None:
            config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def tokenizers(model_folder) -> dict[tuple[str, str], FolderTokenizer]:
    """Every good template with every tokenizer kind."""
    return {
        (kind, name): FolderTokenizer(model_folder(kind, template, config))
        for kind in KINDS
        for name, (template, config) in GOOD.items()
    }
