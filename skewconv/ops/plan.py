"""Which engine runs."""
from typing import Literal, TypeAlias
from types import SimpleNamespace
Engine: TypeAlias = Literal["auto", "series", "dense", "spectral"]
def check_engine(*a, **k): ...
def plan_for(*a, **k):
    return SimpleNamespace(engine="series")
