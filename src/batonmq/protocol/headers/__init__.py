"""The headers of all requests, by the program that serves them."""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every module of declarations, so that `protocol.registry.REQUESTS` holds all requests."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
