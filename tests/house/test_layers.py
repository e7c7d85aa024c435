"""Rooms inside rooms have their order, too: import-linter holds it (`make lint`)."""

from __future__ import annotations

import tomllib

from .source import ROOT, modules


def named_in_contracts() -> set[str]:
    """Every module that a contract of import-linter names, dotted."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: set[str] = set()
    for contract in config["contracts"]:
        for key in ("modules", "source_modules", "forbidden_modules"):
            found |= set(contract.get(key, ()))
        layers = [part.strip(" ()") for layer in contract.get("layers", ()) for part in layer.split("|")]
        containers = contract.get("containers") or [None]
        found |= {f"{each}.{layer}" if each else layer for each in containers for layer in layers}
    return found


def test_every_room_is_in_a_contract() -> None:
    rooms = {module.name for module in modules() if module.path.name == "__init__.py"} - {"batonmq"}
    missing = sorted(rooms - named_in_contracts())
    assert not missing, f"in no contract of import-linter (pyproject.toml): {missing}"
