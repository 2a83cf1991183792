"""What a job can do: each verb takes the job's own words and a context, and returns the result. Operations are imported late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardyard.jobs.store import Spec
from shardyard.operations.context import Context

Verb = Callable[[Spec, Context], Mapping[str, Any]]

VERBS: dict[str, Verb] = {}
