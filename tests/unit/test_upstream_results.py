"""Outcomes of RocketMQ's tests: read, kept, compared and shown."""

from __future__ import annotations

from pathlib import Path

from tests.interop.upstream.results import (
    PAGE,
    Outcome,
    differences,
    kept,
    load,
    merged,
    parse,
    reasons,
    rendered,
    save,
)

CLASS = "offset.OffsetResetIT"


def outcome(word: str, method: str, reason: str = "", test_class: str = CLASS) -> dict[str, Outcome]:
    name = f"{test_class}#{method}"
    return {name: Outcome(word, name, reason=reason)}  # type: ignore[arg-type]


def test_lines_of_the_runner_are_read_and_others_passed_over() -> None:
    line = f"FAIL org.apache.rocketmq.test.{CLASS}#testReset 1200 AssertionError: 3 is not 4"
    assert parse(line) == Outcome("FAIL", f"{CLASS}#testReset", 1200, "AssertionError: 3 is not 4")
    assert parse(f"PASS org.apache.rocketmq.test.{CLASS}#testReset 7") == Outcome(
        "PASS", f"{CLASS}#testReset", 7
    )
    for other in ("DONE org.apache.X", "NOTE a#b a text", "PASS", "", "PASS x#y", "PASS x#y z"):
        assert parse(other) is None, other


def test_outcomes_are_the_same_after_saving(tmp_path: Path) -> None:
    outcomes = outcome("PASS", "a") | outcome("FAIL", "b", "one two") | outcome("SKIP", "c", "@Ignore")
    save(tmp_path / "results" / "ours.txt", outcomes)
    assert load(tmp_path / "results" / "ours.txt") == outcomes
    assert load(tmp_path / "none.txt") == {}


def test_a_new_run_of_a_class_replaces_all_its_methods() -> None:
    old = outcome("FAIL", "a") | outcome("FAIL", "gone") | outcome("PASS", "x", test_class="tag.OtherIT")
    assert merged(old, outcome("PASS", "a")) == outcome("PASS", "a") | outcome(
        "PASS", "x", test_class="tag.OtherIT"
    )


def test_a_difference_is_a_method_that_only_one_side_passes() -> None:
    java = outcome("PASS", "a") | outcome("FAIL", "b") | outcome("SKIP", "c") | outcome("PASS", "only_java")
    ours = outcome("FAIL", "a") | outcome("PASS", "b") | outcome("FAIL", "c")
    found = differences(java, ours, {CLASS: "of the class", f"{CLASS}#b": "of the method"})
    assert [(each.ours.name, each.worse, each.reason) for each in found] == [
        (f"{CLASS}#a", True, "of the class"),
        (f"{CLASS}#b", False, "of the method"),
    ]


def test_the_page_counts_classes_and_names_methods_that_differ() -> None:
    java = outcome("PASS", "a") | outcome("PASS", "b")
    ours = outcome("PASS", "a") | outcome("FAIL", "b", "no")
    page = rendered(java, ours, {CLASS: "a | b"})
    assert f"| `{CLASS}` | 2 of 2 | 1 of 2 | |" in page
    assert "| &nbsp;&nbsp;`b` | PASS | FAIL | a \\| b |" in page
    assert "`a`" not in page


def test_reasons_name_methods_and_classes_that_ran() -> None:
    ran = load(kept("java")).values()
    names = {each.name for each in ran} | {each.test_class for each in ran}
    assert reasons().keys() <= names


def test_the_page_shows_the_kept_outcomes() -> None:
    assert rendered(load(kept("java")), load(kept("ours")), reasons()) in PAGE.read_text()


def test_whatever_passes_on_rocketmq_passes_here_or_has_a_reason() -> None:
    found = differences(load(kept("java")), load(kept("ours")), reasons())
    assert [each.ours for each in found if each.worse and not each.reason] == []
