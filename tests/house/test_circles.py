"""No module imports itself by way of others.

Imports at module level would fail or depend on who is imported first. Those below ``if TYPE_CHECKING:`` do no
harm at run time, but two modules that need each other's types are one module, or miss an interface.
"""

from __future__ import annotations

from .source import circles, import_graph

HIDDEN = {
    "net: connection, dispatch, interceptors, turn": "a request knows its connection, which dispatches it",
}
"""Circle by types alone -> why it may stay."""


def shown(circle: set[str]) -> str:
    """``room: module, module``, without the rooms inside."""
    rooms = {name.split(".")[1] for name in circle}
    return f"{', '.join(sorted(rooms))}: {', '.join(sorted(name.rpartition('.')[2] for name in circle))}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert [shown(circle) for circle in circles(import_graph(type_checking=False))] == []


def test_no_types_make_a_circle() -> None:
    found = {shown(circle) for circle in circles(import_graph(type_checking=True))}
    assert sorted(found - HIDDEN.keys()) == [], "a circle of imports that the list does not know"
    assert sorted(HIDDEN.keys() - found) == [], "opened, or changed: take it off the list"


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e2"}, "e2": {"e"}}
    assert circles(graph) == [{"b", "c"}, {"e", "e2"}]
