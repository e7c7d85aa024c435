"""Outcomes of RocketMQ's tests: read from the Java side's lines, kept in files, compared, shown on a page."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Word = Literal["PASS", "FAIL", "SKIP"]
PREFIX = "org.apache.rocketmq.test."
HERE = Path(__file__).parent
REASONS = HERE / "differences.toml"
PAGE = HERE.parents[2] / "docs" / "interop-upstream.md"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
REASON_LENGTH = 240


@dataclass(frozen=True)
class Outcome:
    """Of one test method."""

    word: Word
    name: str
    """``offset.OffsetResetIT#testEncodeOffsetHeader``: without the packages that all have in common."""
    ms: int = 0
    reason: str = ""

    @property
    def test_class(self) -> str:
        return self.name.partition("#")[0]


Outcomes = dict[str, Outcome]
"""By name of the method."""


def parse(line: str) -> Outcome | None:
    """A line of Runner.java; None for NOTE, DONE and everything else."""
    word, _, rest = line.partition(" ")
    name, _, rest = rest.partition(" ")
    ms, _, reason = rest.partition(" ")
    if word not in ("PASS", "FAIL", "SKIP") or "#" not in name or not ms.isdigit():
        return None
    return Outcome(word, name.removeprefix(PREFIX), int(ms), reason[:REASON_LENGTH].rstrip())  # type: ignore[arg-type]


def kept(system: str) -> Path:
    """The file with the last outcomes of `system` (ours, java)."""
    return HERE / "results" / f"{system}.txt"


def load(path: Path) -> Outcomes:
    """Empty if there is no such file."""
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text().splitlines():
        word, name, *reason = line.split(" ", 2)
        found[name] = Outcome(word, name, reason="".join(reason))  # type: ignore[arg-type]
    return found


def save(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Sorted, without times: the file changes when an outcome changes."""
    path.parent.mkdir(exist_ok=True)
    lines = (f"{each.word} {name} {each.reason}".rstrip() for name, each in sorted(outcomes.items()))
    path.write_text("".join(f"{line}\n" for line in lines))


def merged(old: Mapping[str, Outcome], new: Mapping[str, Outcome]) -> Outcomes:
    """`new` replaces all methods of the classes that it has."""
    classes = {each.test_class for each in new.values()}
    return {name: each for name, each in old.items() if each.test_class not in classes} | dict(new)


def reasons() -> dict[str, str]:
    """Why an outcome differs from Java's, by method or class."""
    return {str(key): str(text) for key, text in tomllib.loads(REASONS.read_text()).items()}


@dataclass(frozen=True)
class Difference:
    """A method that Java passes and we do not, or the other way round."""

    java: Outcome
    ours: Outcome
    reason: str

    @property
    def worse(self) -> bool:
        return self.java.word == "PASS"


def differences(
    java: Mapping[str, Outcome], ours: Mapping[str, Outcome], known: Mapping[str, str]
) -> list[Difference]:
    """Of the methods in both, by name; `known` has the reasons."""
    found = []
    for name in sorted(java.keys() & ours.keys()):
        pair = java[name], ours[name]
        if (pair[0].word == "PASS") != (pair[1].word == "PASS"):
            found.append(Difference(*pair, known.get(name) or known.get(pair[0].test_class, "")))
    return found


def rendered(java: Mapping[str, Outcome], ours: Mapping[str, Outcome], known: Mapping[str, str]) -> str:
    """The page's table: a row for each class, and one below it for each method that differs."""
    by_name = {each.java.name: each for each in differences(java, ours, known)}
    lines = [
        BEGIN,
        "",
        f"{_passed(java.values())} methods pass on RocketMQ, {_passed(ours.values())} on BatonMQ.",
        "",
        "| class | RocketMQ | BatonMQ | difference |",
        "| --- | --- | --- | --- |",
    ]
    for test_class in sorted({each.test_class for each in (*java.values(), *ours.values())}):
        here = [sorted_of(outcomes, test_class) for outcomes in (java, ours)]
        columns = " | ".join(_passed(each) for each in here)
        lines.append(f"| `{test_class}` | {columns} | |")
        for outcome in here[0]:
            if (difference := by_name.get(outcome.name)) is not None:
                method = outcome.name.partition("#")[2]
                words = f"{difference.java.word} | {difference.ours.word}"
                lines.append(f"| &nbsp;&nbsp;`{method}` | {words} | {_cell(difference.reason)} |")
    return "\n".join([*lines, "", END])


def sorted_of(outcomes: Mapping[str, Outcome], test_class: str) -> list[Outcome]:
    return sorted((each for each in outcomes.values() if each.test_class == test_class), key=lambda o: o.name)


def _passed(outcomes: Iterable[Outcome]) -> str:
    """``5 of 7 (1 skipped)``"""
    words = [each.word for each in outcomes]
    skipped = f" ({words.count('SKIP')} skipped)" if "SKIP" in words else ""
    return f"{words.count('PASS')} of {len(words)}{skipped}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write_page() -> None:
    """Put the table of the kept outcomes between the page's two comments."""
    text = PAGE.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {BEGIN} … {END}")
    PAGE.write_text(before + rendered(load(kept("java")), load(kept("ours")), reasons()) + after)
