import numpy as np
import pytest

from rollart.config.domains import DomainConfig
from rollart.data_plane.rendering.build import build_renderer
from rollart.data_plane.rendering.renderer import RenderingError
from rollart.data_plane.rendering.tokenizer import FolderTokenizer
from rollart.data_plane.rendering.words import SPECIAL_WORDS, WordsRenderer, save_word_tokenizer, vocabulary_of
from rollart.types import LengthSpan, TokenSpan

DOMAINS = {
    "lake": DomainConfig(env="frozen_lake", system_prompt="frozen_lake", args={"view": "local"}),
    "guess": DomainConfig(env="guess_number", system_prompt="guess_number"),
    "math": DomainConfig(env="math_tool", system_prompt="math_tool"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    words = vocabulary_of(DOMAINS)
    assert save_word_tokenizer(folder, words, max_length=256) == len(SPECIAL_WORDS) + len(words)
    return folder


def action(renderer: WordsRenderer, folder, text: str, *, stop: bool = False) -> TokenSpan:
    ids = FolderTokenizer(folder).encode(text)
    return TokenSpan.of(np.array([*ids, *(renderer.stop_token_ids if stop else ())], np.int32))


def test_the_vocabulary_of_the_quickstart_domains():
    words = vocabulary_of(DOMAINS)
    assert words == sorted(set(words))
    expected = ["frozen_lake", "guess_number", "math_tool", "P", "#", "left", "higher", "sum", "add", "=", "0", "19"]
    assert set(expected) <= set(words)
    assert len(words) == 50


def test_a_history(folder):
    renderer = build_renderer(folder, "auto", DOMAINS["lake"])
    assert isinstance(renderer, WordsRenderer)
    first = renderer.begin("# # #\n# P .\n# . H")
    assert renderer.decode(first) == "<bos> frozen_lake # # # # P . # . H <act>"
    assert renderer.decode(renderer.observe("P", stopped=False)) == "P <act>"
    assert renderer.observe("P", stopped=True).ids.tolist() == renderer.observe("P", stopped=False).ids.tolist()
    assert renderer.decode(renderer.observe("", stopped=False)) == "<act>"
    assert first.ids.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        first.ids[0] = 3


def test_actions_as_text(folder):
    renderer = build_renderer(folder, "auto", DOMAINS["math"])
    assert renderer.parse(action(renderer, folder, "add 3")) == "add 3"
    assert renderer.parse(action(renderer, folder, "7", stop=True)) == "7"
    assert renderer.parse(action(renderer, folder, "", stop=True)) == ""
    assert renderer.parse(action(renderer, folder, "<pad> 3 <act>")) == "<pad> 3 <act>"
    assert renderer.parse(TokenSpan.of(np.empty(0, np.int32))) == ""


def test_an_unknown_word_is_an_error_not_an_unknown_token(folder):
    renderer = build_renderer(folder, "auto", DOMAINS["lake"])
    with pytest.raises(RenderingError, match="cannot encode 'a dragon"):
        renderer.begin("a dragon")
    with pytest.raises(RenderingError, match="cannot encode"):
        build_renderer(folder, "auto", DomainConfig(env="frozen_lake", system_prompt="Be careful."))


def test_the_model_library_reads_the_tokenizer(folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = FolderTokenizer(folder)
    assert theirs.encode("P . H left 19", add_special_tokens=False) == ours.encode("P . H left 19")
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (0, 1, 2)
    assert ours.stop_ids == (2,)


def test_messages_and_lengths(folder):
    renderer = build_renderer(folder, "words", DOMAINS["guess"])
    spoken = renderer.begin([{"role": "user", "content": "start 3"}, {"role": "user", "content": "9"}])
    assert renderer.decode(spoken) == "<bos> guess_number start 3 9 <act>"
    with pytest.raises(RenderingError, match="emulated"):
        renderer.begin(LengthSpan(3))


def test_base_models_with_a_subword_tokenizer(model_folder):
    folder = model_folder("byte_level", None, {"eos_token": "<|endoftext|>", "bos_token": "<|begin_of_text|>"})
    renderer = build_renderer(folder, "auto", DomainConfig(env="frozen_lake", system_prompt="Go:"))
    assert renderer.decode(renderer.begin("P .")) == "<|begin_of_text|>Go:\nP .\n"
    assert renderer.decode(renderer.observe("ok", stopped=True)) == "ok\n"
    assert renderer.stop_token_ids == (0,)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (DomainConfig(env="emulated"), "does not declare its words"),
        (DomainConfig(env="frozen_lake", args={"style": "text"}), "domain 'x': frozen_lake of style 'text'"),
        (DomainConfig(env="frozen_lake", system_prompt="say <eos>"), "is not"),
        (DomainConfig(env="frozen_lake", args={"size": 1}), "domain 'x': size is 1"),
    ],
)
def test_domains_without_a_closed_vocabulary(domain, message):
    with pytest.raises(RenderingError, match=message):
        vocabulary_of({"x": domain})


def test_folders_that_cannot_be_used(tmp_path, model_folder):
    with pytest.raises(RenderingError, match=r"has no tokenizer\.json"):
        FolderTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RenderingError, match="cannot be read"):
        FolderTokenizer(tmp_path)
    silent = model_folder("byte_level", None, {})
    with pytest.raises(RenderingError, match="names no eos_token"):
        WordsRenderer(FolderTokenizer(silent), "")
    (silent / "tokenizer_config.json").write_text("{")
    with pytest.raises(RenderingError, match="is not JSON"):
        FolderTokenizer(silent)
