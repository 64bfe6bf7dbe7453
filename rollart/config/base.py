"""Base of every configuration section: immutable, unknown keys refused with the nearest valid key."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A section of the configuration. Validated once, never changed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(unknown_key(str(key), list(cls.model_fields)))
        return data


def unknown_key(key: str, valid: list[str]) -> str:
    """The message for a key that does not exist, naming the nearest one that does."""
    near = difflib.get_close_matches(key, valid, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"valid keys: {', '.join(sorted(valid))}"
    return f"unknown key '{key}': {hint}"
