"""What a merge can be told: the contract's options, checked once, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from shardyard.dtypes import SHORT_NAMES
from shardyard.errors import UsageError
from shardyard.text import printable

SIZE_UNITS = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3}
"""Decimal, as in huggingface_hub."""
DEFAULT_SHARD = 5 * 10**9

_CHOICES = {
    "dtype": ("keep", "float32", "bfloat16", "float16"),
    "format": ("safetensors", "torch"),
    "tied": ("auto", "once", "both"),
    "lora": ("keep", "split", "fold"),
    "verify": ("sample", "full", "none"),
}
_LISTS = ("keep_dtype", "select", "exclude", "strip_prefix")


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Options of `merge` and `export`; CONTRACT section 1 says what each means."""

    dtype: str | None = None
    """None: not asked for (`keep` for a merge, config.json's for an export)."""
    keep_dtype: tuple[str, ...] = ()
    allow_overflow: bool = False
    format: str | None = None
    """None: what OUT's ending says, else safetensors."""
    max_shard_size: int | None = DEFAULT_SHARD
    """Bytes; None for one file."""
    tag: str | None = None
    part: str | None = None
    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    trainable_only: bool = False
    tied: str = "auto"
    strip_prefix: tuple[str, ...] = ("auto",)
    lora: str | None = None
    """None: not asked for (`keep` for a merge, `split` for an export)."""
    like: str | None = None
    allow_incomplete: bool = False
    overwrite: bool = False
    verify: str = "sample"
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                shown = printable(str(value), 40)
                raise UsageError(f"--{name.replace('_', '-')} takes one of {', '.join(choices)}, not {shown}.")
        if self.max_shard_size is not None and self.max_shard_size < 1:
            raise UsageError("--max-shard-size must be at least one byte.")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> MergeOptions:
        """From a job's words: only what was asked for, sizes and dtypes as a person types them.

        Raises:
            UsageError: an option that does not exist, or a value that it does not take.
        """
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise UsageError(f"There is no option {printable(name, 40)}.")
            if name in _LISTS:
                values[name] = (value,) if isinstance(value, str) else tuple(str(v) for v in value)
            elif name == "max_shard_size":
                values[name] = parse_size(value)
            elif name == "dtype" and isinstance(value, str):
                values[name] = SHORT_NAMES.get(value, value)
            else:
                values[name] = value
        return cls(**values)

    def but(self, **changes: Any) -> MergeOptions:
        """The same options with some changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """As `parse` takes it."""
        values = asdict(self)
        if self.max_shard_size is None:
            values["max_shard_size"] = "none"
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None}


def parse_size(value: str | int | None) -> int | None:
    """`5GB`, `500MB` or a number of bytes; `none` for no limit."""
    if value is None or isinstance(value, int):
        return value
    text = value.strip()
    if text.lower() == "none":
        return None
    unit = text[-2:].upper()
    number, factor = (text[:-2], SIZE_UNITS[unit]) if unit in SIZE_UNITS else (text, 1)
    try:
        size = int(float(number.strip()) * factor)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise UsageError(f"{printable(value, 40)} is no size; write one such as 5GB or 500MB (TB, GB, MB, KB), or none.")
    return size
