"""A guard taken out of the programs for a while, and the command that counts the seeds that notice.

A guard whose loss no seed notices is a guard that nothing tests. A mutation replaces one function (two where
one guard stands behind another) by one that lacks it, in this process only; nothing else changes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar
from unittest import mock

import click

Patch: TypeAlias = tuple[Any, str, Any]
"""Owner, attribute, and what is there instead."""
Shape = TypeVar("Shape")


@dataclass(frozen=True)
class Mutation(Generic[Shape]):
    """One guard taken out."""

    what: str
    patches: Callable[[], list[Patch]] = field(repr=False)
    shape: Shape | None = None
    """The stories in which the guard matters; None: any."""
    upstream: str = ""
    """Issue of apache/rocketmq."""

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(mock.patch.object(target, name, value, create=not hasattr(target, name)))
            yield

    def violation(self, run: Callable[[], object]) -> str | None:
        """The violation of a story without the guard; None if it does not notice."""
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with contextlib.redirect_stderr(io.StringIO()), self.in_force():
                run()
        except Exception as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        finally:
            logging.disable(disabled)
        return None


def counting(
    mutations: Mapping[str, Mutation[Any]], violation: Callable[[str, int], str | None], *, seeds: int
) -> click.Command:
    """A command that says for each mutation how many seeds `violation` (of a name and a seed) notices."""

    @click.command()
    @click.option("--seeds", default=seeds, show_default=True, help="How many for each mutation, at most.")
    @click.option("--enough", default=seeds, show_default=True, help="So many that noticed are enough.")
    @click.option("--first", default=0, show_default=True, help="First seed.")
    @click.option("--only", multiple=True, type=click.Choice(list(mutations)), help="Just these.")
    @click.option("--jobs", default=os.cpu_count(), help="Processes.")
    def main(seeds: int, enough: int, first: int, only: tuple[str, ...], jobs: int) -> None:
        """Take guards out of the programs, one at a time, and count the seeds that notice."""
        with ProcessPoolExecutor(jobs) as pool:
            for name in only or mutations:
                found: dict[int, str] = {}
                tried = 0
                while tried < seeds and len(found) < enough:
                    batch = range(first + tried, first + min(tried + jobs, seeds))
                    tried += len(batch)
                    violations = pool.map(violation, [name] * len(batch), batch)
                    found |= {
                        seed: text for seed, text in zip(batch, violations, strict=True) if text is not None
                    }
                example = next(iter(found.values()), "")
                click.echo(f"{name:20} {len(found):3} of {tried:3}  seeds {list(found)[:6]}  {example[:110]}")

    return main
